import pytest
import torch
from torch.distributions import Categorical, kl_divergence

from assay.errors import InputError
from assay.tree import fields
from assay.tree.attribution import attribute
from assay.tree.world import default_world

WORLD = default_world(off_policy=True)


@pytest.fixture(params=WORLD, ids=lambda problem: problem.name.split(",")[0])
def problem(request):
    return request.param


def test_visits_add_up_to_the_expected_length(problem):
    """Every token is drawn at one visited prefix."""
    made = fields.visits(problem, problem.logits)
    assert float(made.sum()) == pytest.approx(float(fields.expected_length(problem, problem.logits)), rel=1e-14)
    assert float(made[0]) == pytest.approx(1.0)


def test_the_chain_rule_of_kl_and_entropy(problem):
    """KL and entropy of the response are those of each prefix, weighed by the visits to it."""
    p, q = Categorical(logits=problem.logits), Categorical(logits=problem.logits_ref)
    visits = fields.visits(problem, problem.logits)
    by_prefix = (visits * kl_divergence(p, q)).sum()
    assert float(fields.reverse_kl(problem, problem.logits)) == pytest.approx(float(by_prefix), rel=1e-12)
    assert float(fields.frozen_reverse_kl(problem, problem.logits)) == pytest.approx(float(by_prefix), rel=1e-12)
    assert float(fields.frozen_forward_kl(problem, problem.logits)) == pytest.approx(
        float((visits * kl_divergence(q, p)).sum()), rel=1e-12
    )
    reference_visits = fields.visits(problem, problem.logits_ref)
    forward = (reference_visits * kl_divergence(q, p)).sum()
    assert float(fields.forward_kl(problem, problem.logits)) == pytest.approx(float(forward), rel=1e-12)
    assert float(fields.entropy(problem, problem.logits)) == pytest.approx(
        float((visits * p.entropy()).sum()), rel=1e-12
    )


@pytest.mark.parametrize("name", [name for name in fields.FIELDS if not name.startswith("frozen")])
def test_a_field_is_the_derivative_of_its_scalar(problem, name):
    direction = torch.randn(problem.logits.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def scalar(step):
        return float(fields.FIELDS[name](problem, problem.logits + step * direction))

    slope = (scalar(1e-6) - scalar(-1e-6)) / 2e-6
    assert slope == pytest.approx(float(fields.field(name, problem) @ direction.flatten()), rel=1e-7, abs=1e-9)


def test_frozen_fields_hold_the_visits_fixed(problem):
    """At each prefix the frozen field is the visit's weight times the local gradient; the plain one has more to
    it."""
    p = problem.logits.detach().requires_grad_()
    local = kl_divergence(Categorical(logits=p), Categorical(logits=problem.logits_ref))
    weights = fields.visits(problem, problem.logits)
    expected = torch.autograd.grad((weights.detach() * local).sum(), p)[0].flatten()
    assert torch.allclose(fields.field("frozen_kl", problem), expected, atol=1e-14)
    assert float((fields.field("kl", problem) - expected).norm()) > 1e-3


def test_objectives_are_parsed_and_never_evaluated():
    assert fields.parse_objective("reward - 0.03*kl") == {"reward": 1.0, "kl": -0.03}
    assert fields.parse_objective("-kl+.5*entropy + 1e-3*length - kl") == {"kl": -2.0, "entropy": 0.5, "length": 1e-3}
    for text in ("", "reward kl", "2", "reward*2", "reward()", "reward; kl", "0.1*reward*kl"):
        with pytest.raises(InputError, match="objective"):
            fields.parse_objective(text)


def test_the_objectives_gradient_is_the_mean_over_problems():
    made = fields.objective_gradient({"reward": 2.0, "kl": -0.5}, WORLD)
    parts = [2 * fields.field("reward", one) - 0.5 * fields.field("kl", one) for one in WORLD]
    assert torch.allclose(made, torch.cat(parts) / 2, atol=1e-15)


def test_attribution_finds_the_shortest_combination():
    generator = torch.Generator().manual_seed(3)
    known = {name: torch.randn(12, dtype=torch.float64, generator=generator) for name in "abcde"}
    two = attribute(0.75 * known["b"] - 2 * known["d"], known, scale=1.0)
    assert two.exact and two.coefficients == pytest.approx({"b": 0.75, "d": -2.0})
    assert attribute(known["c"] * 1e-12, known, scale=1.0).coefficients == {}
    other = torch.randn(12, dtype=torch.float64, generator=generator)
    none = attribute(other, known, scale=1.0)
    assert not none.exact and len(none.coefficients) == 1
    name, value = next(iter(none.coefficients.items()))
    projection = float(other @ known[name] / (known[name] @ known[name]))
    assert value == pytest.approx(projection)
    assert none.residual == pytest.approx(float((other - projection * known[name]).norm() / other.norm()))
