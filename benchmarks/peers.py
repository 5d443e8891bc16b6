"""What TRL 1.16, verl 0.9.1 and OpenRLHF 0.11.2 ascend under given settings: the tables of docs/peers.md.

    make peers-table                                # writes docs/peers.json; some ten minutes on one core
    python benchmarks/peers.py trl.grpo             # prints the rows of one subject

Needs an environment that holds the libraries (``make test-peers`` makes it). A row of a loss enumerates every group of
a small world through the library's own code; a row of a trainer runs a real one on every batch of a tiny GPT-2.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from assay import audit
from assay.audit.adapters import openrlhf, verl
from assay.audit.adapters.trl_trainer import TRAINERS
from assay.audit.subjects import named_subjects
from assay.core.streams import Stream, normals
from assay.tree.attribution import Attribution
from assay.tree.prefix import Grammar, prefix_tree
from assay.tree.world import TreeProblem, World, default_world

TARGET = Path(__file__).parents[1] / "docs" / "peers.json"
SUM = {"loss_agg_mode": "seq-mean-token-sum"}
NO_KL = {"algo.kl.init_coef": "0"}
KL_LOSS = {"algo.kl.use_loss": "true", "algo.kl.init_coef": "0.1"}
PLAIN = {"scale_rewards": "none"}
SHORT = {"max_completion_length": "3"}


@dataclass(frozen=True)
class Case:
    """One row: a subject, its settings, and the world it is audited in."""

    subject: str
    settings: Mapping[str, str] = field(default_factory=dict)
    world: str = "on-policy"
    prompts: int = 1
    trainer: Mapping[str, Any] = field(default_factory=dict)


def one_length(seed: int = 0) -> World:
    """Return a world whose responses all have three tokens: no average over tokens can go wrong there."""
    tree = prefix_tree(Grammar(tokens=2, max_length=3))
    shape = (len(tree.inner), 2)
    made = []
    for number, problem in enumerate(default_world(seed=seed)):
        logits, shift = (normals(seed, Stream.INIT, 14, problem=100 + 2 * number + part).view(shape) for part in (0, 1))
        reward = problem.reward[: len(tree.path)]
        made.append(TreeProblem(problem.name, tree, logits, logits + 0.5 * shift, logits, reward))
    return tuple(made)


def other_sampler(seed: int = 0) -> World:
    """Return the default world with a sampler that differs from the policy."""

    def moved(number: int, logits: torch.Tensor) -> torch.Tensor:
        return logits + 0.4 * normals(seed, Stream.INIT, logits.numel(), problem=200 + number).view_as(logits)

    world = enumerate(default_world(seed=seed))
    return tuple(dataclasses.replace(made, logits_sampler=moved(number, made.logits)) for number, made in world)


WORLDS = {
    "on-policy": default_world(),
    "off-policy": default_world(off_policy=True),
    "other sampler": other_sampler(),
    "one length": one_length(),
}


def trl_cases() -> Iterator[Case]:
    """Yield what the table shows of TRL."""
    yield Case("trl.rloo")
    yield Case("trl.rloo", {"normalize_advantages": "true"})
    yield Case("trl.rloo", {}, "off-policy")
    yield Case("trl.grpo")
    for kind in ("dapo", "grpo", "bnpo", "sapo", "vespo", "cispo"):
        yield Case("trl.grpo", {"loss_type": kind} | PLAIN)
    yield Case("trl.grpo", {"loss_type": "cispo", "epsilon_high": "5"} | PLAIN)
    yield Case("trl.grpo", {"loss_type": "grpo", "importance_sampling_level": "sequence"} | PLAIN)
    for kind, length in (("dr_grpo", SHORT), ("luspo", {})):
        yield Case("trl.grpo", {"loss_type": kind} | PLAIN | length)
        yield Case("trl.grpo", {"loss_type": kind} | length)
    luspo = {"loss_type": "luspo"} | PLAIN
    yield Case("trl.grpo", luspo, "off-policy")
    yield Case("trl.grpo", luspo | {"beta": "0.1"})
    yield Case("trl.grpo", luspo | {"beta": "0.1", "use_bias_correction_kl": "false"})
    yield Case("trl.grpo", luspo | {"beta": "0.1", "importance_sampling_level": "sequence"})
    yield Case("trl.grpo", luspo | {"mask_truncated_completions": "true"})
    yield Case("trl.grpo", luspo | {"top_entropy_quantile": "0.2"})
    yield Case("trl.rloo_trainer")
    yield Case("trl.rloo_trainer", trainer={"prompts": ("a", "b"), "length": 1})
    yield Case("trl.rloo_trainer", trainer={"prompts": ("a", "b b"), "length": 1})
    yield Case("trl.grpo_trainer")
    yield Case("trl.grpo_trainer", {"loss_type": "dr_grpo"} | SHORT | PLAIN)
    yield Case("trl.grpo_trainer", luspo)


def verl_cases() -> Iterator[Case]:
    """Yield what the table shows of verl."""
    for mode in ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"):
        yield Case("verl.rloo", {"loss_agg_mode": mode})
    norm = {"norm_adv_by_std_in_grpo": "false"}
    yield Case("verl.rloo", {"loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": "3"})
    yield Case("verl.grpo")
    yield Case("verl.grpo", SUM)
    yield Case("verl.grpo", SUM | norm)
    yield Case("verl.grpo", {"loss_agg_mode": "seq-mean-token-sum-norm"} | norm)
    yield Case("verl.grpo", {"loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": "3"} | norm)
    for name in verl.ESTIMATORS:
        if name not in ("rloo", "grpo"):
            yield Case(f"verl.{name}", SUM)
    yield Case("verl.grpo_passk", SUM | norm)
    for name in ("rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"):
        yield Case(f"verl.{name}", SUM, "one length", prompts=2)
    for kind in ("kl", "k2", "low_var_kl", "k3+", "abs"):
        yield Case("verl.rloo", SUM | {"use_kl_loss": "true", "kl_loss_coef": "0.1", "kl_loss_type": kind})
    for kind in ("kl", "low_var_kl"):
        yield Case("verl.rloo", SUM | {"use_kl_in_reward": "true", "kl_coef": "0.1", "kl_penalty": kind})
    yield Case("verl.remax", SUM | {"use_kl_in_reward": "true", "kl_coef": "0.1"})
    yield Case("verl.grpo", SUM | norm | {"use_kl_in_reward": "true", "kl_coef": "0.1"})
    yield Case("verl.grpo", SUM | {"use_kl_in_reward": "true", "kl_coef": "0.1"})
    yield Case("verl.rloo", SUM | {"entropy_coeff": "0.01"})
    for mode in ("gspo", "sapo", "gpg", "cispo", "geo_mean", "dppo_tv", "dppo_kl", "clip_cov", "kl_cov"):
        extra = {} if mode in ("sapo", "geo_mean") else SUM
        yield Case("verl.rloo", extra | {"loss_mode": mode})
    yield Case("verl.rloo", SUM | {"loss_mode": "clip_cov", "clip_cov_lb": "-10", "clip_cov_ub": "10"})
    yield Case("verl.rloo", SUM | {"loss_mode": "dro", "dro_beta": "0.1"})
    for mode in ("vanilla", "gspo", "gpg", "cispo", "dppo_tv"):
        yield Case("verl.rloo", SUM | {"loss_mode": mode}, "off-policy")
    wide = {"clip_ratio_low": "1", "clip_ratio_high": "1000", "clip_ratio_c": "1000"}
    yield Case("verl.rloo", SUM | wide, "off-policy")
    yield Case("verl.rloo", SUM, "other sampler")
    for level in ("token", "sequence"):
        for bound in ("2.0", "1e9"):
            yield Case("verl.rloo", SUM | {"rollout_is": level, "rollout_is_threshold": bound}, "other sampler")


def openrlhf_cases() -> Iterator[Case]:
    """Yield what the table shows of OpenRLHF."""
    yield Case("openrlhf.policy_loss")
    yield Case("openrlhf.policy_loss", {"actor.loss_agg_mode": "seq-mean-token-mean"})
    yield Case("openrlhf.policy_loss", {"actor.policy_loss_type": "gspo"})
    for name in openrlhf.ESTIMATORS:
        yield Case(f"openrlhf.{name}")
        yield Case(f"openrlhf.{name}", {}, "one length")
        yield Case(f"openrlhf.{name}", NO_KL, "one length")
    for name in ("rloo", "flash_reinforce", "reinforce"):
        yield Case(f"openrlhf.{name}", NO_KL, "one length", prompts=2)
    for kind in ("k1", "k2", "k3"):
        yield Case("openrlhf.policy_loss", KL_LOSS | {"algo.kl.estimator": kind}, "one length")
    yield Case("openrlhf.policy_loss", KL_LOSS | {"algo.kl.unbiased_gradient": "true"}, "one length")
    yield Case("openrlhf.policy_loss", {"actor.entropy_coef": "0.01"}, "one length")
    yield Case("openrlhf.policy_loss", {}, "off-policy")
    yield Case("openrlhf.policy_loss", {"actor.dual_clip": "3"}, "off-policy")


def row(case: Case) -> dict[str, Any]:
    """Audit one case and return it as plain values."""
    made = _trainer_row(case) if case.subject in TRAINERS else _loss_row(case)
    library = case.subject.partition(".")[0]
    return {
        "library": library,
        "subject": case.subject,
        "settings": dict(case.settings),
        "world": case.world,
        "prompts": case.prompts,
        **made,
    }


def _loss_row(case: Case) -> dict[str, Any]:
    subject = named_subjects()[case.subject](case.settings)
    report = audit.loss(subject, group_size=2, world=WORLDS[case.world], prompts=case.prompts)
    return {
        "objective": report.objective,
        "verdict": str(report.verdict),
        "ascends": _short(report.ascends),
        "because": report.because,
        "variance_ratio": report.variance_ratio,
        "invariants": {claim.name: str(claim.verdict) for claim in report.claims},
        "tolerance": subject.tolerance,
        "why": subject.why,
        "versions": dict(subject.versions),
    }


def _trainer_row(case: Case) -> dict[str, Any]:
    subject = TRAINERS[case.subject](case.settings, group_size=2, **case.trainer)
    report = subject.audit()
    if "prompts" in case.trainer:
        lengths = sorted({len(place.prompt) for place in subject.problems})
        world = f"{len(subject.problems)} prompts of {' and '.join(map(str, lengths))} tokens"
    else:
        world = "one prompt"
    return {
        "world": world,
        "objective": subject.objective,
        "verdict": str(report.check.verdict),
        "ascends": _short(report.ascends),
        "because": "",
        "variance_ratio": None,
        "invariants": {report.check.name: str(report.check.verdict)},
        "tolerance": subject.tolerance,
        "why": subject.why,
        "versions": dict(subject.versions),
    }


def _short(made: Attribution | None) -> str:
    """Return what is ascended in as few words as a cell of a table takes."""
    if made is None:
        return ""
    terms = " + ".join(f"{value:.5g} {name}" for name, value in made.coefficients.items()).replace("+ -", "- ")
    return (terms or "nothing") if made.exact else f"no known sum; {terms} leaves {made.residual:.1%}"


def cases() -> Iterator[Case]:
    """Yield every row's case."""
    yield from trl_cases()
    yield from verl_cases()
    yield from openrlhf_cases()


def main() -> None:
    """Print the rows of the subjects that are asked for, or write all of them for the docs."""
    if len(sys.argv) > 1:
        print(json.dumps([row(case) for case in cases() if case.subject in sys.argv[1:]], indent=1))
        return
    rows = []
    for case in cases():
        rows.append(row(case))
        print(case.subject, dict(case.settings), case.world, rows[-1]["verdict"], rows[-1]["ascends"], flush=True)
    versions = {name: version for made in rows for name, version in made.pop("versions").items()}
    TARGET.write_text(json.dumps({"versions": versions, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
