import itertools

import pytest
import torch

from assay.policies.sampling import score
from assay.policies.transformer import TinyTransformer
from assay.tree.trajectories import all_responses, tree_logp


def policy(context: int) -> TinyTransformer:
    return TinyTransformer(
        vocabulary=6, responses=4, context=context, width=8, heads=2, feedforward=8, seed=1, dtype=torch.float64
    )


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_all_responses_are_the_cartesian_product_in_order(depth):
    assert all_responses(4, depth).tolist() == [list(path) for path in itertools.product(range(4), repeat=depth)]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_shared_prefixes_score_as_every_response_alone_does(depth):
    """The tree against brute force: each response of each problem in a row of its own."""
    prompts = torch.tensor([[0, 1, 5], [4, 4, 2]])
    model = policy(3 + depth)
    made = tree_logp(model, prompts, tokens=4, depth=depth)
    for row, prompt in zip(made, prompts, strict=True):
        alone = score(model, prompt.expand(4**depth, -1), all_responses(4, depth)).sum(1)
        assert torch.allclose(row, alone, atol=1e-13)
    assert torch.allclose(made.exp().sum(1), torch.ones(2, dtype=torch.float64), atol=1e-13)


def test_gradients_equal_those_of_brute_force():
    prompt = torch.tensor([[0, 1, 5]])
    model = policy(5)
    weight = torch.linspace(-1, 1, 16, dtype=torch.float64)
    parameters = list(model.parameters())
    shared = torch.autograd.grad((tree_logp(model, prompt, tokens=4, depth=2)[0] * weight).sum(), parameters)
    rows = score(model, prompt.expand(16, -1), all_responses(4, 2)).sum(1)
    alone = torch.autograd.grad((rows * weight).sum(), parameters)
    for one, other in zip(shared, alone, strict=True):
        assert torch.allclose(one, other, atol=1e-12)
