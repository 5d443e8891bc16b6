"""OpenRLHF 0.11.2 through its adapter: what it is said to ascend is derived here, and found by enumeration."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from assay import audit
from assay.audit.adapters import installed, openrlhf
from assay.audit.adapters.openrlhf_settings import ESTIMATORS, NORMALISED, OPTIONS
from assay.audit.call import logp_slope, make_batch
from assay.audit.expectation import Design, expected_ascent
from assay.core.streams import Stream, normals
from assay.errors import ConfigError
from assay.tree.fields import FIELDS, field
from assay.tree.prefix import Grammar, prefix_tree
from assay.tree.world import TreeProblem, World, default_world
from assay.verdicts import Verdict

NO_KL = {"algo.kl.init_coef": "0"}
LENGTH = 3


def one_length(*, binary: bool) -> World:
    """Return one problem whose responses all have three tokens: its token mean is the sum over three."""
    tree = prefix_tree(Grammar(tokens=2, max_length=LENGTH))
    shape = (len(tree.inner), 2)
    logits, shift = (normals(5, Stream.INIT, shape[0] * 2, problem=number).view(shape) for number in (0, 1))
    reward = torch.tensor([1, 0, 1, 1, 0, 0, 1, 0]).double() * (1.0 if binary else torch.linspace(0.1, 1.5, 8).double())
    return (TreeProblem("one length", tree, logits, logits + 0.5 * shift, logits, reward),)


GRADED, BINARY = one_length(binary=False), one_length(binary=True)


def coefficients(name: str, settings: dict[str, str], world: World = GRADED, size: int = 2) -> dict[str, float]:
    subject = openrlhf.SUBJECTS[f"openrlhf.{name}"](settings)
    made = audit.loss(subject, group_size=size, world=world).ascends
    assert made is not None and made.residual < subject.tolerance, made
    return made.coefficients


# --- what it ascends ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("name", "factor"), [("rloo", 1.0), ("dr_grpo", None), ("flash_reinforce", None), ("policy_loss", 1.0)]
)
def test_responses_of_one_length_give_the_gradient_over_the_length(name: str, factor: float | None, size: int) -> None:
    settings = {} if name == "policy_loss" else NO_KL
    expected = (factor or (size - 1) / size) / LENGTH
    assert coefficients(name, settings, size=size) == pytest.approx({"reward": expected}, rel=1e-12)


@pytest.mark.parametrize("name", ["rloo", "dr_grpo", "policy_loss"])
def test_no_aggregation_is_an_objective_when_lengths_differ(name: str) -> None:
    for mode in ("token-mean", "seq-mean-token-mean"):
        settings = {"actor.loss_agg_mode": mode} | ({} if name == "policy_loss" else NO_KL)
        loss, world = openrlhf.SUBJECTS[f"openrlhf.{name}"](settings).loss, default_world()
        basis = torch.stack([torch.cat([field(kind, problem) for problem in world]) for kind in FIELDS], dim=1)
        made = expected_ascent(loss, world, Design((2, 2)), torch.zeros(len(basis)).double()).ascent
        fit = basis @ torch.linalg.lstsq(basis, made[:, None], driver="gelsd").solution[:, 0]
        assert float((made - fit).norm() / made.norm()) > 1e-3


@pytest.mark.parametrize("size", [2, 3])
def test_group_norm_weighs_a_binary_problem_by_its_success(size: int) -> None:
    problem = BINARY[0]
    p = float((problem.tree.token_logp(problem.logits).sum(1).exp() * problem.reward).sum())

    def part(k: int) -> float:
        spread = math.sqrt(k * (size - k) / (size * (size - 1))) + 1e-9
        return math.comb(size, k) * p ** (k - 1) * (1 - p) ** (size - k - 1) * k * (size - k) / (size**2 * spread)

    expected = sum(part(k) for k in range(1, size)) / LENGTH
    assert coefficients("group_norm", NO_KL, BINARY, size) == pytest.approx({"reward": expected}, rel=1e-9)


@pytest.mark.parametrize(("name", "factor"), [("rloo", 1.0), ("dr_grpo", 0.5)])
def test_kl_in_the_reward_is_not_centred_with_it(name: str, factor: float) -> None:
    made = coefficients(name, {"algo.kl.init_coef": "0.1"})
    assert made == pytest.approx({"reward": factor / LENGTH, "kl": -0.1 / LENGTH}, rel=1e-6)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"algo.kl.estimator": "k1"}, {}),
        ({"algo.kl.estimator": "k2"}, {"frozen_kl": -0.1 / LENGTH}),
        ({"algo.kl.estimator": "k3"}, {"frozen_forward_kl": -0.1 / LENGTH}),
        ({"algo.kl.unbiased_gradient": "true"}, {"frozen_kl": -0.1 / LENGTH}),
        ({"algo.kl.unbiased_gradient": "true", "algo.kl.estimator": "k3"}, {"frozen_kl": -0.1 / LENGTH}),
    ],
)
def test_kl_in_the_loss(settings: dict[str, str], expected: dict[str, float]) -> None:
    made = coefficients("policy_loss", settings | {"algo.kl.use_loss": "true", "algo.kl.init_coef": "0.1"})
    assert made == pytest.approx({"reward": 1 / LENGTH, **expected}, rel=1e-6)


def test_entropy_bonus_is_the_entropy_at_frozen_states() -> None:
    made = coefficients("policy_loss", {"actor.entropy_coef": "0.02"})
    assert made == pytest.approx({"reward": 1 / LENGTH, "frozen_entropy": 0.02 / LENGTH}, rel=1e-9)


def test_claims_of_the_simplest_subject_hold_but_for_the_scale() -> None:
    report = audit.loss(openrlhf.SUBJECTS["openrlhf.policy_loss"]({}), group_size=2, world=GRADED)
    verdicts = {claim.name: claim.verdict for claim in report.claims}
    assert verdicts.pop("I1 expected gradient") is Verdict.DISAGREES
    assert set(verdicts.values()) == {Verdict.HOLDS}


# --- OpenRLHF's code, called as its trainer does ----------------------------------------------------------------------


def batch_arguments(world: World, groups: list[tuple[int, list[int]]]) -> dict[str, Tensor]:
    """Return a batch as a loss is given it."""
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
    ) -> Tensor:
        made = locals()
        given.update({name: made[name] for name in openrlhf.NAMES})
        return logp.sum()

    logp_slope(keep, make_batch(world, [(problem, torch.tensor(members)) for problem, members in groups]))
    return given


OFF: World = tuple(
    dataclasses.replace(problem, logits_sampler=problem.logits_old + 0.3 * problem.logits)
    for problem in default_world(off_policy=True)
)
EIGHT = [(0, [0, 5, 7, 2]), (1, [9, 14, 1, 3])]


def loss_of(name: str, settings: dict[str, str], given: dict[str, Tensor]) -> Tensor:
    made: Tensor = openrlhf.SUBJECTS[f"openrlhf.{name}"](settings).loss(**given)
    return made


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_loss_is_the_clipped_surrogate_token_by_token(mode: str) -> None:
    given = batch_arguments(OFF, EIGHT)
    logp, old, mask, adv = (given[name].detach() for name in ("logp", "logp_old", "mask", "adv"))
    total = 0.0
    for row in range(8):
        length = int(mask[row].sum())
        weight = 1 / float(mask.sum()) if mode == "token-mean" else 1 / (8 * length)
        for t in range(length):
            ratio, a = math.exp(float(logp[row, t] - old[row, t])), float(adv[row])
            total -= weight * min(ratio * a, min(max(ratio, 0.8), 1.2) * a)
    made = loss_of("policy_loss", {"actor.loss_agg_mode": mode}, given)
    assert made.dtype == torch.float64 and float(made.detach()) == pytest.approx(total, rel=1e-7)


def test_a_kl_in_the_loss_is_a_token_mean_whatever_the_loss_is() -> None:
    given = batch_arguments(OFF, EIGHT)
    kl = {"algo.kl.use_loss": "true", "algo.kl.estimator": "k2", "algo.kl.init_coef": "0.5"}
    by_sequence = {"actor.loss_agg_mode": "seq-mean-token-mean"}
    added = loss_of("policy_loss", kl | by_sequence, given) - loss_of("policy_loss", by_sequence, given)
    k2 = 0.5 * (given["logp"] - given["logp_ref"]).square() * given["mask"]
    assert float(added.detach()) == pytest.approx(0.5 * float(k2.detach().sum() / given["mask"].sum()), rel=1e-6)


def test_reinforce_normalises_over_the_batch_in_float32() -> None:
    """One group a batch: a group's own mean is then subtracted twice, and the two estimators differ by rounding."""
    given = batch_arguments(OFF, [(1, [9, 14, 1, 3])])
    one, other = (loss_of(name, NO_KL, given).detach() for name in ("reinforce", "reinforce_baseline"))
    gap = abs(float(one - other)) / abs(float(one))
    assert 1e-12 < gap < openrlhf.SUBJECTS["openrlhf.reinforce"](NO_KL).tolerance
    mask, reward = given["mask"], given["reward"]
    every = (reward[:, None] * mask)[mask > 0]
    spread = (reward - every.mean()) / every.var(correction=0).sqrt()
    ratio = (given["logp"].detach() - given["logp_old"]).exp()
    surrogate = torch.minimum(ratio * spread[:, None], ratio.clamp(0.8, 1.2) * spread[:, None])
    assert float(one) == pytest.approx(-float((surrogate * mask).sum() / mask.sum()), rel=1e-4)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_runs_whatever_the_order_of_rows(name: str) -> None:
    given = batch_arguments(OFF, EIGHT)
    order = torch.tensor([3, 6, 0, 7, 1, 2, 5, 4])
    mixed = {key: tensor[order] for key, tensor in given.items()}
    made = loss_of(name, {}, given).detach()
    assert bool(made.isfinite())
    torch.testing.assert_close(loss_of(name, {}, mixed).detach(), made, rtol=1e-6, atol=1e-9)


