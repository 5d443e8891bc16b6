"""What verl 0.9.1 and OpenRLHF 0.11.2 ascend under given settings, as JSON rows.

Needs an environment that holds the libraries (``make test-peers`` makes it). Every group of two responses is
enumerated. A batch is one group, or one of each of two problems where the row says two prompts. All rows take a few
minutes on one core.

    python benchmarks/peers_verl_openrlhf.py > peers.json
    python benchmarks/peers_verl_openrlhf.py verl.grpo        # rows of one subject
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from assay import audit
from assay.audit.adapters import openrlhf, verl
from assay.audit.loss_report import describe
from assay.core.streams import Stream, normals
from assay.tree.prefix import Grammar, prefix_tree
from assay.tree.world import TreeProblem, World, default_world

SUBJECTS = verl.SUBJECTS | openrlhf.SUBJECTS
SUM = {"loss_agg_mode": "seq-mean-token-sum"}
NO_KL = {"algo.kl.init_coef": "0"}
KL_LOSS = {"algo.kl.use_loss": "true", "algo.kl.init_coef": "0.1"}


@dataclass(frozen=True)
class Case:
    """One row: a subject, its settings, and the world it is audited in."""

    subject: str
    settings: Mapping[str, str] = field(default_factory=dict)
    world: str = "on-policy"
    prompts: int = 1


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
    subject = SUBJECTS[case.subject](case.settings)
    report = audit.loss(subject, group_size=2, world=WORLDS[case.world], prompts=case.prompts)
    library = case.subject.partition(".")[0]
    made = report.ascends
    return {
        "library": library,
        "version": subject.versions[library],
        "subject": case.subject,
        "settings": dict(case.settings),
        "world": case.world,
        "prompts": case.prompts,
        "objective": report.objective,
        "verdict": str(report.verdict),
        "ascends": "" if made is None else describe(made),
        "because": report.because,
        "coefficients": {} if made is None else made.coefficients,
        "residual": None if made is None else made.residual,
        "by_problem": {name: describe(part) for name, part in report.by_problem.items()},
        "variance_ratio": report.variance_ratio,
        "invariants": {claim.name: str(claim.verdict) for claim in report.claims},
        "findings": [finding for claim in report.claims for finding in claim.findings],
        "tolerance": subject.tolerance,
        "why": subject.why,
        "reaches": subject.reaches,
        "misses": subject.misses,
    }


def rows(subject: str = "") -> list[dict[str, Any]]:
    """Return the rows of the table, or those of one subject."""
    cases = [*verl_cases(), *openrlhf_cases()]
    return [row(case) for case in cases if not subject or case.subject == subject]


if __name__ == "__main__":
    print(json.dumps(rows(*sys.argv[1:2]), indent=1))
