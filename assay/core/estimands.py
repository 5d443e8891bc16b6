"""What an algorithm ascends under its settings, in words and as an objective that the audit can check."""

from __future__ import annotations

from assay.core._parts import STD_SCALED
from assay.core.estimator import Algorithm
from assay.core.settings import PLACEMENTS, Settings


def estimand(algorithm: Algorithm, settings: Settings) -> str:
    """Return what the expected update is, on and off policy, in sentences for a plan."""
    kl_inside = settings.kl == "reward"
    reward = "reward plus overlong penalty" if settings.overlong_length else "reward"
    goal = f"the expected {reward}"
    if kl_inside:
        goal += f" - {settings.beta:g} KL(policy ‖ reference)"
    names = {"J": goal, "R": "return" if kl_inside else reward}
    parts = [
        f"The expected update, on-policy, is {algorithm.on_policy.format(**names)}.",
        f"When another policy drew the responses it is {algorithm.off_policy.format(**names)}.",
        f"Tokens are averaged by {algorithm.weights.words}.",
    ]
    if settings.dynamic_sampling:
        parts.append(
            "Groups whose rewards are all equal are dropped from every count, which scales the update by one over the "
            "share of groups that stay."
        )
    if kl_inside and algorithm.advantage is STD_SCALED:
        parts.append("The KL is scaled as the rewards are, so its weight differs from problem to problem.")
    return " ".join([*parts, *_penalty(algorithm, settings), *_bonus(algorithm, settings)])


def objective(algorithm: Algorithm, settings: Settings, *, group_size: int) -> str | None:
    """Return the objective whose gradient is the on-policy expected update, or None where there is none of that form.

    Args:
        algorithm: one of :data:`assay.core.algorithms.ALGORITHMS`.
        settings: its settings.
        group_size: responses in every group.

    Returns:
        Such as ``"0.75*reward - 0.0225*kl"``, with names of :data:`assay.tree.fields.FIELDS`.
    """
    if algorithm.factor is None or settings.overlong_length or settings.dynamic_sampling:
        return None
    factor, scale = algorithm.factor(group_size, settings), _scale(algorithm, settings)
    terms = {"reward": factor}
    if settings.kl != "none":
        placement = PLACEMENTS[settings.kl]
        weight = factor if settings.kl == "reward" else scale if placement.own_weights else 1.0
        if placement.field:
            terms[placement.field] = -settings.beta * weight
    if settings.entropy:
        terms["frozen_entropy"] = settings.entropy * scale
    written = [f"{'-' if value < 0 else '+'} {_times(abs(value))}{name}" for name, value in terms.items()]
    return " ".join(written).removeprefix("+ ")


def _times(value: float) -> str:
    return "" if value == 1 else f"{value!r}*"


def _scale(algorithm: Algorithm, settings: Settings) -> float:
    """Return what the algorithm's weights are over those of token sums; it has a factor, so they are a constant."""
    over = algorithm.weights.over_token_sum
    return over(settings) if over else float("nan")


def _penalty(algorithm: Algorithm, settings: Settings) -> list[str]:
    if settings.kl in ("none", "reward"):
        return []
    placement = PLACEMENTS[settings.kl]
    what = f"The penalty, {settings.beta:g} times {settings.kl}, {placement.on_policy}"
    averaged = _averaged(algorithm) if placement.own_weights else ", by sums over tokens"
    same = settings.kl == "reward_to_go" and algorithm.any_sampler
    return [f"{what}{averaged}; off-policy, {'the same' if same else placement.off_policy}."]


def _bonus(algorithm: Algorithm, settings: Settings) -> list[str]:
    if not settings.entropy:
        return []
    what = (
        f"The bonus ascends {settings.entropy:g} times the entropy at each state, with the visits to states held fixed"
    )
    return [f"{what}{_averaged(algorithm)}; off-policy, the same, at the states that the sampler visits."]


def _averaged(algorithm: Algorithm) -> str:
    """Return what the algorithm's own weights make of a statement about sums over tokens."""
    if algorithm.weights.over_token_sum is None:
        where = f"by {algorithm.weights.words}, as here, it is the gradient of no such sum where lengths differ"
        return f" when summed over tokens; averaged {where}"
    return f", averaged by {algorithm.weights.words}"