def test_uneven_groups_could_not_run() -> None:
    report = audit.loss(openrlhf.SUBJECTS["openrlhf.rloo"]({}), group_size=(2, 3))
    assert report.verdict is not Verdict.HOLDS and "one n_samples_per_prompt" in str(report)


# --- settings and the import ------------------------------------------------------------------------------------------


def test_names_choices_and_defaults_are_openrlhfs() -> None:
    openrlhf.SUBJECTS["openrlhf.rloo"]({})
    module = importlib.import_module("openrlhf")
    text = (Path(module.__file__).parent / "cli" / "train_ppo_ray.py").read_text()
    parser = argparse.ArgumentParser()
    start, end = text.index('parser.add_argument("--actor.eps_clip"'), text.index("# Context Parallel")
    scope: dict[str, Any] = {"parser": parser}
    body = "\n".join(line.removeprefix("    ") for line in text[start:end].splitlines())
    exec(compile(body, "train_ppo_ray.py", "exec"), scope)  # noqa: S102  (OpenRLHF's own declarations, read not copied)
    begin = text.index('        "--algo.advantage.is_correction_level"')
    block = text[text.rindex("parser.add_argument(", 0, begin) : text.index("# Async training using ray")]
    exec(compile("\n".join(line.removeprefix("    ") for line in block.splitlines()), "train", "exec"), scope)  # noqa: S102
    declared = {action.dest: action for action in parser._actions}
    for name, option in OPTIONS.items():
        default = declared[name].default
        made = tuple(map(float, default)) if isinstance(default, list | tuple) else default
        assert made == option.default, name
    assert set(declared["algo.advantage.estimator"].choices) == set(ESTIMATORS)


