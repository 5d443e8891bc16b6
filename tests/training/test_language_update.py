"""The gradient of a batch: the same in every split, for every algorithm, and that of plain rows."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from policies.tiny_policies import adapted, distance, gradient_of, naive_logits, taken, tiny_causal, twins
from tiny_work import tiny_recipe
from torch import Tensor

from assay.core.algorithms import ALGORITHMS
from assay.core.estimator import Rows, loss, prepare
from assay.core.settings import PLACEMENTS
from assay.errors import UpdateError
from assay.policies.causal.model import CausalPolicy
from assay.training.language.batch import Batch
from assay.training.language.recipe import estimator_of
from assay.training.language.update import Drawing, differentiate, enough_memory, score
from assay.training.language.warmup import differentiate_likelihood

BATCH = Batch(
    ((7, 8, 9, 10, 11, 12), (20,), (30, 31, 32)),
    ((5, 6, 2, 1), (9,), (4, 4, 1), (1,), (3, 3, 3, 3, 3, 3), (8, 1), (7, 2, 1), (6, 6), (2, 30, 1)),
    (0, 0, 0, 1, 1, 1, 2, 2, 2),
)
REWARD = [1.0, 0.0, 0.0, float("nan"), 1.0, 0.0, 1.0, 1.0, 1.0]
"""The second group has one that could not be scored; the third is silent."""


def rows_of(model: Any, batch: Batch, reference: Any, temperature: float) -> Rows:
    """Return a batch as the estimators see it, from plain forwards, with gradient and all logits."""
    logits, logits_ref = (
        [
            naive_logits(made, batch.prompts[batch.group[row]], said) / temperature
            for row, said in enumerate(batch.responses)
        ]
        for made in (model, reference)
    )
    widest = max(len(said) for said in batch.responses)

    def table(values: list[Tensor]) -> Tensor:
        return torch.stack([torch.nn.functional.pad(v, (0, 0) * (v.ndim - 1) + (0, widest - len(v))) for v in values])

    said = [
        [taken(row.log_softmax(-1), response) for row, response in zip(made, batch.responses, strict=True)]
        for made in (logits, logits_ref)
    ]
    logp, logp_ref = table(said[0]), table(said[1]).detach()
    return Rows(
        logp=logp,
        logp_old=logp.detach(),
        logp_ref=logp_ref,
        logp_sampler=logp.detach(),
        mask=batch.mask,
        reward=torch.tensor(REWARD, dtype=logp.dtype),
        group=torch.tensor(batch.group),
        tokens=batch.padded(batch.responses, torch.long),
        logits=table(logits),
        logits_ref=table(logits_ref).detach(),
    )


def compared(rl: dict[str, Any], *, later: bool = False, temperature: float = 0.8) -> list[float]:
    """Return the distances of gradients in several splits from that of plain rows in one."""
    recipe = tiny_recipe(rl={"num_iterations": 1 + later, **rl})
    algorithm, settings = estimator_of(recipe)
    (policy, model), (reference, plain) = twins(), twins(seed=5)
    noise = 0.3 * torch.randn(BATCH.mask.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def of_plain_rows() -> None:
        rows = rows_of(model, BATCH, plain, temperature)
        prepared = prepare(algorithm, settings, rows)
        if later:
            old = torch.where(rows.mask, rows.logp.detach() + noise, 0.0)
            prepared = dataclasses.replace(prepared, rows=dataclasses.replace(prepared.rows, logp_old=old))
        loss(algorithm, settings, prepared).backward()

    expected = gradient_of(model, of_plain_rows)
    drawing, found = Drawing(temperature), []
    logp, logp_ref = (score(made, BATCH, drawing=drawing, budget=50) for made in (policy, reference))
    prepared = prepare(algorithm, settings, dataclasses.replace(
        rows_of(model, BATCH, plain, temperature), logp=logp, logp_old=logp, logp_ref=logp_ref, logp_sampler=logp,
        logits=None, logits_ref=None,
    ))  # fmt: skip
    for budget in (1, 12, 10_000):
        made = gradient_of(
            policy.model,
            lambda budget=budget: differentiate(
                policy, BATCH, prepared, algorithm, settings, drawing=drawing, budget=budget, reference=reference,
                logp_old=torch.where(BATCH.mask, logp + noise, 0.0) if later else None,
            ),
        )  # fmt: skip
        found.append(distance(made, expected))
    return found


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_one_gradient_in_every_split(name):
    assert max(compared({"algorithm": name})) < 1e-10


@pytest.mark.parametrize("name", ["grpo", "gspo", "cispo", "dapo", "ppo", "dual_clip", "reinforce_pp"])
def test_so_it_has_at_a_later_pass_with_ratios(name):
    assert max(compared({"algorithm": name, "beta": 0.0}, later=True)) < 1e-10


@pytest.mark.parametrize("kl", [kl for kl in PLACEMENTS if PLACEMENTS[kl].field])
def test_every_placement_of_the_kl_has_one_gradient_in_every_split(kl):
    assert max(compared({"kl": kl, "beta": 0.3})) < 1e-10


def test_the_entropy_is_that_of_the_tempered_policy():
    assert max(compared({"beta": 0.0, "entropy": 0.1}, temperature=0.5)) < 1e-10


@pytest.mark.parametrize("shift", [0.0, 1e-3])
def test_at_the_first_pass_every_ratio_is_exactly_one(shift):
    """However the sampler rounded: a clip of nothing cuts nothing, and the gradient is the score's to the last bit."""
    policy, _ = twins()
    logp = score(policy, BATCH, drawing=Drawing(), budget=50) + shift * BATCH.mask
    rows = Rows(
        logp=logp, logp_old=logp, logp_ref=logp, logp_sampler=logp, mask=BATCH.mask, group=torch.tensor(BATCH.group),
        reward=torch.tensor(REWARD, dtype=torch.float64), tokens=BATCH.padded(BATCH.responses, torch.long),
    )  # fmt: skip
    made = {}
    for name, given in (("rloo", {}), ("ppo", {"clip_low": 0.0, "clip_high": 0.0})):
        algorithm = ALGORITHMS[name]
        settings = algorithm.settle(given)
        prepared = prepare(algorithm, settings, rows)
        made[name] = gradient_of(
            policy.model,
            lambda prepared=prepared, algorithm=algorithm, settings=settings: differentiate(
                policy, BATCH, prepared, algorithm, settings, drawing=Drawing(), budget=15
            ),
        )
    assert distance(made["ppo"], made["rloo"]) == 0.0


