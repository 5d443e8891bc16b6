"""verl 0.9.1 through its adapter: what it is said to ascend is derived here, and found by enumeration."""

from __future__ import annotations

import dataclasses
import importlib
import math
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from assay import audit
from assay.audit.adapters import installed, verl
from assay.audit.adapters.verl_batch import NAMES, batch_loss, rows_of
from assay.audit.adapters.verl_settings import (
    ALGORITHM,
    CORRECTION,
    ESTIMATORS,
    OPTIONS,
    Aggregation,
    LossMode,
    Penalty,
)
from assay.audit.call import logp_slope, make_batch
from assay.audit.expectation import Design, expected_ascent
from assay.audit.loss_report import LossReport
from assay.core.streams import Stream, normals
from assay.errors import ConfigError
from assay.tree.fields import FIELDS, field
from assay.tree.world import TreeProblem, World, default_world
from assay.verdicts import Verdict

SUM = {"loss_agg_mode": "seq-mean-token-sum"}
PLAIN = {"norm_adv_by_std_in_grpo": "false"}
BINARY: World = default_world()[:1]
BOTH: World = default_world()


def report(name: str, settings: dict[str, str], world: World = BOTH, size: int = 2, **given: Any) -> LossReport:
    return audit.loss(verl.SUBJECTS[f"verl.{name}"](settings), group_size=size, world=world, **given)


def coefficients(name: str, settings: dict[str, str], world: World = BOTH, size: int = 2) -> dict[str, float]:
    made = report(name, settings, world, size).ascends
    assert made is not None and made.residual < 1e-12, made
    return made.coefficients


def success(problem: TreeProblem) -> float:
    return float((problem.tree.token_logp(problem.logits).sum(1).exp() * problem.reward).sum())


def binomial(count: int, size: int, p: float) -> float:
    return math.comb(size, count) * p**count * (1 - p) ** (size - count)


# --- what it ascends ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rloo", "rloo_vectorized", "remax", "policy_loss"])
def test_unbiased_estimators_summed_over_tokens_are_the_gradient(name: str) -> None:
    made = report(name, SUM)
    assert made.ascends is not None and made.ascends.residual < 1e-12
    assert made.ascends.coefficients == pytest.approx({"reward": 1.0}, rel=1e-12)
    assert all(claim.verdict is Verdict.HOLDS for claim in made.claims), made


@pytest.mark.parametrize(
    ("settings", "factor"),
    [
        (SUM, 1.0),
        ({"loss_agg_mode": "token-sum"}, 3.0),
        ({"loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": "5"}, 1 / 5),
    ],
)
def test_aggregations_that_are_constant_scale_the_gradient(settings: dict[str, str], factor: float) -> None:
    assert coefficients("rloo", settings, BINARY, size=3) == pytest.approx({"reward": factor}, rel=1e-12)
    scaled = coefficients("grpo", settings | PLAIN, BINARY, size=3)
    assert scaled == pytest.approx({"reward": factor * 2 / 3}, rel=1e-12)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_aggregations_that_see_lengths_are_no_objective(mode: str) -> None:
    basis = torch.stack([torch.cat([field(kind, problem) for problem in BOTH]) for kind in FIELDS], dim=1)
    loss = verl.SUBJECTS["verl.rloo"]({"loss_agg_mode": mode}).loss
    made = expected_ascent(loss, BOTH, Design((2, 2)), torch.zeros(len(basis)).double()).ascent
    fit = basis @ torch.linalg.lstsq(basis, made[:, None], driver="gelsd").solution[:, 0]
    assert float((made - fit).norm() / made.norm()) > 1e-3


@pytest.mark.parametrize("size", [2, 3])
def test_standard_deviation_weighs_a_binary_problem_by_its_success(size: int) -> None:
    p = success(BINARY[0])

    def part(k: int) -> float:
        spread = math.sqrt(k * (size - k) / (size * (size - 1))) + 1e-6
        return binomial(k, size, p) * k * (size - k) / (size**2 * p * (1 - p) * spread)

    expected = sum(part(k) for k in range(1, size))
    assert coefficients("grpo", SUM, BINARY, size) == pytest.approx({"reward": expected}, rel=1e-9)


