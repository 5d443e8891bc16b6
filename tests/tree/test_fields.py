import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch.distributions import Categorical, kl_divergence

from assay.errors import InputError
from assay.tree import fields
from assay.tree.attribution import attribute
from assay.tree.world import default_world
from assay.tree.worlds import small_world, tool_world

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


SCALARS = [name for name in fields.OBJECTIVES if not name.startswith("frozen")]


@pytest.mark.parametrize("name", [*SCALARS, "pass_at_1", "pass_at_3"])
def test_a_field_is_the_derivative_of_its_scalar(problem, name):
    direction = torch.randn(problem.logits.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def scalar(step):
        return float(fields.scalar_of(name)(problem, problem.logits + step * direction))

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


@pytest.mark.parametrize("responses", [1, 2, 3])
def test_the_best_of_several_is_the_mean_over_all_of_them(responses):
    for problem in small_world():
        chance, reward = problem.sampler_logp.exp().tolist(), problem.reward.tolist()
        expected = sum(
            math.prod(chance[i] for i in drawn) * max(reward[i] for i in drawn)
            for drawn in itertools.product(range(len(chance)), repeat=responses)
        )
        made = fields.scalar_of(f"pass_at_{responses}")(problem, problem.logits)
        assert float(made) == pytest.approx(expected, rel=1e-13)


def test_with_binary_rewards_the_reweighted_objectives_are_functions_of_the_success_rate():
    easy = WORLD[0]
    p = float((easy.tree.token_logp(easy.logits).sum(1).exp() * easy.reward).sum())
    assert set(easy.reward.tolist()) == {0.0, 1.0}
    plain = fields.field("reward", easy)
    for name, factor in {
        "log_reward": 1 / p,
        "arcsin_reward": 1 / math.sqrt(p * (1 - p)),
        "pass_at_4": 4 * (1 - p) ** 3,
    }.items():
        assert torch.allclose(fields.field(name, easy), factor * plain, atol=1e-14), name


@pytest.mark.parametrize("world", [WORLD, small_world(off_policy=True, mismatch=True), tool_world()])
def test_the_surrogate_lets_the_policy_choose_one_token_and_the_sampler_the_others(world):
    """``Σ_s visits_q(s) Σ_a p(a|s) Q_q(s, a)`` with Q by walking back over the tree."""
    for problem in world:
        tree = problem.tree
        p, q = tree.next_logp(problem.logits).exp(), tree.next_logp(problem.draws).exp()
        row = {int(node): number for number, node in enumerate(tree.inner)}
        ends = {
            int(path[int(length) - 1]): i for i, (path, length) in enumerate(zip(tree.path, tree.lengths, strict=True))
        }
        children = {(int(tree.parent[n]), int(tree.token[n])): n for n in range(1, len(tree.parent))}

        def worth(node, row=row, ends=ends, children=children, q=q, problem=problem):
            if node in ends:
                return float(problem.reward[ends[node]])
            return sum(float(q[row[node], a]) * worth(n) for (s, a), n in children.items() if s == node)

        def reached(node, row=row, tree=tree, q=q):
            if not node:
                return 1.0
            parent = int(tree.parent[node])
            return reached(parent) * float(q[row[parent], int(tree.token[node])])

        def chosen(node, problem=problem, row=row):
            return problem.observed is None or not bool(problem.observed[row[node]])

        expected = sum(reached(s) * float(p[row[s], a]) * worth(n) for (s, a), n in children.items() if chosen(s))
        made = fields.scalar_of("surrogate")(problem, problem.logits)
        assert float(made) == pytest.approx(expected, rel=1e-13)


def test_on_policy_the_surrogate_is_the_reward_and_its_kl_the_frozen_one():
    for problem in default_world():
        assert torch.allclose(fields.field("surrogate", problem), fields.field("reward", problem), atol=1e-14)
        assert torch.allclose(fields.field("sampler_kl", problem), fields.field("frozen_kl", problem), atol=1e-14)
    stale = WORLD[1]
    assert float((fields.field("surrogate", stale) - fields.field("reward", stale)).norm()) > 1e-3
    visits, p = fields.visits(stale, stale.logits_old), stale.logits.detach().requires_grad_()
    local = kl_divergence(Categorical(logits=p), Categorical(logits=stale.logits_ref))
    expected = torch.autograd.grad((visits * local).sum(), p)[0].flatten()
    assert torch.allclose(fields.field("sampler_kl", stale), expected, atol=1e-14)


def test_a_response_that_the_sampler_never_draws_counts_for_nothing():
    """The sum runs over what is drawn; a ratio to zero does not spoil it."""
    draws = WORLD[0].logits_old.clone()
    draws[0, 2] = float("-inf")
    problem = replace(WORLD[0], logits_sampler=draws)
    drawn = problem.tree.responses[:, 0] != 2
    leaf = problem.logits.clone().requires_grad_()
    ratio = (problem.tree.token_logp(leaf) - problem.tree.token_logp(draws))[drawn].exp()
    chance = problem.sampler_logp.exp()[drawn]
    expected = (chance * problem.reward[drawn] * (ratio * problem.mask[drawn]).sum(1)).sum()
    assert float(chance.sum()) == pytest.approx(1.0)
    assert torch.allclose(fields.field("surrogate", problem), torch.autograd.grad(expected, leaf)[0].flatten())
    assert bool(fields.field("sampler_kl", problem).isfinite().all())


def test_length_counts_what_the_policy_chose():
    problem = tool_world()[0]
    chance, one_token = problem.sampler_logp.exp(), problem.tree.lengths == 1
    expected = float(chance[one_token].sum() + 2 * chance[~one_token].sum())
    assert float(fields.expected_length(problem, problem.logits)) == pytest.approx(expected, rel=1e-14)


def test_a_rate_that_is_no_probability_of_success_is_refused():
    for problem, score in itertools.product((*WORLD, *small_world()), (0.0, 1.0, -2.0)):
        constant = replace(problem, reward=torch.full_like(problem.reward, score))
        for name in ("log_reward", "arcsin_reward"):
            with pytest.raises(InputError, match=f"{name}.*needs one between 0 and 1"):
                fields.field(name, constant)


def test_objectives_are_parsed_and_never_evaluated():
    assert fields.parse_objective("reward - 0.03*kl") == {"reward": 1.0, "kl": -0.03}
    assert fields.parse_objective("-kl+.5*entropy + 1e-3*length - kl") == {"kl": -2.0, "entropy": 0.5, "length": 1e-3}
    numbered = fields.parse_objective("pass_at_16 - 0.5*surrogate + log_reward - arcsin_reward")
    assert numbered == {"pass_at_16": 1.0, "surrogate": -0.5, "log_reward": 1.0, "arcsin_reward": -1.0}
    for text in (
        "",
        "pass_at_0",
        "pass_at_",
        "pass_at_2x",
        "2reward",
        "reward kl",
        "2",
        "reward*2",
        "reward()",
        "reward; kl",
        "0.1*reward*kl",
    ):
        with pytest.raises(InputError, match="objective"):
            fields.parse_objective(text)


def test_the_objectives_gradient_is_the_mean_over_problems():
    made = fields.objective_gradient({"reward": 2.0, "kl": -0.5}, WORLD)
    parts = [2 * fields.field("reward", one) - 0.5 * fields.field("kl", one) for one in WORLD]
    assert torch.allclose(made, torch.cat(parts) / 2, atol=1e-15)


def test_attribution_finds_the_shortest_combination_and_else_the_nearest_of_what_was_asked():
    generator = torch.Generator().manual_seed(3)
    known = {name: torch.randn(12, dtype=torch.float64, generator=generator) for name in "abcde"}
    two = attribute(0.75 * known["b"] - 2 * known["d"], known, scale=1.0, nearest="a")
    assert two.exact and two.coefficients == pytest.approx({"b": 0.75, "d": -2.0})
    assert attribute(known["c"] * 1e-12, known, scale=1.0, nearest="a").coefficients == {}
    twin = {**known, "f": 3 * known["b"]}
    assert attribute(6 * known["b"], twin, scale=1.0, nearest="a").coefficients == pytest.approx({"b": 6.0})
    other = torch.randn(12, dtype=torch.float64, generator=generator)
    none = attribute(other, known, scale=1.0, nearest=["a", "c"])
    assert not none.exact and none.coefficients.keys() == {"a", "c"}
    left = other - sum(value * known[name] for name, value in none.coefficients.items())
    along = torch.stack([known["a"], known["c"]]) @ left
    assert along.tolist() == pytest.approx([0.0, 0.0], abs=1e-12), "least squares leaves nothing along them"
    assert none.residual == pytest.approx(float(left.norm() / other.norm()))
