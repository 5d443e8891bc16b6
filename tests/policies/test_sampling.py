import pytest
import torch

from assay.core.streams import Stream, uniforms
from assay.policies.sampling import inverse_cdf, sample, score, score_stepwise
from assay.policies.transformer import TinyTransformer
from assay.tree.trajectories import all_responses, tree_logp


@pytest.fixture
def policy() -> TinyTransformer:
    return TinyTransformer(vocabulary=13, responses=10, context=7, width=16, heads=2, feedforward=32, seed=3)


PROMPT = torch.tensor([[3, 10, 4, 11, 5, 12]])


def test_inverse_cdf_picks_the_interval_the_number_falls_in():
    """Probabilities 1/4, 0, 1/2, 1/4: the intervals are [0, .25), empty, [.25, .75), [.75, 1)."""
    probability = torch.tensor([[0.25, 0.0, 0.5, 0.25]])
    numbers = {0.0: 0, 0.2499: 0, 0.25: 2, 0.7499: 2, 0.75: 3, 1 - 2**-53: 3}
    for number, token in numbers.items():
        assert inverse_cdf(probability, torch.tensor([number], dtype=torch.float64)).tolist() == [token]


def test_rows_need_not_be_normalised():
    made = inverse_cdf(torch.tensor([[1.0, 3.0], [10.0, 30.0]]), torch.tensor([0.24, 0.26], dtype=torch.float64))
    assert made.tolist() == [0, 1]


def test_samples_follow_the_exact_distribution(policy):
    """A chi-square test of 20,000 samples against the enumerated probabilities, at one in a million."""
    from scipy.stats import chisquare

    rows = 20_000
    u = uniforms(1, Stream.ROLLOUT, 2, problem=[0] * rows, sample=list(range(rows)))
    response, _ = sample(policy, PROMPT, torch.zeros(rows, dtype=torch.long), u)
    counts = torch.bincount(response @ torch.tensor([10, 1]), minlength=100).double()
    with torch.no_grad():
        expected = tree_logp(policy, PROMPT, tokens=10, depth=2)[0].exp().double() * rows
    assert float(expected.min()) > 5, "every cell is large enough for the chi-square approximation"
    assert chisquare(counts, expected * rows / expected.sum()).pvalue > 1e-6


def test_the_sampler_and_both_scorers_give_one_log_probability(policy):
    policy = policy.double()
    u = uniforms(1, Stream.ROLLOUT, 2, problem=[0] * 50, sample=list(range(50)))
    response, drawn = sample(policy, PROMPT, torch.zeros(50, dtype=torch.long), u)
    assert torch.allclose(score(policy, PROMPT.expand(50, -1), response), drawn, atol=1e-13)
    every = all_responses(10, 2)
    prompt = PROMPT.expand(100, -1)
    assert torch.allclose(score(policy, prompt, every), score_stepwise(policy, prompt, every), atol=1e-13)


def test_a_trajectory_does_not_depend_on_the_rows_or_prompts_beside_it(policy):
    prompts = torch.cat([PROMPT, PROMPT.flip(0) + torch.tensor([1, 0, 0, 0, 0, 0])])
    group = torch.tensor([0, 1] * 32)
    u = uniforms(1, Stream.ROLLOUT, 2, problem=group.tolist(), sample=list(range(64)))
    whole, _ = sample(policy, prompts, group, u)
    for row in range(64):
        alone, _ = sample(policy, prompts[group[row]][None], torch.tensor([0]), u[row : row + 1])
        assert torch.equal(alone[0], whole[row])


def test_sampling_leaves_no_gradient_and_no_global_randomness(policy):
    before = torch.get_rng_state()
    _, logp = sample(policy, PROMPT, torch.tensor([0]), torch.tensor([[0.1, 0.9]], dtype=torch.float64))
    assert not logp.requires_grad
    assert torch.equal(torch.get_rng_state(), before)
