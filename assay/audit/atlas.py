"""The atlas: our losses against every objective, on and off policy, and the identities that tie them, all enumerated.

The documentation builds its page from here, so that it says what the code does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from assay.audit.adapters.own import SUBJECTS
from assay.audit.call import Loss
from assay.audit.curl import curl
from assay.audit.expectation import Accept, Design, expected_ascent
from assay.audit.losses import loss
from assay.audit.subjects import Subject
from assay.core.algorithms import ALGORITHMS
from assay.threads import one_thread
from assay.tree.attribution import attribute
from assay.tree.fields import OBJECTIVES, expected_reward, field
from assay.tree.world import World
from assay.tree.worlds import small_world

SIZES = (2, 4, 8)
BETA = 0.1
KL_PLACEMENTS = (
    "reward",
    "reward_to_go",
    "k1_loss",
    "k2_loss",
    "k3_loss",
    "k3_ratio_loss",
    "exact_token_loss",
    "k2_sequence_loss",
    "k3_sequence_loss",
    "exact_sequence_loss",
)


@dataclass(frozen=True)
class Entry:
    """One loss, one policy, one group size.

    Attributes:
        loss: name of the algorithm.
        settings: what was set, as ``key=value``.
        policy: ``"on"`` or ``"off"``: whether the policy that is trained drew the responses.
        group_size: responses in a group.
        objective: what it is compared with: the expected reward, less the KL penalty where there is one.
        ascends: the combination of known gradients that it is, by name; None when none was found.
        fits: for each objective alone, the coefficient of the best fit and what it leaves of the update.
        bias: distance of the expected update from the objective's gradient, over that gradient.
        variance: trace of the covariance of one group's update.
        variance_ratio: that, over leave-one-out's on the reward, on-policy.
        curl: asymmetry of the update's derivative; 0 for the gradient of something.
        invariants: verdict by name.
    """

    loss: str
    settings: str
    policy: str
    group_size: int
    objective: str
    ascends: dict[str, float] | None
    fits: dict[str, tuple[float, float]]
    bias: float
    variance: float
    variance_ratio: float
    curl: float
    invariants: dict[str, str]


@dataclass(frozen=True)
class Identity:
    """Something that is known on paper, beside what enumeration finds.

    Attributes:
        statement: in words.
        case: group size and problem.
        expected: by the formula.
        found: by enumerating every group.
    """

    statement: str
    case: str
    expected: float
    found: float

    @property
    def gap(self) -> float:
        """Return the absolute difference."""
        return abs(self.expected - self.found)


def atlas_world(*, off_policy: bool = False) -> World:
    """Return the world of the atlas: two problems with four responses of one to three tokens, one of them truncated."""
    return small_world(tokens=2, max_length=3, off_policy=off_policy)


def atlas() -> dict[str, Any]:
    """Return the whole atlas as plain values, ready for JSON."""
    with one_thread():
        made = [asdict(entry) for entry in entries()]
        known = [{**asdict(identity), "gap": identity.gap} for identity in identities()]
    return {"world": atlas_world.__doc__, "entries": made, "identities": known}


def entries() -> Iterator[Entry]:
    """Yield every entry: algorithms at their defaults, then KL placements and an entropy bonus on leave-one-out."""
    cases: list[tuple[str, dict[str, str], str]] = [(name, {}, "reward") for name in ALGORITHMS]
    cases += [("rloo", {"beta": str(BETA), "kl": placement}, f"reward - {BETA}*kl") for placement in KL_PLACEMENTS]
    cases.append(("rloo", {"entropy": str(BETA)}, f"reward + {BETA}*entropy"))
    for name, settings, objective in cases:
        for off_policy in (False, True):
            world, subject = atlas_world(off_policy=off_policy), SUBJECTS[f"assay.{name}"](settings)
            bend = _asymmetry(subject.loss, world, SIZES[0])
            for size in SIZES:
                yield _entry(name, subject, settings, objective, world, size, off_policy, bend)


def _entry(
    name: str,
    subject: Subject,
    settings: Mapping[str, str],
    objective: str,
    world: World,
    size: int,
    off_policy: bool,
    bend: float,
) -> Entry:
    report = loss(subject, objective=objective, group_size=size, world=world, measure_curl=False)
    ascent = _ascent(name, settings, size, world)
    fits = {}
    for known in OBJECTIVES:
        direction = torch.cat([field(known, problem) for problem in world])
        made = attribute(ascent, {known: direction}, scale=float(direction.norm()), nearest=(known,), longest=1)
        fits[known] = (made.coefficients.get(known, 0.0), made.residual)
    first = next(claim for claim in report.claims if claim.name.startswith("I1"))
    assert report.variance is not None and report.variance_ratio is not None and report.ascends is not None
    return Entry(
        loss=name,
        settings=" ".join(f"{key}={value}" for key, value in settings.items()),
        policy="off" if off_policy else "on",
        group_size=size,
        objective=objective,
        ascends=dict(report.ascends.coefficients) if report.ascends.exact else None,
        fits=fits,
        bias=first.error,  # type: ignore[attr-defined]
        variance=report.variance,
        variance_ratio=report.variance_ratio,
        curl=bend,
        invariants={claim.name.split()[0]: str(claim.verdict) for claim in report.claims if claim.name[:1] == "I"},
    )


def identities() -> Iterator[Identity]:
    """Yield the identities: each is measured on problems where it has a closed form."""
    binary, single = atlas_world()[:1], small_world(tokens=4, max_length=1, end=None)[:1]
    p, q = (float(expected_reward(world[0], world[0].logits)) for world in (binary, single))
    for size in SIZES:
        case = f"G = {size}, p = {p:.4f}"
        kept = 1 - p**size - (1 - p) ** size
        to_order = sum((1 - p) ** k for k in range(size - 1))
        best = size * (1 - p) ** (size - 1)
        yield Identity("leave-one-out: 1", case, 1.0, _coefficient("rloo", {}, size, binary))
        yield Identity(
            "a baseline with its own sample in it: (G - 1)/G",
            case,
            (size - 1) / size,
            _coefficient("mean_centred", {}, size, binary),
        )
        yield Identity(
            "scaled by the group's deviation: c_G(p)",
            f"G = {size}, p = {q:.4f}",
            std_factor(q, size),
            _coefficient("grpo", {"eps": "0"}, size, single),
        )
        yield Identity("MaxRL: sum of (1 - p)^k to k = G - 2", case, to_order, _coefficient("maxrl", {}, size, binary))
        yield Identity(
            "pass@k with k = G: G (1 - p)^(G - 1)",
            case,
            best,
            _coefficient("pass_at_k", {"k": str(size)}, size, binary),
        )
        yield Identity(
            "groups of one reward drawn again: 1 / (1 - p^G - (1 - p)^G)",
            case,
            1 / kept,
            _coefficient("rloo", {}, size, binary, accept=lambda reward: bool(reward.min() < reward.max())),
        )
    yield from _kl_identities()
    yield from _off_policy_identities()
    yield from _curl_identities()


def std_factor(p: float, size: int) -> float:
    """Return c_G(p): what std-scaling multiplies the gradient of a success probability by.

    ``c_G(p) = Σ_k C(G,k) p^k (1-p)^(G-k) k (G-k) / (G² p (1-p) s_k)`` with ``s_k = sqrt(k (G-k) / (G (G-1)))``, the
    deviation of k ones among G. It is the same for every p when G is 2 or 3.
    """
    total = 0.0
    for k in range(1, size):
        spread = math.sqrt(k * (size - k) / (size * (size - 1)))
        chance = math.comb(size, k) * p**k * (1 - p) ** (size - k)
        total += chance * k * (size - k) / (size**2 * p * (1 - p) * spread)
    return total


_KL_FORCES = {
    "reward": ("kl", "k1 in the reward: the KL of the response"),
    "reward_to_go": ("kl", "k1 in the reward to go: the KL of the response"),
    "k2_sequence_loss": ("kl", "k2 of the response in the loss: the KL of the response"),
    "exact_sequence_loss": ("kl", "exact per-token KL with its effect on later states: the KL of the response"),
    "k3_loss": ("frozen_forward_kl", "k3 of each token in the loss: the other direction, at frozen states"),
    "k3_sequence_loss": ("forward_kl", "k3 of the response in the loss: the other direction"),
    "k2_loss": ("frozen_kl", "k2 of each token in the loss: the KL at frozen states"),
    "k3_ratio_loss": ("frozen_kl", "k3 times the ratio, of each token: the KL at frozen states"),
    "exact_token_loss": ("frozen_kl", "exact per-token KL in the loss: the KL at frozen states"),
}


def _kl_identities() -> Iterator[Identity]:
    """Yield what each placement of a KL penalty descends, of the field it is known by; the reward's part taken off."""
    world, size = atlas_world(), 2
    plain = _ascent("rloo", {}, size, world)
    for placement, (known, statement) in _KL_FORCES.items():
        push = plain - _ascent("rloo", {"beta": str(BETA), "kl": placement}, size, world)
        yield Identity(statement, f"G = {size}", BETA, _multiple(push, known, world))
    nothing = plain - _ascent("rloo", {"beta": str(BETA), "kl": "k1_loss"}, size, world)
    yield Identity("k1 in the loss: nothing (norm of the push)", f"G = {size}", 0.0, float(nothing.norm()))
    bonus = _ascent("rloo", {"entropy": str(BETA)}, size, world) - plain
    yield Identity(
        "entropy bonus in the loss: entropy at frozen states",
        f"G = {size}",
        BETA,
        _multiple(bonus, "frozen_entropy", world),
    )