@pytest.mark.parametrize("size", [2, 3])
def test_gpg_ascends_a_truncated_log_of_the_success(size: int) -> None:
    p = success(BINARY[0])
    expected = sum((1 - p) ** k for k in range(size - 1))
    assert coefficients("gpg", SUM, BINARY, size) == pytest.approx({"reward": expected}, rel=1e-10)


@pytest.mark.parametrize("size", [2, 3])
def test_passk_without_deviation_is_the_gradient_of_pass_at_g(size: int) -> None:
    expected = size * (1 - success(BINARY[0])) ** (size - 1) / size  # d/dp of 1 - (1 - p)^G, meaned over the group
    assert coefficients("grpo_passk", SUM | PLAIN, BINARY, size) == pytest.approx({"reward": expected}, rel=1e-10)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("kl", {"reward": 1.0}),
        ("k2", {"reward": 1.0, "frozen_kl": -0.1}),
        ("low_var_kl", {"reward": 1.0, "frozen_forward_kl": -0.1}),
        ("k3+", {"reward": 1.0, "frozen_kl": -0.1}),
        ("kl+", {"reward": 1.0, "frozen_kl": -0.1}),
    ],
)
def test_kl_in_the_loss(kind: str, expected: dict[str, float]) -> None:
    settings = SUM | {"use_kl_loss": "true", "kl_loss_coef": "0.1", "kl_loss_type": kind}
    assert coefficients("rloo", settings) == pytest.approx(expected, rel=1e-10)
    assert verl.SUBJECTS["verl.rloo"](settings).objective == "reward - 0.1*frozen_kl"


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("rloo", "kl", {"reward": 1.0, "kl": -0.1}),
        ("remax", "kl", {"reward": 1.0, "kl": -0.1}),
        ("rloo", "low_var_kl", {"reward": 1.0, "kl": -0.1, "frozen_forward_kl": 0.1}),
    ],
)
def test_kl_in_the_reward(name: str, kind: str, expected: dict[str, float]) -> None:
    """With k3, E[(Σ k3) ∇logp] = ∇E[Σ k3] - E[∇Σ k3]: the sequence KL less the frozen one of the other direction."""
    settings = SUM | {"use_kl_in_reward": "true", "kl_coef": "0.1", "kl_penalty": kind}
    assert coefficients(name, settings) == pytest.approx(expected, rel=1e-9)
    assert verl.SUBJECTS[f"verl.{name}"](settings).objective == "reward - 0.1*kl"


def test_entropy_bonus_is_the_entropy_at_frozen_states() -> None:
    made = coefficients("rloo", SUM | {"entropy_coeff": "0.02"})
    assert made == pytest.approx({"reward": 1.0, "frozen_entropy": 0.02}, rel=1e-9)


@pytest.mark.parametrize("mode", ["gspo", "gpg", "cispo", "dppo_tv", "dppo_kl", "kl_cov"])
def test_policy_losses_agree_at_ratio_one(mode: str) -> None:
    assert coefficients("rloo", SUM | {"loss_mode": mode}) == pytest.approx({"reward": 1.0}, rel=1e-12)


def test_sequence_weights_correct_another_sampler_and_token_weights_do_not() -> None:
    shift = 0.4 * normals(3, Stream.INIT, BINARY[0].logits.numel()).view_as(BINARY[0].logits)
    world = (dataclasses.replace(BINARY[0], logits_sampler=BINARY[0].logits + shift),)
    weights = {"rollout_is": "sequence", "rollout_is_threshold": "1e9"}
    assert coefficients("rloo", SUM | weights, world) == pytest.approx({"reward": 1.0}, rel=1e-12)
    bypass = {"loss_mode": "bypass_mode", "loss_type": "reinforce"}
    assert coefficients("rloo", SUM | weights | bypass, world) == pytest.approx({"reward": 1.0}, rel=1e-12)
    token = SUM | weights | {"rollout_is": "token"}
    assert coefficients("rloo", token, world) == pytest.approx({"surrogate": 1.0}, rel=1e-12)
    uncorrected = report("rloo", SUM, world).ascends
    assert uncorrected is not None and uncorrected.residual > 1e-2