def value_with(estimator: str | None, **changed: Any) -> float:
    """Return a loss's value with settings changed, whether the adapter would accept them or not."""
    settings = {key: option.default for key, option in OPTIONS.items()} | {"algo.advantage.estimator": estimator}
    settings |= {key.replace("__", "."): value for key, value in changed.items()}
    library = openrlhf._configured("openrlhf", settings)
    made: Tensor = openrlhf._loss(library, settings)(**batch_arguments(OFF, EIGHT))
    return float(made.detach())


NARROW = {
    "algo.advantage.is_correction_level": "token",
    "algo.advantage.is_correction_threshold": (0.9, 1.1),
}
GATING = "algo.advantage.is_correction_gating"


@pytest.mark.parametrize(
    ("estimator", "base", "name", "value"),
    [
        ("rloo", {}, "actor.eps_clip", 0.01),
        ("rloo", {}, "actor.eps_clip_low_high", (0.01, 0.2)),
        ("rloo", {}, "actor.dual_clip", 1.0001),
        ("rloo", {}, "actor.loss_agg_mode", "seq-mean-token-mean"),
        ("rloo", {}, "actor.policy_loss_type", "gspo"),
        ("gae", {}, "algo.advantage.gamma", 0.5),
        ("gae", {}, "algo.advantage.lambd", 0.5),
        ("reinforce", {}, "algo.advantage.gamma", 0.5),
        ("reinforce_baseline", {}, "algo.advantage.no_std_norm", True),
        ("rloo", {}, "algo.advantage.is_correction_level", "token"),
        ("rloo", NARROW, "algo.advantage.is_correction_mode", "clip"),
        ("rloo", NARROW, "algo.advantage.is_correction_threshold", (0.5, 5.0)),
        ("rloo", NARROW, "algo.advantage.is_correction_level", "seq"),
        ("rloo", NARROW | {"algo.advantage.is_correction_threshold": (0.0, 0.01)}, GATING, "tv"),
        ("rloo", {}, "algo.kl.init_coef", 0.5),
        ("rloo", {}, "algo.kl.estimator", "k2"),
        ("rloo", {}, "algo.kl.use_loss", True),
        ("rloo", {}, "reward.clip_range", (-0.01, 0.01)),
    ],
)
def test_settings_called_live_change_the_loss(estimator: str, base: dict[str, Any], name: str, value: Any) -> None:
    assert value_with(estimator, **base) != value_with(estimator, **(base | {name: value}))


