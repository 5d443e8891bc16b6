"""The gradient fields that a loss can be compared with, exact by enumeration, over the logits of a tabular policy.

Most are gradients of a scalar. The *frozen-state* ones are not: there the visits to each prefix are held fixed while
the divergence at it is differentiated, which is what a per-token KL in a loss does.

Where the reward is 0 or 1, the expected reward is the success probability p; the reweighted objectives are functions
of it, so on one problem they are the reward's gradient times a factor that depends on p.
"""

from __future__ import annotations

import functools
import math
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
    """``Σ_y p(y) |y|``, in tokens that the policy chose."""
    return (problem.tree.token_logp(logits).sum(1).exp() * problem.mask.sum(1)).sum()


def reward_per_token(problem: TreeProblem, logits: Float[Tensor, "I V"]) -> Float[Tensor, ""]:
    """``Σ_y p(y) r(y) / |y|``."""
    return (problem.tree.token_logp(logits).sum(1).exp() * problem.reward / problem.mask.sum(1)).sum()


def inverse_length(problem: TreeProblem, logits: Float[Tensor, "I V"]) -> Float[Tensor, ""]:
    """``Σ_y p(y) / |y|``: what a baseline leaves when each response is divided by its own length."""
    return (problem.tree.token_logp(logits).sum(1).exp() / problem.mask.sum(1)).sum()


def surrogate(problem: TreeProblem, logits: Float[Tensor, "I V"]) -> Float[Tensor, ""]:
    """``Σ_y q(y) r(y) Σ_t p(y_t) / q(y_t)`` under the sampler q: what an unclipped ratio of each token ascends.

    It equals ``Σ_s visits_q(s) Σ_a p(a|s) Q_q(s, a)``: the policy chooses one token, the sampler all the others. A
    response that the sampler never draws counts for nothing.

    Source: Kakade and Langford, "Approximately optimal approximate reinforcement learning", 2002.
    """
    drawn = problem.tree.token_logp(problem.draws).detach()
    gap = problem.tree.token_logp(logits) - drawn.masked_fill(drawn.isinf(), 0.0)
    return (drawn.sum(1).exp() * problem.reward * (gap.exp() * problem.mask).sum(1)).sum()


def sampler_kl(problem: TreeProblem, logits: Float[Tensor, "I V"]) -> Float[Tensor, ""]:
    """``Σ_s visits_q(s) KL(policy at s ‖ reference at s)`` under the sampler q: the KL that goes with the surrogate.

    On-policy it is the frozen-state reverse KL.
    """
    logp, logp_ref = problem.tree.next_logp(logits), problem.tree.next_logp(problem.logits_ref)
    return (visits(problem, problem.draws.detach()) * _kl(logp, logp_ref)).sum()


def log_reward(problem: TreeProblem, logits: Float[Tensor, "I V"]) -> Float[Tensor, ""]:
    """``log p``, the likelihood of success: raises hard problems most."""
    return _success(problem, logits, "log_reward").log()


def arcsin_reward(problem: TreeProblem, logits: Float[Tensor, "I V"]) -> Float[Tensor, ""]:
    """``2 arcsin √p``, whose gradient is ``∇p / √(p (1 - p))``: the limit of scaling by a large group's deviation."""
    return 2 * _success(problem, logits, "arcsin_reward").sqrt().arcsin()


def best_reward(problem: TreeProblem, logits: Float[Tensor, "I V"], responses: int) -> Float[Tensor, ""]:
    """Return the expected largest reward among some independent responses.

    Where the reward is 0 or 1 that is pass@k, ``1 - (1 - p)^k``.
    """
    order = problem.reward.argsort()
    at_most = problem.tree.token_logp(logits).sum(1).exp()[order].cumsum(0).pow(responses)
    return (at_most.diff(prepend=at_most.new_zeros(1)) * problem.reward[order]).sum()


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
    "inverse_length": inverse_length,
}
"""The fields that an expected gradient is written in: no two are proportional on a problem of several tokens."""

OBJECTIVES: dict[str, Surrogate] = {
    **FIELDS,
    "surrogate": surrogate,
    "sampler_kl": sampler_kl,
    "log_reward": log_reward,
    "arcsin_reward": arcsin_reward,
}
"""Every field by the name that an objective is written with; ``pass_at_1``, ``pass_at_2`` and so on besides."""