def test_unclipped_ratio_ascends_the_surrogate_under_old_visits() -> None:
    problem = default_world(off_policy=True)[0]
    q = problem.tree.token_logp(problem.logits_old)
    ratio = (problem.tree.token_logp(problem.logits) - q).exp() * problem.mask
    weight = (q.sum(1).exp() * problem.reward)[:, None] * ratio
    expected = torch.einsum("mt,mtd->d", weight, problem.logp_jacobian)
    wide = {"clip_ratio_low": "1", "clip_ratio_high": "1e6", "clip_ratio_c": "1e6"}
    loss = verl.SUBJECTS["verl.rloo"](SUM | wide).loss
    made = expected_ascent(loss, (problem,), Design((2,)), torch.zeros_like(expected)).ascent
    torch.testing.assert_close(made, expected, rtol=1e-10, atol=1e-12)
    assert float((made - field("reward", problem)).norm() / made.norm()) > 1e-2


# --- verl's code, called as its trainer does --------------------------------------------------------------------------


def batch_arguments(world: World = BOTH) -> dict[str, Tensor]:
    """Return a batch of eight responses of several lengths as a loss is given it."""
    given: dict[str, Tensor] = {}

    def keep(
        logp: Tensor,
        logp_old: Tensor,
        logp_ref: Tensor,
        logp_sampler: Tensor,
        value: Tensor,
        reward: Tensor,
        adv: Tensor,
        mask: Tensor,
        group: Tensor,
        logits_old: Tensor,
    ) -> Tensor:
        made = locals()
        given.update({name: made[name] for name in NAMES})
        return logp.sum()

    logp_slope(keep, make_batch(world, [(0, torch.tensor([0, 5, 7, 2])), (1, torch.tensor([9, 14, 1, 3]))]))
    return given


def test_loss_is_the_clipped_surrogate_token_by_token() -> None:
    given = batch_arguments(default_world(off_policy=True))
    logp, old, mask, adv = (given[name].detach() for name in ("logp", "logp_old", "mask", "adv"))
    total = 0.0
    for row in range(8):
        for t in range(int(mask[row].sum())):
            ratio = math.exp(float(logp[row, t] - old[row, t]))
            a = float(adv[row])
            surrogate = min(ratio * a, min(max(ratio, 0.8), 1.2) * a)
            total -= max(surrogate, 3 * a) if a < 0 else surrogate
    for mode, count in (("token-mean", float(mask.sum())), ("seq-mean-token-sum", 8.0)):
        loss = verl.SUBJECTS["verl.policy_loss"]({"loss_agg_mode": mode}).loss(**given)
        assert loss.dtype == torch.float64
        assert float(loss.detach()) == pytest.approx(total / count, rel=1e-13)


def test_grpo_vectorized_is_grpo_up_to_float32() -> None:
    given = batch_arguments()
    subject = verl.SUBJECTS["verl.grpo_vectorized"]({})
    one, other = (made.loss(**given) for made in (subject, verl.SUBJECTS["verl.grpo"]({})))
    gap = abs(float(one.detach()) - float(other.detach())) / abs(float(other.detach()))
    assert 1e-12 < gap < subject.tolerance and "float32" in subject.why


def test_dr_grpo_recipe_without_a_scale_factor_divides_by_the_longest_response() -> None:
    loss = verl.SUBJECTS["verl.policy_loss"]({"loss_agg_mode": "seq-mean-token-sum-norm"}).loss
    summed = verl.SUBJECTS["verl.policy_loss"](SUM).loss
    whole = batch_arguments(default_world(off_policy=True))
    for rows in ([0, 1, 2, 3], [0], [6]):
        given = {name: tensor[rows] for name, tensor in whole.items()}
        longest = float(given["mask"].sum(1).max())
        assert float(loss(**given).detach()) == pytest.approx(float(summed(**given).detach()) / longest, rel=1e-13)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_runs(name: str) -> None:
    loss = verl.SUBJECTS[f"verl.{name}"]({}).loss(**batch_arguments())
    assert bool(loss.isfinite()) and loss.dtype == torch.float64


