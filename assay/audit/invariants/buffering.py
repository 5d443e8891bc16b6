"""I7: what waits in a buffer is trained with the prompt it answers and the log-probabilities it was drawn with.

A loop that buffers is run with a policy whose responses say which draw they are, so every row it trains on can be
traced back to its draw.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.audit.check import TOLERANCE, Check, SubjectError, answers, foreign, verdict_of
from assay.audit.invariants.findings import few
from assay.audit.precision import Precisions, tolerance_for
from assay.core.streams import Stream, normals

VOCABULARY, LENGTH = 8, 3
"""Of signed responses: 512 draws can be told apart."""
MOST_UPDATES = 2048
"""A loop of small rows over all draws takes fewer; one that takes more may never end."""
DRIFT = 0.1
"""How far an update moves a logit, as a standard deviation."""


@dataclass(frozen=True)
class Trained:
    """The rows of one update.

    Attributes:
        prompt: the prompt that the trainer takes each row to answer, ``[B]``.
        response: tokens from the buffer, ``[B, T]``.
        logp_old: denominator of the ratio, ``[B, T]``.
        weight: what the update multiplies each token by to correct for another sampler, ``[B, T]``; None for 1.
    """

    prompt: Int[Tensor, " B"]
    response: Int[Tensor, "B T"]
    logp_old: Float[Tensor, "B T"]
    weight: Float[Tensor, "B T"] | None = None


class Signed:
    """A policy to run a buffering loop with: its responses say which draw they are, and every update moves it."""

    def __init__(self) -> None:
        self.version = 0
        self.drawn: list[tuple[int, int, Tensor]] = []
        """Prompt, version and log-probabilities of every draw."""

    def draw(self, prompt: Int[Tensor, " B"]) -> tuple[Int[Tensor, "B T"], Float[Tensor, "B T"]]:
        """Return a response to each prompt, and the log-probability of each of its tokens now."""
        first, base = len(self.drawn), torch.tensor([VOCABULARY**place for place in range(LENGTH)])
        if first + len(prompt) > VOCABULARY**LENGTH:
            raise SubjectError(f"the loop draws more than {VOCABULARY**LENGTH} responses; run fewer steps")
        response = torch.arange(first, first + len(prompt))[:, None] // base % VOCABULARY
        logp = self.score(prompt, response)
        self.drawn += [(int(p), self.version, row.clone()) for p, row in zip(prompt, logp, strict=True)]
        return response, logp

    def score(self, prompt: Int[Tensor, " B"], response: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        """Return the log-probability of each token under the weights as they stand."""
        first, drift = (
            torch.stack([normals(seed, Stream.INIT, LENGTH * VOCABULARY, problem=int(p)) for p in prompt])
            for seed in (0, 1)
        )
        logits = first + DRIFT * self.version * drift
        table = logits.view(-1, LENGTH, VOCABULARY).log_softmax(-1)
        return table.gather(-1, response[..., None])[..., 0]

    def update(self) -> None:
        """Move the weights, as an optimizer's step does."""
        self.version += 1


@answers("I7")
def buffered(
    loop: Callable[[Signed], Iterable[Trained]], *, uses: int | None = None, tolerance: float = TOLERANCE
) -> Check:
    """Run a loop that buffers responses, and check that each keeps its prompt and its denominator.

    Whatever is trained on, and however late, must be paired with the prompt it answers, and ``logp_old`` less the
    log of ``weight`` must be the log-probability it was drawn with. An update moves a log-probability by about 0.1, so
    a weight that is capped above 2 is whole here. A loop that never updates the policy could not run: whatever it
    divides by is then right.

    Args:
        loop: given a policy, draws with :meth:`Signed.draw`, yields the rows of each update, and then calls
            :meth:`Signed.update`.
        uses: how often each response is to be trained on; None where a loop may drop some.
        tolerance: relative, on a token's log-probability; wider where a loop computes in float32.
    """
    policy, gaps, taken, updates = Signed(), [], Counter[int](), 0
    seen = Precisions()
    for rows in _rows(loop, policy):
        gaps += _misplaced(rows, policy, updates)
        taken.update(_serial(rows.response))
        seen.see(rows.logp_old)
        updates += 1
    allowed, why = tolerance_for(seen.coarsest, tolerance, "relative, on a token's log-probability")
    found = few(line for gap, line in gaps if not gap <= allowed)
    wrong = [number for number in range(len(policy.drawn)) if uses is not None and taken[number] != uses]
    if wrong:
        prompt = policy.drawn[wrong[0]][0]
        found.append(f"draw {wrong[0]}, for prompt {prompt}: trained on {taken[wrong[0]]} times, not {uses}")
    if not gaps:
        raise SubjectError("the loop made no update, so nothing was trained on")
    if not policy.version and not found:
        raise SubjectError("the loop never calls update, so no response waits while the policy moves")
    return verdict_of(
        "I7",
        "a buffered response is trained with its own prompt and the log-probabilities of the policy that drew it",
        found,
        error=max(gap for gap, _ in gaps),
        tolerance=allowed,
        why=why,
        exactness=f"{len(policy.drawn)} draws in {updates} updates, {policy.version} of which moved the policy",
        remedy="keep prompt and log-probs of the draw beside each response, or weight by the policy that is scored",
    )


