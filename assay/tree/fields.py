"""The gradient fields that a loss can be compared with, exact by enumeration, over the logits of a tabular policy.

Most are gradients of a scalar. Two are not: in a *frozen-state* KL the visits to each prefix are held fixed
while the divergence there is differentiated, which is what a per-token KL in a loss does.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from assay.errors import InputError
from assay.tree.world import TreeProblem, World

Surrogate = Callable[[TreeProblem, Tensor], Tensor]


def expected_reward(problem: TreeProblem, logits: Float[Tensor, "I V"]) -> Float[Tensor, ""]:
    """``Σ_y p(y) r(y)``."""
    return (problem.tree.token_logp(logits).sum(1).exp() * problem.reward).sum()


def reverse_kl(problem: TreeProblem, logits: Float[Tensor, "I V"]) -> Float[Tensor, ""]:
    """``KL(policy ‖ reference)`` of the whole response."""
    logp, logp_ref = problem.tree.token_logp(logits).sum(1), problem.tree.token_logp(problem.logits_ref).sum(1)
    return (logp.exp() * (logp - logp_ref)).sum()


def forward_kl(problem: TreeProblem, logits: Float[Tensor, "I V"]) -> Float[Tensor, ""]:
    """``KL(reference ‖ policy)`` of the whole response."""
    logp, logp_ref = problem.tree.token_logp(logits).sum(1), problem.tree.token_logp(problem.logits_ref).sum(1)
    return (logp_ref.exp() * (logp_ref - logp)).sum()


def frozen_reverse_kl(problem: TreeProblem, logits: Float[Tensor, "I V"]) -> Float[Tensor, ""]:
    """``Σ_s visits(s) KL(policy at s ‖ reference at s)``, the policy's own visits held fixed."""
    logp, logp_ref = problem.tree.next_logp(logits), problem.tree.next_logp(problem.logits_ref)
    return (visits(problem, logits.detach()) * _kl(logp, logp_ref)).sum()


def frozen_forward_kl(problem: TreeProblem, logits: Float[Tensor, "I V"]) -> Float[Tensor, ""]:
    """``Σ_s visits(s) KL(reference at s ‖ policy at s)``, the policy's own visits held fixed."""
    logp, logp_ref = problem.tree.next_logp(logits), problem.tree.next_logp(problem.logits_ref)
    return (visits(problem, logits.detach()) * _kl(logp_ref, logp)).sum()


def entropy(problem: TreeProblem, logits: Float[Tensor, "I V"]) -> Float[Tensor, ""]:
    """``-Σ_y p(y) log p(y)`` of the whole response."""
    logp = problem.tree.token_logp(logits).sum(1)
    return -(logp.exp() * logp).sum()


def frozen_entropy(problem: TreeProblem, logits: Float[Tensor, "I V"]) -> Float[Tensor, ""]:
    """``Σ_s visits(s) entropy(policy at s)``, the visits held fixed: what an entropy bonus in a loss ascends."""
    logp = problem.tree.next_logp(logits)
    return -(visits(problem, logits.detach()) * _mean_under(logp, logp)).sum()


def expected_length(problem: TreeProblem, logits: Float[Tensor, "I V"]) -> Float[Tensor, ""]:
    """``Σ_y p(y) |y|``, in tokens."""
    return (problem.tree.token_logp(logits).sum(1).exp() * problem.tree.lengths).sum()


def reward_per_token(problem: TreeProblem, logits: Float[Tensor, "I V"]) -> Float[Tensor, ""]:
    """``Σ_y p(y) r(y) / |y|``."""
    return (problem.tree.token_logp(logits).sum(1).exp() * problem.reward / problem.tree.lengths).sum()


FIELDS: dict[str, Surrogate] = {
    "reward": expected_reward,
    "kl": reverse_kl,
    "forward_kl": forward_kl,
    "frozen_kl": frozen_reverse_kl,
    "frozen_forward_kl": frozen_forward_kl,
    "entropy": entropy,
    "frozen_entropy": frozen_entropy,
    "length": expected_length,
    "reward_per_token": reward_per_token,
}
"""Every field by the name that an objective is written with."""

_TERM = re.compile(r"([+-])(?:(\d+\.?\d*(?:e-?\d+)?|\.\d+)\*)?([a-z_]+)")


def visits(problem: TreeProblem, logits: Float[Tensor, "I V"]) -> Float[Tensor, " I"]:
    """Return the probability of reaching each inner node."""
    mass = problem.tree.token_logp(logits).sum(1).exp()
    reached = torch.zeros(len(logits), dtype=logits.dtype)
    states = problem.tree.states[problem.tree.mask]
    return reached.index_add(0, states, mass[:, None].expand_as(problem.tree.mask)[problem.tree.mask])


def field(name: str, problem: TreeProblem) -> Float[Tensor, " D"]:
    """Return one named field at the problem's policy, flattened over its logits."""
    leaf = problem.logits.detach().requires_grad_()
    return torch.autograd.grad(FIELDS[name](problem, leaf), leaf)[0].flatten()


def parse_objective(text: str) -> dict[str, float]:
    """Turn ``"reward - 0.03*kl"`` into coefficients by name; nothing is evaluated.

    Raises:
        InputError: it is not a sum of known names with plain coefficients.
    """
    compact = text.replace(" ", "")
    compact = compact if compact[:1] in ("+", "-") else f"+{compact}"
    matches = list(_TERM.finditer(compact))
    if not matches or "".join(match[0] for match in matches) != compact:
        raise InputError(f"objective {text!r}: expected a sum such as 'reward - 0.03*kl' of {', '.join(FIELDS)}")
    terms: dict[str, float] = {}
    for sign, coefficient, name in (match.groups() for match in matches):
        if name not in FIELDS:
            raise InputError(f"objective {text!r}: no objective is called {name!r}; there are {', '.join(FIELDS)}")
        terms[name] = terms.get(name, 0.0) + float(f"{sign}{coefficient or 1}")
    return terms


def objective_gradient(terms: dict[str, float], world: World) -> Float[Tensor, " D"]:
    """Return the gradient of a sum of objectives, meaned over the problems and flattened over all their logits."""
    parts = [
        torch.stack([coefficient * field(name, problem) for name, coefficient in terms.items()]).sum(0)
        for problem in world
    ]
    return torch.cat(parts) / len(world)


def _kl(logp: Float[Tensor, "I V"], logq: Float[Tensor, "I V"]) -> Float[Tensor, " I"]:
    return _mean_under(logp, logp) - _mean_under(logp, logq)


def _mean_under(logp: Float[Tensor, "I V"], value: Float[Tensor, "I V"]) -> Float[Tensor, " I"]:
    """Return ``Σ_v p(v) value(v)``; a token that the grammar forbids counts as nothing."""
    forbidden = logp == float("-inf")
    return (logp.exp() * value.masked_fill(forbidden, 0.0)).sum(-1)