def test_clip_cov_is_reported_for_its_random_numbers_and_kl_cov_is_not() -> None:
    every = {"loss_mode": "clip_cov", "clip_cov_lb": "-100", "clip_cov_ub": "100", "clip_cov_ratio": "0.3"}
    claims = {claim.name: claim.verdict for claim in report("rloo", SUM | every).claims}
    assert claims["pure"] is Verdict.DISAGREES
    claims = {claim.name: claim.verdict for claim in report("rloo", SUM | {"loss_mode": "kl_cov"}).claims}
    assert claims["pure"] is Verdict.HOLDS


# --- settings ---------------------------------------------------------------------------------------------------------


def test_names_choices_and_defaults_are_verls() -> None:
    with installed.quiet_import("verl", ""):
        core = importlib.import_module("verl.trainer.ppo.core_algos")
        configs, workers = (importlib.import_module(name) for name in ("verl.trainer.config", "verl.workers.config"))
    assert set(ESTIMATORS) == set(core.ADV_ESTIMATOR_REGISTRY)
    assert set(get_args(LossMode)) == set(core.POLICY_LOSS_REGISTRY)
    for kind in get_args(Penalty):
        assert core.kl_penalty(torch.zeros(1), torch.ones(1), kind).shape == (1,)
    for mode in get_args(Aggregation):
        assert core.agg_loss(torch.ones(1, 2), torch.ones(1, 2), mode).ndim == 0
    for config, names in (
        (workers.ActorConfig, verl.ACTOR),
        (workers.PolicyLossConfig, verl.POLICY_LOSS),
        (configs.AlgoConfig, ALGORITHM),
        (configs.KLControlConfig, ("kl_coef",)),
    ):
        defaults = {entry.name: entry.default for entry in dataclasses.fields(config)}
        assert {name: OPTIONS[name].default for name in names} == {name: defaults[name] for name in names}
    text = (Path(configs.__file__).parent / "algorithm" / "rollout_correction.yaml").read_text()
    written = dict(line.split(": ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    spelled = {None: "null", False: "false"}
    for name in CORRECTION:
        assert written[name] == str(spelled.get(OPTIONS[name].default, OPTIONS[name].default))


def value_with(name: str | None, world: World = BOTH, **changed: Any) -> float:
    """Return a loss's value with settings changed, whether the adapter would accept them or not."""
    settings = {key: option.default for key, option in OPTIONS.items()} | {"adv_estimator": name} | changed
    library = verl._configured("verl", settings)
    given = batch_arguments(world)
    return float(batch_loss(library, settings, rows_of(given), given["adv"], None).detach())


OFF: World = tuple(
    dataclasses.replace(problem, logits_sampler=problem.logits_old + 0.3 * problem.logits)
    for problem in default_world(off_policy=True)
)


@pytest.mark.parametrize(
    ("estimator", "base", "name", "value"),
    [
        ("gae", {}, "gamma", 0.5),
        ("gae", {}, "lam", 0.5),
        ("reinforce_plus_plus", {}, "gamma", 0.5),
        ("grpo", {}, "norm_adv_by_std_in_grpo", False),
        ("grpo_passk", {}, "norm_adv_by_std_in_grpo", False),
        ("rloo", {}, "use_kl_in_reward", True),
        ("rloo", {"use_kl_in_reward": True}, "kl_coef", 0.5),
        ("rloo", {"use_kl_in_reward": True}, "kl_penalty", "k2"),
        ("rloo", {}, "loss_mode", "cispo"),
        ("rloo", {}, "loss_agg_mode", "token-sum"),
        ("rloo", {"loss_agg_mode": "seq-mean-token-sum-norm"}, "loss_scale_factor", 7.0),
        ("rloo", {"clip_ratio_low": None}, "clip_ratio", 0.01),
        ("rloo", {}, "clip_ratio_low", 0.01),
        ("rloo", {}, "clip_ratio_high", 0.01),
        ("rloo", {}, "clip_ratio_c", 1.01),
        ("rloo", {"loss_mode": "sapo"}, "tau_pos", 3.0),
        ("rloo", {"loss_mode": "sapo"}, "tau_neg", 3.0),
        ("rloo", {"loss_mode": "kl_cov"}, "kl_cov_ratio", 0.9),
        ("rloo", {"loss_mode": "kl_cov"}, "ppo_kl_coef", 9.0),
        ("rloo", {"loss_mode": "dro", "dro_beta": 0.1}, "dro_beta", 0.9),
        ("rloo", {}, "use_kl_loss", True),
        ("rloo", {"use_kl_loss": True}, "kl_loss_coef", 0.5),
        ("rloo", {"use_kl_loss": True}, "kl_loss_type", "k2"),
        ("rloo", {}, "rollout_is", "token"),
        ("rloo", {"rollout_is": "token"}, "rollout_is_threshold", 1.0),
        ("rloo", {"rollout_is": "token"}, "rollout_is_batch_normalize", True),
        ("rloo", {}, "rollout_rs", "token_k1"),
        ("rloo", {"rollout_rs": "token_k1", "rollout_rs_threshold": 1.01}, "rollout_rs_threshold", 1.2),
        ("rloo", {"loss_mode": "bypass_mode"}, "loss_type", "reinforce"),
    ],
)
def test_settings_called_live_change_the_loss(estimator: str, base: dict[str, Any], name: str, value: Any) -> None:
    extra = {"rollout_rs_threshold": 1.01} if name == "rollout_rs" else {}
    assert value_with(estimator, OFF, **base) != value_with(estimator, OFF, **(base | extra | {name: value}))


@pytest.mark.parametrize(
    ("estimator", "base", "name", "value"),
    [
        ("rloo", {}, "clip_ratio", "0.01"),
        ("grpo_vectorized", {}, "norm_adv_by_std_in_grpo", "false"),
        ("gdpo", {}, "norm_adv_by_std_in_grpo", "false"),
        ("rloo", {}, "gamma", "0.5"),
        ("reinforce_plus_plus", {}, "lam", "0.5"),
        ("rloo", {"loss_mode": "sapo"}, "loss_agg_mode", "token-sum"),
        ("rloo", {"loss_mode": "geo_mean"}, "loss_agg_mode", "token-sum"),
        ("rloo", {"loss_mode": "gspo"}, "clip_ratio_c", "1.01"),
        ("rloo", {"loss_mode": "gpg"}, "clip_ratio_low", "0.01"),
        ("rloo", {}, "tau_pos", "3"),
        ("rloo", {}, "kl_coef", "0.5"),
        ("rloo", {}, "kl_loss_coef", "0.5"),
        ("rloo", {}, "loss_scale_factor", "7"),
        ("rloo", {}, "loss_type", "reinforce"),
    ],
)
def test_settings_that_verl_does_not_read_are_refused(
    estimator: str, base: dict[str, str], name: str, value: str
) -> None:
    read = installed._read("verl", name, value, OPTIONS)
    assert value_with(estimator, OFF, **base) == value_with(estimator, OFF, **(base | {name: read}))
    with pytest.raises(ConfigError, match=f"--set {name}={value}: it is not read without"):
        verl.SUBJECTS[f"verl.{estimator}"](base | {name: value})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip_ratio_lo": "0.1"}, "did you mean clip_ratio_low.*kl_loss_coef"),
        ({"beta": "0.1"}, "it can be one of gamma, lam"),
        ({"loss_mode": "ppo"}, "input should be 'vanilla'"),
        ({"entropy_coeff": "much"}, "valid number"),
        ({"kl_loss_coef": "none", "use_kl_loss": "true"}, "valid number"),
        ({"loss_mode": "dro"}, "positive dro_beta"),
    ],
)
def test_bad_settings_are_errors_of_configuration(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        verl.SUBJECTS["verl.rloo"](settings)


def test_a_subject_says_what_is_in_force_and_what_is_not_reached() -> None:
    subject = verl.SUBJECTS["verl.remax"]({"clip_ratio_high": "0.28"})
    assert subject.settings["clip_ratio_high"] == 0.28 and subject.settings["clip_ratio_low"] == 0.2
    assert subject.versions["verl"] == "0.9.1" and "ppo_loss" in subject.reaches and "greedy" in subject.misses