def test_what_a_pass_reports_is_of_the_rows_it_computed():
    (policy, model), algorithm = twins(), ALGORITHMS["rloo"]
    settings = algorithm.settle({})
    rows = rows_of(model, BATCH, model, 1.0)
    prepared = prepare(algorithm, settings, dataclasses.replace(rows, logp=rows.logp.detach(), logits=None))
    made = differentiate(policy, BATCH, prepared, algorithm, settings, drawing=Drawing(), budget=12)
    policy.model.zero_grad()
    informative = [row for row in range(9) if bool((prepared.adv[row] != 0).any())]
    assert informative == [0, 1, 2, 4, 5]
    assert made.scored.any(1).nonzero()[:, 0].tolist() == informative
    for row in informative:
        length = len(BATCH.responses[row])
        assert made.scored[row].sum() == length
        assert torch.allclose(made.logp[row, :length], rows.logp[row, :length], atol=1e-12)
        law = rows.logits[row, :length].log_softmax(-1)
        assert torch.allclose(made.entropy[row, :length], -(law.exp() * law).sum(1), atol=1e-12)
    assert not made.logp[~made.scored].any() and not made.entropy[~made.scored].any()


@pytest.mark.parametrize("budget", [1, 9, 10_000])
def test_scores_are_those_of_plain_rows(budget):
    policy, model = twins()
    found = score(policy, BATCH, drawing=Drawing(0.8), budget=budget)
    assert torch.allclose(found, rows_of(model, BATCH, model, 0.8).logp, rtol=0, atol=1e-12)
    assert not found.requires_grad


@pytest.mark.parametrize("budget", [1, 9, 10_000])
def test_the_likelihood_of_answers_is_a_mean_over_responses_of_sums(budget):
    policy, model = twins()

    def plain() -> None:
        (-rows_of(model, BATCH, model, 1.0).logp.sum() / 9).backward()

    values = []
    found = gradient_of(policy.model, lambda: values.append(differentiate_likelihood(policy, BATCH, budget=budget)))
    assert distance(found, gradient_of(model, plain)) < 1e-10
    assert values[0] == pytest.approx(-float(rows_of(model, BATCH, model, 1.0).logp.detach().sum()) / 9)


def test_an_adapted_policy_leaves_its_base_without_gradient():
    policy = CausalPolicy(adapted(tiny_causal()))
    differentiate_likelihood(policy, BATCH, budget=10)
    assert all((value.grad is not None) == ("lora_" in name) for name, value in policy.model.named_parameters())


@pytest.mark.parametrize(
    "error",
    [MemoryError(), torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("can't allocate memory: you tried")],
    ids=["python", "device", "host"],
)
def test_memory_that_runs_out_names_a_smaller_budget(error):
    with pytest.raises(UpdateError, match="token_budget = 8192: .*resume with 4096"), enough_memory(8192):
        raise error


def test_another_error_is_not_called_one_of_memory():
    with pytest.raises(RuntimeError, match="shapes"), enough_memory(8192):
        raise RuntimeError("shapes do not match")