def _off_policy_identities() -> Iterator[Identity]:
    world, size, case = atlas_world(off_policy=True), 2, "G = 2, off-policy"
    unclipped = {"clip_low": "1", "clip_high": "1e9"}
    yield Identity(
        "ratio of the whole response: the reward's gradient, at any policy",
        case,
        1.0,
        _multiple(_ascent("sequence_is", {}, size, world), "reward", world),
    )
    yield Identity(
        "ratio of each token, unclipped: the surrogate at the sampler's visits",
        case,
        1.0,
        _multiple(_ascent("ppo", unclipped, size, world), "surrogate", world),
    )


def _curl_identities() -> Iterator[Identity]:
    """Yield that a sum over tokens is a gradient; the entries show that one over each response's length is none."""
    world = atlas_world()
    bend = _asymmetry(SUBJECTS["assay.rloo"]({}).loss, world, 2)
    yield Identity("a sum over tokens is the gradient of something (asymmetry)", "G = 2", 0.0, bend)


def _asymmetry(loss: Loss, world: World, size: int) -> float:
    made = curl(loss, world, Design((size,) * len(world)))
    assert made is not None
    return made.asymmetry


def _ascent(
    name: str, settings: Mapping[str, str], size: int, world: World, accept: Accept | None = None
) -> Float[Tensor, " D"]:
    """Return the expected ascent, summed over the problems."""
    design = Design((size,) * len(world), accept=accept)
    return expected_ascent(SUBJECTS[f"assay.{name}"](settings).loss, world, design).ascent * len(world)


def _multiple(push: Float[Tensor, " D"], known: str, world: World) -> float:
    """Return which multiple of a known gradient a push is; NaN where it is none."""
    direction = torch.cat([field(known, problem) for problem in world])
    made = attribute(push, {known: direction}, scale=float(direction.norm()), nearest=(known,), longest=1)
    return made.coefficients.get(known, 0.0) if made.exact else math.nan


def _coefficient(
    name: str, settings: Mapping[str, str], size: int, world: World, accept: Accept | None = None
) -> float:
    """Return the coefficient of the reward's gradient in an expected ascent."""
    return _multiple(_ascent(name, settings, size, world, accept), "reward", world)
