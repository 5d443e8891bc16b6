"""From hidden states to the log-probabilities of given tokens, a slice of the vocabulary at a time.

Logits are made a slice of the vocabulary at a time, in the forward and again in the backward, so that memory does not
grow with tokens times vocabulary. The forward leaves at most ``LEFT`` of them for its backward. Entropy and the exact
KL to a reference come from the same pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

SLICE = 2**19
"""Logits that are made at once."""
LEFT = 2**24
"""Logits that a forward leaves for its backward, which need not be made again: 64 MiB in float32."""
HIDDEN = -1e30
"""Logit of a token that cannot be drawn: its weight is zero, and sums of it over a vocabulary stay finite."""


@dataclass(frozen=True)
class Head:
    """The last map of a language model.

    Attributes:
        weight: ``[V, D]``.
        bias: ``[V]``, or None.
        scale: what logits are multiplied by: one over the temperature.
    """

    weight: Float[Tensor, "V D"]
    bias: Float[Tensor, " V"] | None
    scale: float

    def logits(self, hidden: Float[Tensor, "N D"], tokens: slice = slice(None)) -> Float[Tensor, "N _"]:
        """Return the scaled logits of a slice of the vocabulary."""
        made = hidden.to(self.weight.dtype) @ self.weight[tokens].T
        if self.bias is not None:
            made += self.bias[tokens]
        return made if self.scale == 1.0 else made.mul_(self.scale)


@dataclass(frozen=True)
class TokenLogp:
    """What is known of predicted tokens, all ``[M]``, in nats and with gradient.

    Attributes:
        logp: log-probability of each token.
        entropy: of the distribution that it was predicted from.
        kl: of that distribution to the reference's; None without one.
    """

    logp: Float[Tensor, " M"]
    entropy: Float[Tensor, " M"]
    kl: Float[Tensor, " M"] | None = None


def token_logp(
    head: Head,
    hidden: Float[Tensor, "N D"],
    row: Int[Tensor, " M"],
    token: Int[Tensor, " M"],
    *,
    cut: Float[Tensor, " N"] | None = None,
    reference: tuple[Head, Float[Tensor, "N D"]] | None = None,
) -> TokenLogp:
    """Return the log-probabilities of tokens, each predicted from one row of hidden states.

    Args:
        head: of the policy.
        hidden: N different states.
        row: the state that each token is predicted from.
        token: the tokens.
        cut: tokens whose scaled logit is below this are left out, as the sampler left them out; those in ``token``
            stay, because they were drawn. Held fixed in the gradient.
        reference: head and states of the reference at the same rows, for the exact KL; without gradient.
    """
    ref = None if reference is None else (reference[0], reference[1].detach())
    room = LEFT if torch.is_grad_enabled() else 0
    given = (hidden, head.weight, head.bias, head.scale, row, token, cut, ref, room)
    logp, entropy, kl = _TokenLogp.apply(*given)  # type: ignore[no-untyped-call]
    return TokenLogp(logp, entropy[row], None if reference is None else kl[row])


def support_cut(logits: Float[Tensor, "N V"], *, top_k: int = 0, top_p: float = 1.0) -> Float[Tensor, " N"] | None:
    """Return a bound for each row that the logits of the tokens which may be drawn are above, or None where all may.

    Top-k first, then top-p over what it left, as in :func:`assay.core.logprobs.processed_logp`. The bound is half-way
    between the smallest logit that is kept and the largest that is not, so that another forward's rounding moves
    neither across it; equal logits are kept together.
    """
    size = logits.shape[1]
    if (not top_k or top_k >= size) and top_p >= 1:
        return None
    ordered = logits.sort(-1, descending=True).values
    kept = torch.arange(size, device=logits.device) < (top_k or size)
    if top_p < 1:
        probability = ordered.masked_fill(~kept, float("-inf")).softmax(-1)
        kept = kept & (probability.cumsum(-1) - probability < top_p)
    last = kept.expand_as(ordered).sum(-1, keepdim=True) - 1
    ends = ordered.gather(1, torch.cat([last, (last + 1).clamp(max=size - 1)], 1))
    return ends.mean(1).masked_fill(last[:, 0] == size - 1, float("-inf"))


class _TokenLogp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        scale: float,
        row: Tensor,
        token: Tensor,
        cut: Tensor | None,
        reference: tuple[Head, Tensor] | None,
        room: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        head = Head(weight, bias, scale)
        with torch.autocast(hidden.device.type, enabled=False):
            chosen = hidden.new_empty(len(token), dtype=weight.dtype)
            sums, sums_ref = _Sums(len(hidden), weight), _Sums(len(hidden), weight)
            gap = torch.zeros_like(sums.top)
            left: dict[int, Tensor] = {}
            for tokens, inside in _slices(head, len(hidden), token):
                logits = _kept(head.logits(hidden, tokens), cut, row[inside], token[inside] - tokens.start)
                chosen[inside] = logits[row[inside], token[inside] - tokens.start]
                if logits.numel() <= room:
                    left[tokens.start], room = logits, room - logits.numel()
                if reference is None:
                    sums.add(logits)
                    continue
                logits_ref = reference[0].logits(reference[1], tokens)
                difference = logits - logits_ref
                sums_ref.add(logits_ref)
                before = sums.top
                part = sums.add(logits)
                gap = gap * (before - sums.top).exp() + (part * difference).sum(-1)
            lse = sums.lse
            kl = gap / sums.total - lse + sums_ref.lse if reference else torch.zeros_like(lse)
            entropy = sums.entropy
        ctx.save_for_backward(hidden, weight, bias, row, token, cut, lse, sums_ref.lse, entropy, kl)
        ctx.scale, ctx.reference, ctx.left = scale, reference, left
        return chosen - lse[row], entropy, kl

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, row, token, cut, lse, lse_ref, entropy, kl = ctx.saved_tensors
        on_logp, on_entropy, on_kl = grads
        head = Head(weight, bias, ctx.scale)
        states = hidden.to(weight.dtype)
        drawn = torch.zeros_like(lse).index_add_(0, row, on_logp)
        bends = bool(on_entropy.any()), bool(on_kl.any())
        grad_hidden = torch.zeros_like(states)
        grad_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        grad_bias = torch.empty_like(bias) if bias is not None and ctx.needs_input_grad[2] else None
        with torch.autocast(hidden.device.type, enabled=False):
            for tokens, inside in _slices(head, len(hidden), token):
                at = row[inside], token[inside] - tokens.start
                logits = ctx.left.pop(tokens.start, None)
                if logits is None:
                    logits = _kept(head.logits(hidden, tokens), cut, *at)
                logp = logits.sub_(lse[:, None])
                pull = (-drawn)[:, None]
                if bends[0]:
                    pull = pull - on_entropy[:, None] * (logp + entropy[:, None])
                if bends[1]:
                    logp_ref = ctx.reference[0].logits(ctx.reference[1], tokens).sub_(lse_ref[:, None])
                    pull = pull + on_kl[:, None] * (logp - logp_ref - kl[:, None])
                slope = logp.exp_().mul_(pull)
                slope.index_put_(at, on_logp[inside], accumulate=True)
                if ctx.scale != 1.0:
                    slope.mul_(ctx.scale)
                grad_hidden.addmm_(slope, weight[tokens])
                if grad_weight is not None:
                    torch.mm(slope.T, states, out=grad_weight[tokens])
                if grad_bias is not None:
                    grad_bias[tokens] = slope.sum(0)
        return grad_hidden.to(hidden.dtype), grad_weight, grad_bias, None, None, None, None, None, None


class _Sums:
    """Running sums over the slices of a vocabulary, each row relative to its largest logit so far."""

    def __init__(self, rows: int, like: Tensor) -> None:
        self.top = like.new_full((rows,), float("-inf"))
        self.total = like.new_zeros(rows)
        self.weighted = like.new_zeros(rows)

    def add(self, logits: Float[Tensor, "N W"]) -> Float[Tensor, "N W"]:
        """Take in a slice of logits, and return their weights relative to the largest so far."""
        top = torch.maximum(self.top, logits.amax(-1))
        lift = self.top - top
        shrink = lift.exp()
        below = logits - top[:, None]
        weights = below.exp()
        moved = torch.where(self.total > 0, lift * self.total, 0.0)
        self.weighted = (self.weighted + moved) * shrink + below.mul_(weights).sum(-1)
        self.total = self.total * shrink + weights.sum(-1)
        self.top = top
        return weights

    @property
    def lse(self) -> Float[Tensor, " N"]:
        return self.top + self.total.log()

    @property
    def entropy(self) -> Float[Tensor, " N"]:
        return self.total.log() - self.weighted / self.total


def _slices(head: Head, rows: int, token: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Cut the vocabulary into slices, each with the indices of the tokens that are in it."""
    width = max(256, SLICE // max(rows, 1))
    for first in range(0, len(head.weight), width):
        last = min(first + width, len(head.weight))
        yield slice(first, last), ((token >= first) & (token < last)).nonzero()[:, 0]


def _kept(logits: Tensor, cut: Tensor | None, row: Tensor, token: Tensor) -> Tensor:
    """Push logits below the cut out of reach, but for the tokens that were drawn."""
    if cut is None:
        return logits
    low = logits < cut[:, None]
    low[row, token] = False
    return logits.masked_fill_(low, HIDDEN)
