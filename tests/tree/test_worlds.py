import pytest
import torch

from assay.tree.world import default_world
from assay.tree.worlds import drifted_world, far_world, small_world, state_values, tool_world

WORLDS = {
    "small": small_world(),
    "one token": small_world(max_length=1, end=None),
    "stale and mismatched": small_world(off_policy=True, mismatch=True),
    "tool": tool_world(),
    "far": far_world(),
    "drifted": drifted_world(),
}


@pytest.mark.parametrize("name", WORLDS)
def test_every_policy_of_a_world_is_one(name):
    for problem in WORLDS[name]:
        for logits in (problem.logits, problem.logits_old, problem.logits_ref, problem.draws):
            assert float(problem.tree.token_logp(logits).sum(1).exp().sum()) == pytest.approx(1.0, rel=1e-13)
        assert len(set(problem.reward.tolist())) > 1, "a constant reward shows nothing"


def test_small_worlds_are_small_and_have_the_lengths_that_are_asked_for():
    assert [len(problem.tree.path) for problem in small_world()] == [7, 7]
    assert [len(problem.tree.path) for problem in small_world(tokens=2)] == [3, 3]
    fixed = small_world(tokens=2, end=None)
    assert all(problem.tree.lengths.unique().tolist() == [2] for problem in fixed)
    assert set(small_world()[0].reward.tolist()) == {0.0, 1.0}


def test_policies_differ_where_they_are_said_to_and_nowhere_else():
    def policies(**options):
        problem = small_world(**options)[0]
        return torch.equal(problem.logits, problem.logits_old), torch.equal(problem.logits_old, problem.draws)

    assert policies() == (True, True)
    assert policies(off_policy=True) == (False, True)
    assert policies(mismatch=True) == (True, False)
    assert policies(off_policy=True, mismatch=True) == (False, False)
    assert not torch.equal(small_world()[0].logits, small_world(seed=1)[0].logits)


def test_the_environment_speaks_in_the_middle_of_a_response():
    problem = tool_world()[0]
    texts = [
        response[:length].tolist()
        for response, length in zip(problem.tree.responses, problem.tree.lengths, strict=True)
    ]
    assert texts == [[0], *([call, 3, last] for call in (1, 2) for last in (0, 1, 2))]
    assert problem.mask.tolist() == [[True, False, False], *[[True, False, True]] * 6]
    forced = problem.tree.token_logp(problem.logits)[1:, 1]
    assert torch.equal(forced, torch.zeros_like(forced)), "what is given has probability one"


def test_the_critic_is_exact_where_the_policy_acts_and_only_there():
    """The value of a state is the mean, over what follows, of the value there."""
    problem = tool_world()[0]
    tree, chance = problem.tree, problem.tree.next_logp(problem.logits).exp()
    leaves = tree.path.gather(1, tree.lengths[:, None] - 1)[:, 0].tolist()
    worth = dict(zip(leaves, problem.reward.tolist(), strict=True))
    for row in reversed(range(len(tree.inner))):
        node = int(tree.inner[row])
        following = [n for n in range(len(tree.parent)) if int(tree.parent[n]) == node]
        worth[node] = sum(float(chance[row, int(tree.token[n])]) * worth[n] for n in following)
    expected = [worth[int(node)] for node in tree.inner]
    assert state_values(problem).tolist() == pytest.approx(expected, rel=1e-13)
    right = (problem.value - torch.tensor(expected, dtype=torch.float64)).abs() < 1e-12
    assert torch.equal(right, ~problem.observed)


def test_far_ratios_reach_every_clip():
    for problem in far_world():
        gap = problem.tree.token_logp(problem.logits) - problem.tree.token_logp(problem.logits_old)
        ratio = gap.exp()[problem.mask]
        assert float(ratio.max()) > 4 and float(ratio.min()) < 0.5
        assert bool(problem.tree.truncated.any()) and not torch.equal(problem.logits_old, problem.draws)
    assert torch.equal(far_world()[0].reward, default_world()[0].reward)


def test_the_gap_to_a_token_that_was_given_up_overflows():
    for problem in drifted_world():
        logp, logp_ref = (problem.tree.token_logp(x)[problem.mask] for x in (problem.logits, problem.logits_ref))
        assert bool(logp.isfinite().all()) and bool((logp_ref - logp).exp().isinf().any())
        assert float(problem.sampler_logp.exp().min()) > 1e-3, "the sampler still draws every response"