@pytest.mark.parametrize(
    ("estimator", "base", "name", "value"),
    [
        ("rloo", {"actor.eps_clip_low_high": "0.2,0.2"}, "actor.eps_clip", "0.01"),
        ("rloo", {}, "algo.advantage.gamma", "0.5"),
        ("reinforce", {}, "algo.advantage.lambd", "0.5"),
        ("rloo", {}, "algo.advantage.no_std_norm", "true"),
        ("rloo", {}, "algo.advantage.is_correction_mode", "clip"),
        ("policy_loss", {}, "algo.kl.init_coef", "0.5"),
        ("policy_loss", {}, "algo.kl.estimator", "k2"),
        ("rloo", {}, "algo.kl.unbiased_gradient", "true"),
        ("rloo", {"actor.policy_loss_type": "gspo"}, "actor.loss_agg_mode", "seq-mean-token-mean"),
    ],
)
def test_settings_that_openrlhf_does_not_read_are_refused(
    estimator: str, base: dict[str, str], name: str, value: str
) -> None:
    made = {key: installed._read("openrlhf", key, text, OPTIONS) for key, text in (base | {name: value}).items()}
    before = {key: made[key] for key in base}
    fixed = None if estimator == "policy_loss" else estimator
    assert value_with(fixed, **before) == value_with(fixed, **made)
    with pytest.raises(ConfigError, match=f"--set {name}={value}: it is not read without"):
        openrlhf.SUBJECTS[f"openrlhf.{estimator}"](base | {name: value})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"actor.eps_clp": "0.1"}, "did you mean actor.eps_clip"),
        ({"beta": "0.1"}, "it can be one of actor.eps_clip"),
        ({"actor.policy_loss_type": "ppg"}, "input should be 'ppo' or 'gspo'"),
        ({"reward.clip_range": "1"}, "valid tuple"),
        ({"actor.dual_clip": "0.5"}, "OpenRLHF refuses these settings: dual_clip"),
    ],
)
def test_bad_settings_are_errors_of_configuration(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        openrlhf.SUBJECTS["openrlhf.rloo"](settings)


def test_objectives_and_tolerances_follow_the_settings() -> None:
    make = openrlhf.SUBJECTS
    assert make["openrlhf.rloo"]({}).objective == "reward - 0.01*kl"
    assert make["openrlhf.rloo"](NO_KL).objective == "reward" and make["openrlhf.rloo"](NO_KL).tolerance == 1e-9
    assert make["openrlhf.rloo"]({"algo.kl.use_loss": "true"}).objective == "reward - 0.01*frozen_kl"
    assert make["openrlhf.rloo"]({}).tolerance == 1e-6 and "float32" in make["openrlhf.rloo"]({}).why
    assert all(make[f"openrlhf.{name}"]({}).tolerance == 1e-4 for name in NORMALISED)


def test_stand_ins_are_gone_after_the_import_and_fool_nobody() -> None:
    """Two processes, one with the adapter: whatever asks for an optional package is told the same in both."""
    ask = """
import importlib, json, sys
from assay.audit.adapters.openrlhf_stubs import PACKAGES, _Finder
answers = {}
for name in ("transformers.utils.import_utils", "accelerate.utils.imports", "peft.import_utils"):
    module = importlib.import_module(name)
    for asked in dir(module):
        if asked.startswith("is_") and asked.endswith("available"):
            try: answers[f"{name}.{asked}"] = bool(getattr(module, asked)())
            except TypeError: answers[f"{name}.{asked}"] = None
answers["left"] = [name for name in sys.modules if name.partition(".")[0] in PACKAGES]
answers["finders"] = sum(isinstance(finder, _Finder) for finder in sys.meta_path)
answers["found"] = [name for name in PACKAGES if importlib.util.find_spec(name)]
print(json.dumps(answers))
"""
    load = 'from assay.audit.adapters import openrlhf; openrlhf.SUBJECTS["openrlhf.rloo"]({})\n'
    said = []
    for code in (ask, load + ask):
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said.append(json.loads(done.stdout.splitlines()[-1]))
    assert said[0] == said[1] and len(said[0]) > 100
