import json

import pytest
import torch

from assay.audit import seed
from assay.audit.seed import audit, claims
from assay.verdicts import Verdict, overall


@pytest.fixture(scope="module")
def record():
    return audit()


def test_the_score_gradient_is_the_direct_one_in_each_of_seventeen_tensors(record):
    assert len(record["tensors"]) == 17 == len({row["name"] for row in record["tensors"]})
    assert all(row["max_absolute_error"] <= 1e-12 < row["direct_l2_norm"] for row in record["tensors"])
    assert record["trajectories"] == 10**2
    assert record["holds"] and overall(claims(record)) is Verdict.HOLDS


def test_the_negative_control_is_rejected(record):
    assert record["negative_control"]["status"] == "REJECTED"
    assert record["negative_control"]["max_absolute_gradient_error"] > 1e-3


def test_nothing_is_trained_and_the_weights_are_as_they_were(record):
    assert record["model_unchanged"] and not record["training_performed"]


def test_the_record_is_plain_json(record):
    assert json.loads(json.dumps(record, allow_nan=False)) == record


def test_policy_and_reference_differ_in_one_coordinate_of_the_head_by_a_tenth():
    policy, reference = seed._disturbed_pair()
    changed = {
        name: parameter - other
        for (name, parameter), other in zip(policy.named_parameters(), reference.parameters(), strict=True)
        if not torch.equal(parameter, other)
    }
    assert list(changed) == ["head.weight"]
    assert changed["head.weight"].count_nonzero() == 1
    assert float(changed["head.weight"].detach().sum()) == pytest.approx(0.1)
    assert all(p.dtype == torch.float64 for p in policy.parameters())


BREAKAGES = {
    "a score gradient that is wrong": (
        "penalised_reward",
        lambda original: lambda *a, beta: original(*a, beta=2 * beta),
        "score gradient = direct gradient",
    ),
    "a scorer that is wrong": (
        "score_stepwise",
        lambda original: lambda *a: original(*a) + 1e-9,
        "independent scorer agrees",
    ),
    "a support with a response twice": (
        "all_responses",
        lambda original: lambda *a: torch.cat([original(*a)[:1], original(*a)[:-1]]),
        "grammar support",
    ),
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_each_kind_of_fault_is_seen_by_its_own_claim(breakage, monkeypatch):
    name, change, claim = BREAKAGES[breakage]
    monkeypatch.setattr(seed, name, change(getattr(seed, name)))
    made = audit()
    assert not made["holds"]
    assert Verdict.DISAGREES in {c.verdict for c in claims(made) if c.name == claim}
