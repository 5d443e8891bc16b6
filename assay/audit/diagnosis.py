"""Why a loss ascends something else, and the one change that would mend it, where that is known.

Each rule reads the attribution alone: what is ascended, with which coefficients. Rules are tried in order; the first
that explains what was found speaks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from assay.audit.curl import CURL_ROUNDING, Curl
from assay.audit.expectation import Design
from assay.tree.attribution import Attribution

CLOSE = 1e-6


@dataclass(frozen=True)
class Diagnosis:
    """What is known about a disagreement.

    Attributes:
        because: why, in words; empty when nothing is known.
        remedy: the change that would make the claim hold.
    """

    because: str = ""
    remedy: str = ""


def diagnose(
    stated: Mapping[str, float],
    ascends: Attribution,
    by_problem: Mapping[str, Attribution],
    curl: Curl | None,
    design: Design,
) -> Diagnosis:
    """Return why a loss does not ascend what is stated.

    Args:
        stated: coefficients of the objective by name.
        ascends: what the loss ascends over all problems.
        by_problem: what it ascends on each.
        curl: of the field, where it was measured.
        design: how batches were made.
    """
    made = ascends.coefficients
    if not ascends.exact:
        return _inexact(stated, by_problem, curl, design)
    if not made:
        return Diagnosis("nothing is pushed on average", "let the advantage or the penalty depend on the response")
    ratio = _common_ratio(made, stated)
    if ratio is not None:
        return _scaled(ratio, design)
    return _other_terms(made, stated)


def _scaled(ratio: float, design: Design) -> Diagnosis:
    if design.accept is not None:
        return Diagnosis(f"groups are drawn again, which scales the gradient by {ratio:.6g}", "")
    size = design.sizes[0] if len(set(design.sizes)) == 1 else None
    if size and math.isclose(ratio, (size - 1) / size, rel_tol=CLOSE):
        return Diagnosis(
            "(G - 1)/G of it, as when the baseline contains its own sample",
            "subtract the mean of the other responses, or multiply by G/(G - 1)",
        )
    if math.isclose(ratio, -1, rel_tol=CLOSE):
        return Diagnosis("the sign is turned round", "return minus this loss: it is minimised")
    if ratio < 0:
        return Diagnosis("the sign is turned round, and the size is another", "return minus this loss, and rescale")
    if size and math.isclose(ratio, size, rel_tol=CLOSE):
        return Diagnosis("it sums over the group", "divide by the number of responses")
    if size and math.isclose(ratio, (size - 1), rel_tol=CLOSE):
        return Diagnosis("it sums over the group, the baseline contains its own sample", "divide by G - 1")
    return Diagnosis(f"the direction is right and the size is {ratio:.6g} of it", f"divide by {ratio:.6g}")


_FORCES_OF_KL = {"kl", "frozen_kl", "forward_kl", "frozen_forward_kl", "sampler_kl"}


def _other_terms(made: Mapping[str, float], stated: Mapping[str, float]) -> Diagnosis:
    other_way = set(made) & {"forward_kl", "frozen_forward_kl"} - set(stated)
    if "surrogate" in made and "reward" in stated:
        return Diagnosis(
            "the ratio of each token ascends the surrogate at the sampler's visits",
            "weigh each response by its whole ratio, or declare surrogate",
        )
    if "kl" in stated and not set(made) & _FORCES_OF_KL and set(made) & {"entropy", "frozen_entropy"}:
        return Diagnosis(
            "the penalty forgets its reference: it is an entropy bonus", "subtract logp_ref inside the penalty"
        )
    if "kl" in stated and not set(made) & _FORCES_OF_KL:
        return Diagnosis(
            "the KL term pushes nothing on average: k1 in the loss, or a detached one",
            "put the penalty into the reward: reward - beta * (logp - logp_ref).sum(), detached",
        )
    if other_way and "kl" in made:
        return Diagnosis(
            "k3 in the reward: the KL's gradient, less that of the other direction", "put k1 into the reward"
        )
    if other_way:
        return Diagnosis(
            "k3 in the loss ascends the other direction, KL(reference to policy)",
            "multiply k3 by exp(logp - logp_old), or put k1 into the reward",
        )
    if "frozen_kl" in made and "kl" in stated:
        return Diagnosis(
            "a per-token KL in the loss is the KL at frozen states: it drops what a token does to later states",
            "put k1 into the reward, or declare frozen_kl",
        )
    flipped = [name for name in made if name in stated and math.isclose(made[name], -stated[name], rel_tol=CLOSE)]
    if flipped:
        return Diagnosis(f"the sign of {flipped[0]} is turned round", f"turn the sign of the {flipped[0]} term")
    missing = [name for name in stated if name not in made]
    extra = [name for name in made if name not in stated]
    if missing and not extra:
        return Diagnosis(f"{missing[0]} pushes nothing on average", "")
    if extra and not missing:
        return Diagnosis(f"it also ascends {extra[0]}", f"declare {extra[0]}, or remove it")
    if extra:
        return Diagnosis(f"it ascends {extra[0]} in place of {missing[0]}", f"declare {extra[0]}")
    name = next(name for name in stated if not math.isclose(made[name], stated[name], rel_tol=CLOSE))
    return Diagnosis(f"{name} counts {made[name] / stated[name]:.6g} times what is stated", "")


def _inexact(
    stated: Mapping[str, float], by_problem: Mapping[str, Attribution], curl: Curl | None, design: Design
) -> Diagnosis:
    each = [_common_ratio(made.coefficients, stated) for made in by_problem.values() if made.exact]
    if len(each) == len(by_problem) and all(ratio is not None for ratio in each):
        weights = ", ".join(f"{ratio:.4g}" for ratio in each)
        own = f"each problem's gradient is right but weighed by its own factor ({weights})"
        if design.accept is not None:
            return Diagnosis(f"{own}: groups are drawn again")
        if len(set(design.sizes)) > 1:
            return Diagnosis(f"{own}: groups count by their rows", "divide each group's sum by its own number of rows")
        return Diagnosis(
            f"{own}, as when a statistic of the group's rewards divides",
            "do not divide by the group's standard deviation or success rate",
        )
    exact = [made.coefficients for made in by_problem.values() if made.exact]
    if exact and all(set(made) & {"reward_per_token", "inverse_length"} for made in exact):
        return Diagnosis(
            "each response is divided by its own length", "divide by a constant, the same for every response"
        )
    if curl is not None and curl.asymmetry > CURL_ROUNDING:
        return Diagnosis("it is the gradient of nothing")
    return Diagnosis()


def _common_ratio(made: Mapping[str, float], stated: Mapping[str, float]) -> float | None:
    """Return the factor that turns one sum into the other, or None."""
    if not made or set(made) != set(stated):
        return None
    ratios = [made[name] / stated[name] for name in stated]
    return ratios[0] if all(math.isclose(ratio, ratios[0], rel_tol=CLOSE) for ratio in ratios) else None
