"""I8: what the sampler draws from and what the scorer scores with are one distribution.

Temperature, support and precision are the three ways in which they part. Every response of a small tree is
enumerated: its probability in the sampler against that of its score, under several settings of the sampler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from assay.audit.check import TOLERANCE, Check, SubjectError, answers, relative_gap, verdict_of
from assay.audit.invariants.decoding import Decoding, called, decodings_of
from assay.audit.invariants.findings import few
from assay.audit.invariants.readings import tensor_of
from assay.audit.precision import Precisions, tolerance_for
from assay.core.streams import Stream, normals
from assay.tree.prefix import Grammar, PrefixTree, prefix_tree

HALF = "half precision is not excused: these scores become ratios"


@answers("I8")
def scorer_agrees(
    sampler: Callable[..., Any],
    scorer: Callable[..., Any],
    *,
    decodings: Sequence[Decoding] | None = None,
    tolerance: float = TOLERANCE,
) -> Check:
    """Compare the probability of every response in the sampler with the exponential of its score.

    The scorer is whatever claims to know the log-probability of a drawn token: the trainer's, the denominator of a
    ratio, or what the sampler itself reports. Both are called with those of their settings that they name, out of
    the fields of :class:`Decoding`.

    Args:
        sampler: from ``logits [N, V]`` to the probabilities that next tokens are drawn with, ``[N, V]``.
        scorer: from ``logits [B, T, V]`` and ``tokens [B, T]`` to the log-probability of each token, ``[B, T]``.
        decodings: settings to try; None takes :func:`decodings_of` the sampler.
        tolerance: on the ratio of the two probabilities, less one; wider where a side computes in float32. Half
            precision gets no more room: what it rounds is a difference between sampler and trainer.
    """
    tree, logits = _tree()
    gaps: list[tuple[float, str]] = []
    along, tried = logits[tree.states], list(decodings or decodings_of(sampler))
    with Precisions() as seen:
        for decoding in tried:
            drawn = _path_product(tree, _distribution(sampler, logits, decoding, seen))
            score = called("the scorer", scorer, decoding, logits=along, tokens=tree.responses)
            scored = _read("the scorer", score, tree.responses.shape, seen)
            claimed = torch.where(tree.mask, scored, 0.0).sum(1).exp()
            off = torch.where(drawn > 0, (claimed / drawn - 1).abs(), claimed).nan_to_num(
                nan=float("inf"), posinf=float("inf")
            )
            gaps.append((float(off.max()), f"{decoding}: {_witness(tree, drawn, claimed, off)}"))
    allowed, why = _allowed(seen, tolerance, "on the ratio of both, less one; everything is float64")
    return verdict_of(
        "I8",
        "the sampler's probability of every response is the exponential of its score",
        few(line for gap, line in gaps if not gap <= allowed),
        error=max(gap for gap, _ in gaps),
        tolerance=allowed,
        why=why,
        exactness=f"{len(tree.responses)} responses under {len(tried)} settings of the sampler",
        remedy="score with the sampler's own temperature and over the tokens that it keeps",
    )


def _allowed(seen: Precisions, tolerance: float, why: str) -> tuple[float, str]:
    """Return the tolerance that a precision leaves, and why; half precision is what is looked for."""
    if torch.finfo(seen.coarsest).eps > torch.finfo(torch.float32).eps:
        return tolerance, HALF
    return tolerance_for(seen.coarsest, tolerance, why)


def _witness(
    tree: PrefixTree, drawn: Float[Tensor, " M"], claimed: Float[Tensor, " M"], off: Float[Tensor, " M"]
) -> str:
    """Name the shortest response that is off by nearly the most."""
    near = off >= 0.5 * off.max()
    row = int(torch.where(near, tree.lengths, tree.mask.shape[1] + 1).argmin())
    response = tree.responses[row, : int(tree.lengths[row])].tolist()
    ratio = f"ratio {float(claimed[row] / drawn[row]):.4f}" if drawn[row] > 0 else "it is never drawn"
    return f"response {response} is drawn with {float(drawn[row]):.6g}, scored {float(claimed[row]):.6g}: {ratio}"


def _entropy(logp: Float[Tensor, "N V"], logp_ref: Float[Tensor, "N V"]) -> Float[Tensor, " N"]:
    """Return the entropy of each distribution, in nats."""
    return -torch.where(logp.isinf(), 0.0, logp.exp() * logp).sum(-1)


def _kl(logp: Float[Tensor, "N V"], logp_ref: Float[Tensor, "N V"]) -> Float[Tensor, " N"]:
    """Return KL(policy ‖ reference) of each next token, in nats."""
    return torch.where(logp.isinf(), 0.0, logp.exp() * (logp - logp_ref)).sum(-1)


STATISTICS = {"entropy": _entropy, "kl": _kl}


@answers("I8")
def statistic_agrees(
    sampler: Callable[..., Any],
    statistic: Callable[..., Any],
    *,
    of: str,
    decodings: Sequence[Decoding] | None = None,
    tolerance: float = TOLERANCE,
) -> Check:
    """Compare an entropy or a KL with that of the distribution tokens are drawn from.

    Args:
        sampler: as for :func:`scorer_agrees`.
        statistic: called with what it names of ``logits [N, V]``, ``logits_ref [N, V]`` and the fields of
            :class:`Decoding`, a row for every prefix; returns ``[N]``.
        of: ``"entropy"`` or ``"kl"`` (per token, to the reference under the same settings).
        decodings: settings to try; None takes :func:`decodings_of` the sampler.
        tolerance: relative; wider where something computes in float32.
    """
    if of not in STATISTICS:
        raise SubjectError(f"of = {of!r}: expected one of {', '.join(STATISTICS)}")
    _, logits = _tree()
    logits_ref = logits + normals(1, Stream.INIT, logits.numel()).view(logits.shape)
    tried, gaps = list(decodings or decodings_of(sampler)), []
    with Precisions() as seen:
        for decoding in tried:
            policy, reference = (_distribution(sampler, made, decoding, seen) for made in (logits, logits_ref))
            exact = STATISTICS[of](policy.log(), reference.log())
            if not bool(exact.isfinite().all()):
                raise SubjectError(f"{decoding}: the {of} is infinite, since the reference keeps other tokens")
            made = called(f"the {of}", statistic, decoding, logits=logits, logits_ref=logits_ref)
            read = _read(f"the {of}", made, exact.shape, seen)
            row = int((read - exact).abs().nan_to_num(nan=float("inf")).argmax())
            values = f"reads {float(read[row]):.6g}; of what is drawn it is {float(exact[row]):.6g}"
            gaps.append((relative_gap(read, exact), f"{decoding}: the {of} after prefix {row} {values}"))
    allowed, why = _allowed(seen, tolerance, "relative; everything is float64")
    return verdict_of(
        "I8",
        f"the {of} is that of the distribution that tokens are drawn from",
        few(line for gap, line in gaps if not gap <= allowed),
        error=max(gap for gap, _ in gaps),
        tolerance=allowed,
        why=why,
        exactness=f"every prefix of a tree, under {len(tried)} settings of the sampler",
        remedy="compute it from the logits as they are sampled: over the temperature, over the tokens that are kept",
    )


def _tree() -> tuple[PrefixTree, Float[Tensor, "I V"]]:
    """Return a tree with short and long responses, and logits at its prefixes."""
    tree = prefix_tree(Grammar(tokens=4, max_length=2, end=0))
    shape = (len(tree.inner), 4)
    return tree, normals(2, Stream.INIT, shape[0] * shape[1]).view(shape)


def _path_product(tree: PrefixTree, table: Float[Tensor, "I V"]) -> Float[Tensor, " M"]:
    """Return the probability of each response, from those of next tokens."""
    steps = table[tree.states, tree.responses]
    return torch.where(tree.mask, steps, 1.0).prod(1)


def _distribution(
    sampler: Callable[..., Any], logits: Float[Tensor, "N V"], decoding: Decoding, seen: Precisions
) -> Float[Tensor, "N V"]:
    made = _read("the sampler", called("the sampler", sampler, decoding, logits=logits), logits.shape, seen)
    if not bool((made >= 0).all()) or not bool(((made.sum(-1) - 1).abs() < 1e-5).all()):
        raise SubjectError(f"the sampler under {decoding} returned no distribution: need rows >= 0 that sum to 1")
    return made


def _read(what: str, made: Any, shape: torch.Size, seen: Precisions) -> Float[Tensor, "*shape"]:
    values = tensor_of(what, made, shape)
    seen.see(made)
    return values
