"""An estimator: an advantage, a matrix of terms and a matrix of weights, with its estimand in words.

A whole batch is first :func:`prepare`-d: rewards are shaped, rows that leave it are dropped from every count, and
advantages are computed, each from its whole group. Then any part of it has a :func:`loss`; the parts' losses add up to
the whole's, because every count is that of the batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.core import full_vocabulary, kl, ratios
from assay.core.losses import weighted_loss
from assay.core.masking import at_last_token, masked, to_go
from assay.core.settings import COMMON, PLACEMENTS, Settings, Value, settle
from assay.core.shaping import informative, overlong_penalty, scorable
from assay.core.weights import Totals, token_sum, totals
from assay.errors import ConfigError, InputError


@dataclass(frozen=True)
class Rows:
    """Responses as the losses see them, in any order.

    Attributes:
        logp: of each token under the policy that is trained, with gradient, ``[B, T]``.
        logp_old: of the policy when the update began.
        logp_ref: of the reference.
        logp_sampler: of what drew the responses.
        mask: true at the tokens that the policy chose.
        reward: of each response; NaN where it could not be scored.
        group: the group each response belongs to.
        tokens: of the responses; needed where equal responses are to be recognised.
        logits: of the policy along each response, ``[B, T, V]``; needed by an exact KL and an entropy bonus, unless
            those are given.
        logits_ref: of the reference; needed by an exact KL, unless it is given.
        entropy: of the policy's next-token distribution before each token, with gradient, 0 where masked.
        token_kl: the exact KL(policy ‖ reference) of that distribution, likewise.
    """

    logp: Float[Tensor, "B T"]
    logp_old: Float[Tensor, "B T"]
    logp_ref: Float[Tensor, "B T"]
    logp_sampler: Float[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]
    reward: Float[Tensor, " B"]
    group: Int[Tensor, " B"]
    tokens: Int[Tensor, "B T"] | None = None
    logits: Float[Tensor, "B T V"] | None = None
    logits_ref: Float[Tensor, "B T V"] | None = None
    entropy: Float[Tensor, "B T"] | None = None
    token_kl: Float[Tensor, "B T"] | None = None

    def take(self, index: Int[Tensor, " R"]) -> Rows:
        """Return some rows in some order."""
        columns: dict[str, Any] = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        taken: dict[str, Any] = {name: None if column is None else column[index] for name, column in columns.items()}
        return Rows(**taken)


@dataclass(frozen=True)
class Prepared:
    """A batch, or a part of one, ready for :func:`loss`.

    Attributes:
        rows: with the mask false all over a row that left the batch.
        adv: advantage of each token, detached.
        totals: counts of the whole batch.
    """

    rows: Rows
    adv: Float[Tensor, "B T"]
    totals: Totals

    def take(self, index: Int[Tensor, " R"]) -> Prepared:
        """Return some rows, with the counts of the whole batch."""
        return Prepared(self.rows.take(index), self.adv[index], self.totals)


@dataclass(frozen=True)
class Weighting:
    """How tokens are averaged.

    Attributes:
        make: builds the weights of some rows.
        words: to follow "averaged by".
        over_token_sum: what the weights are, over those of token sums, where that is a constant; None where not.
    """

    make: Callable[[Rows, Totals, Settings], Tensor]
    words: str
    over_token_sum: Callable[[Settings], float] | None = None


@dataclass(frozen=True)
class Algorithm:
    """An estimator by name.

    Attributes:
        name: as a recipe writes it.
        advantage: from rows of whole groups to ``[B, 1]`` or ``[B, T]``.
        terms: from rows and advantages to what is ascended, ``[B, T]``.
        weights: how the terms are averaged.
        on_policy: its expected ascent when the policy that is trained drew the responses; ``{J}`` stands for the
            expected reward, or expected return where the KL is in the reward, ``{R}`` for reward or return.
        off_policy: the same when another policy drew them.
        source: the paper.
        live: settings it reads besides the common ones.
        defaults: its own settings.
        factor: what the gradient of the expected reward is multiplied by on-policy, for groups of one size;
            None where the expected ascent is not a multiple of it.
        refuses: KL placements and settings that make no sense here, with the reason.
        least: scorable responses that a group needs.
        any_sampler: whether whole-response ratios make the on-policy ascent hold whatever drew the responses.
    """

    name: str
    advantage: Callable[[Rows, Settings], Tensor]
    terms: Callable[[Rows, Tensor, Settings], Tensor]
    weights: Weighting
    on_policy: str
    off_policy: str
    source: str
    live: tuple[str, ...] = ()
    defaults: Settings = Settings()
    factor: Callable[[int, Settings], float] | None = None
    refuses: Mapping[str, str] = dataclasses.field(default_factory=dict)
    least: int = 2
    any_sampler: bool = False

    @property
    def reads(self) -> tuple[str, ...]:
        """Return the names of the settings that it reads."""
        return (*COMMON, *self.live)

    def settle(self, given: Mapping[str, Value]) -> Settings:
        """Return the settings with some of them given; see :func:`assay.core.settings.settle`.

        Raises:
            ConfigError: a setting is unknown, out of range, without effect, or makes no sense here.
        """
        made = settle(self.name, self.defaults, self.reads, given)
        if made.kl in self.refuses:
            raise ConfigError(f"kl = {made.kl}: {self.name} {self.refuses[made.kl]}")
        for key in self.refuses.keys() & given.keys():
            raise ConfigError(f"{key} = {given[key]}: {self.name} {self.refuses[key]}")
        return made

    def needs(self, settings: Settings) -> int:
        """Return how many scored responses a group needs under some settings: k of them for pass@k."""
        return max(self.least, settings.k) if "k" in self.live else self.least

    def needs_logits(self, settings: Settings) -> bool:
        """Return whether the logits of every token are needed under some settings."""
        return bool(settings.entropy) or (settings.kl in PLACEMENTS and PLACEMENTS[settings.kl].logits)


def prepare(algorithm: Algorithm, settings: Settings, rows: Rows) -> Prepared:
    """Shape the rewards of a whole batch, drop what leaves it, count it, and compute its advantages.

    A response without a score leaves its group, a group with fewer scores than the algorithm needs leaves the batch,
    and under dynamic sampling so does a group whose rewards are all equal. Rows that left keep their place, with a mask
    that is false.
    """
    if settings.overlong_length:
        penalty = overlong_penalty(
            rows.mask.sum(1), longest=settings.overlong_length, cache=settings.overlong_cache, dtype=rows.reward.dtype
        )
        rows = dataclasses.replace(rows, reward=rows.reward + penalty)
    stays = _staying(settings, rows, algorithm.needs(settings))
    left = dataclasses.replace(rows, mask=rows.mask & stays[:, None])
    adv = torch.zeros_like(rows.logp)
    if bool(stays.any()):
        part = rows.take(stays.nonzero()[:, 0])
        part = dataclasses.replace(part, group=torch.unique(part.group, return_inverse=True)[1])
        adv[stays] = _advantages(algorithm, settings, part)
    return Prepared(left, adv, totals(left.mask, left.group))


def loss(algorithm: Algorithm, settings: Settings, part: Prepared) -> Float[Tensor, ""]:
    """Return the loss ``-(weights * terms).sum()`` of a batch or a part of one.

    Raises:
        InputError: the settings need logits that the rows do not have.
    """
    rows = part.rows
    terms = algorithm.terms(rows, part.adv, settings)
    weights = algorithm.weights.make(rows, part.totals, settings)
    if settings.entropy:
        terms = terms + settings.entropy * _entropy(rows)
    if settings.kl in ("none", "reward", "reward_to_go"):
        return weighted_loss(terms, weights)
    penalty = -settings.beta * _penalty(settings.kl, rows)
    if PLACEMENTS[settings.kl].own_weights:
        return weighted_loss(terms + penalty, weights)
    by_response = token_sum(rows.mask, responses=part.totals.responses, dtype=terms.dtype)
    return weighted_loss(terms, weights) + weighted_loss(penalty, by_response)


def log_ratio_to_reference(rows: Rows) -> Float[Tensor, "B T"]:
    """Return ``logp - logp_ref`` of each token, in nats, with gradient; 0 where masked."""
    return ratios.log_ratio(rows.logp, rows.logp_ref, rows.mask)


def _advantages(algorithm: Algorithm, settings: Settings, rows: Rows) -> Float[Tensor, "B T"]:
    adv = masked(algorithm.advantage(rows, settings), rows.mask)
    if settings.kl == "reward_to_go":
        adv = adv - settings.beta * masked(to_go(log_ratio_to_reference(rows)), rows.mask)
    return adv.detach()


def _staying(settings: Settings, rows: Rows, least: int) -> Bool[Tensor, " B"]:
    """Return the rows that stay in the batch."""
    stays = scorable(rows.reward, rows.group, least=least)
    if settings.dynamic_sampling and bool(stays.any()):
        left = stays.nonzero()[:, 0]
        stays = stays.index_put((left,), informative(rows.reward[left], rows.group[left]))
    return stays


def _penalty(placement: str, rows: Rows) -> Float[Tensor, "B T"]:
    """Return the KL terms of a placement in the loss; those of a whole response stand at its last token."""
    if placement == "exact_token_loss":
        return _token_kl(rows)
    if placement == "exact_sequence_loss":
        return full_vocabulary.sequence_kl_terms(_token_kl(rows), rows.logp, rows.logp_sampler, rows.mask)
    token = log_ratio_to_reference(rows)
    if placement.endswith("_sequence_loss"):
        ratio = ratios.sequence_ratio(rows.logp, rows.logp_sampler, rows.mask)[:, 0]
        return at_last_token(_estimator(placement.removesuffix("_sequence_loss"), token.sum(1), ratio), rows.mask)
    ratio = ratios.token_ratio(rows.logp, rows.logp_sampler, rows.mask)
    return _estimator(placement.removesuffix("_loss"), token, ratio)


def _estimator(name: str, log_ratio: Tensor, ratio: Tensor) -> Tensor:
    made: dict[str, Callable[[], Tensor]] = {
        "k1": lambda: kl.k1(log_ratio),
        "k2": lambda: kl.k2(log_ratio),
        "k3": lambda: kl.k3(log_ratio),
        "k3_ratio": lambda: kl.ratio_k3(log_ratio, ratio),
        "k3_k2": lambda: kl.straight_through(kl.k3(log_ratio), kl.k2(log_ratio)),
    }
    return made[name]()


def _entropy(rows: Rows) -> Float[Tensor, "B T"]:
    if rows.entropy is not None:
        return masked(rows.entropy, rows.mask)
    return full_vocabulary.token_entropy(_given(rows.logits), rows.mask)


def _token_kl(rows: Rows) -> Float[Tensor, "B T"]:
    if rows.token_kl is not None:
        return masked(rows.token_kl, rows.mask)
    return full_vocabulary.token_kl(_given(rows.logits), _given(rows.logits_ref), rows.mask)


def _given(logits: Float[Tensor, "B T V"] | None) -> Float[Tensor, "B T V"]:
    if logits is None:
        raise InputError("an exact KL or an entropy bonus needs the logits of every token, and the rows have none")
    return logits