ROUNDING = 1e-12
"""An expected reward this close to 0 or 1 is no rate between them."""
_TERM = re.compile(r"([+-])(?:(\d+\.?\d*(?:e-?\d+)?|\.\d+)\*)?([a-z_][a-z_0-9]*)")
_PASS_AT = re.compile(r"pass_at_([1-9]\d{0,5})")


def visits(problem: TreeProblem, logits: Float[Tensor, "I V"]) -> Float[Tensor, " I"]:
    """Return the probability of reaching each inner node."""
    mass = problem.tree.token_logp(logits).sum(1).exp()
    reached = torch.zeros(len(logits), dtype=logits.dtype)
    states = problem.tree.states[problem.tree.mask]
    return reached.index_add(0, states, mass[:, None].expand_as(problem.tree.mask)[problem.tree.mask])


def scalar_of(name: str) -> Surrogate:
    """Return what a named field is the derivative of, as a function of a problem and the policy's logits."""
    numbered = _PASS_AT.fullmatch(name)
    return functools.partial(best_reward, responses=int(numbered[1])) if numbered else OBJECTIVES[name]


def field(name: str, problem: TreeProblem) -> Float[Tensor, " D"]:
    """Return one named field at the problem's policy, flattened over its logits."""
    leaf = problem.logits.detach().requires_grad_()
    return torch.autograd.grad(scalar_of(name)(problem, leaf), leaf)[0].flatten()


def parse_objective(text: str) -> dict[str, float]:
    """Turn ``"reward - 0.03*kl"`` into coefficients by name; nothing is evaluated.

    Raises:
        InputError: it is not a sum of known names with plain coefficients.
    """
    compact = text.replace(" ", "")
    compact = compact if compact[:1] in ("+", "-") else f"+{compact}"
    matches = list(_TERM.finditer(compact))
    if not matches or "".join(match[0] for match in matches) != compact:
        raise InputError(f"objective {text!r}: expected a sum such as 'reward - 0.03*kl' of {_names()}")
    terms: dict[str, float] = {}
    for sign, coefficient, name in (match.groups() for match in matches):
        if name not in OBJECTIVES and not _PASS_AT.fullmatch(name):
            raise InputError(f"objective {text!r}: no objective is called {name!r}; there are {_names()}")
        terms[name] = terms.get(name, 0.0) + float(f"{sign}{coefficient or 1}")
    terms = {name: value for name, value in terms.items() if value}
    if not terms or not all(math.isfinite(value) for value in terms.values()):
        raise InputError(f"objective {text!r}: need a term that is not zero, and finite coefficients")
    return terms


def objective_gradient(terms: dict[str, float], world: World) -> Float[Tensor, " D"]:
    """Return the gradient of a sum of objectives, meaned over the problems and flattened over all their logits."""
    parts = [
        torch.stack([coefficient * field(name, problem) for name, coefficient in terms.items()]).sum(0)
        for problem in world
    ]
    return torch.cat(parts) / len(world)


def _names() -> str:
    return ", ".join([*OBJECTIVES, "pass_at_K"])


def _success(problem: TreeProblem, logits: Float[Tensor, "I V"], name: str) -> Float[Tensor, ""]:
    """Return the expected reward, where it can be a probability of success."""
    p = expected_reward(problem, logits)
    if not ROUNDING < float(p.detach()) < 1 - ROUNDING:
        raise InputError(
            f"objective {name!r}: problem {problem.name!r} has expected reward {float(p.detach()):.6g}; it needs one "
            f"between 0 and 1"
        )
    return p


def _kl(logp: Float[Tensor, "I V"], logq: Float[Tensor, "I V"]) -> Float[Tensor, " I"]:
    return _mean_under(logp, logp) - _mean_under(logp, logq)


def _mean_under(logp: Float[Tensor, "I V"], value: Float[Tensor, "I V"]) -> Float[Tensor, " I"]:
    """Return ``Σ_v p(v) value(v)``; a token that the grammar forbids counts as nothing."""
    forbidden = logp == float("-inf")
    return (logp.exp() * value.masked_fill(forbidden, 0.0)).sum(-1)