def _rows(loop: Callable[[Signed], Iterable[Trained]], policy: Signed) -> Iterable[Trained]:
    """Go through a loop's updates; whatever it raises on the way is its error."""
    updates, over = foreign("the loop", lambda: iter(loop(policy))), object()
    for _ in range(MOST_UPDATES):
        rows = foreign("the loop", next, updates, over)
        if rows is over:
            return
        _usable(rows)
        yield rows
    raise SubjectError(f"the loop makes more than {MOST_UPDATES} updates; run fewer steps")


def _usable(rows: object) -> None:
    """Raise a :class:`SubjectError` unless an update's rows are tensors of one length."""
    if not isinstance(rows, Trained):
        raise SubjectError(f"the loop yielded {type(rows).__name__}; need the Trained rows of one update")
    weight = rows.logp_old if rows.weight is None else rows.weight
    tensors = {"response": rows.response, "prompt": rows.prompt, "logp_old": rows.logp_old, "weight": weight}
    for name, made in tensors.items():
        real = name in ("logp_old", "weight")
        if not isinstance(made, Tensor) or made.is_meta or made.is_complex() or made.is_floating_point() != real:
            kind = "real numbers" if real else "whole numbers"
            raise SubjectError(f"the loop yielded a {name} of {_kind(made)}; need a tensor of {kind}")
        batch = rows.response.shape[:1]
        if made.shape != (batch if name == "prompt" else (*batch, LENGTH)):
            raise SubjectError(f"the loop yielded a {name} of shape {tuple(made.shape)}; need [B] and [B, {LENGTH}]")


def _kind(made: object) -> str:
    return str(made.dtype).removeprefix("torch.") if isinstance(made, Tensor) else type(made).__name__


def _serial(response: Int[Tensor, "B T"]) -> list[int]:
    numbers: list[int] = sum(response[:, place] * VOCABULARY**place for place in range(LENGTH)).tolist()
    return numbers


def _misplaced(rows: Trained, policy: Signed, update: int) -> list[tuple[float, str]]:
    """Return how far each row of an update is from what its draw had, and what is wrong where that is too far."""
    gaps = []
    divided = rows.logp_old.detach().double()
    divided = divided if rows.weight is None else divided - rows.weight.detach().double().log()
    for row, number in enumerate(_serial(rows.response)):
        tokens = rows.response[row]
        if number not in range(len(policy.drawn)) or int(tokens.min()) < 0 or int(tokens.max()) >= VOCABULARY:
            raise SubjectError(f"update {update} trains on tokens {tokens.tolist()}, which nobody drew")
        prompt, version, logp = policy.drawn[number]
        where = f"update {update}, row {row}"
        if prompt != int(rows.prompt[row]):
            gaps.append((math.inf, f"{where}: a response to prompt {prompt} is paired with {int(rows.prompt[row])}"))
            continue
        off = ((divided[row] - logp).abs() / (1 + logp.abs())).nan_to_num(nan=math.inf, posinf=math.inf)
        line = (
            f"{where}: drawn at version {version} with log-probs summing to "
            f"{float(logp.sum()):.6g}, divided by {float(divided[row].sum()):.6g} at version {policy.version}"
        )
        gaps.append((float(off.max()), line))
    return gaps
