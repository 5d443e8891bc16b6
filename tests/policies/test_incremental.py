"""Reading token by token, every node of a tree once, against one forward over each whole path."""

import itertools
import math

import pytest
import torch

from assay.policies.transformer import TinyTransformer, attend
from assay.types import IncrementalPolicy

PROMPT = torch.tensor([4, 0, 5, 1])


def policy(dtype: torch.dtype = torch.float64, scale: float = 1.0) -> TinyTransformer:
    made = TinyTransformer(vocabulary=6, responses=4, context=8, width=12, heads=3, feedforward=20, seed=3, dtype=dtype)
    with torch.no_grad():  # norms and biases away from their neutral start
        for parameter in made.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)).to(dtype)
        made.attention_in.weight[:24] *= scale
    return made


def alone(model: TinyTransformer, path: tuple[int, ...]) -> torch.Tensor:
    """Logits after one path, from an ordinary forward over it."""
    return model(torch.cat([PROMPT, torch.tensor(path, dtype=torch.long)])[None])[0, -1]


def test_it_is_an_incremental_policy():
    assert isinstance(policy(), IncrementalPolicy)


def test_a_prompt_is_read_as_a_forward_reads_it():
    model = policy()
    logits, memory = model.read(PROMPT)
    assert logits.shape == (1, 4)
    assert torch.allclose(logits[0], alone(model, ()), atol=1e-13, rtol=0)
    assert [entry.shape for entry in memory[0]] == [(1, len(PROMPT), 2 * 12)]


def test_each_node_of_a_tree_gets_the_logits_of_its_own_path():
    model = policy()
    _, memory = model.read(PROMPT)
    branches = [torch.tensor([0, 1, 2, 3]), torch.tensor([3, 1]), torch.tensor([2, 0, 5])]
    for depth, tokens in enumerate(branches, start=1):
        logits, memory = model.extend(memory, tokens.view([1] * depth + [-1]))
        paths = itertools.product(*[branch.tolist() for branch in branches[:depth]])
        expected = torch.stack([alone(model, path) for path in paths])
        assert torch.allclose(logits.flatten(0, -2), expected, atol=1e-13, rtol=0)
    assert [entry.shape[:-1] for entry in memory[0]] == [
        (1, 1, 1, 1, 4),
        (1, 4, 1, 1, 1),
        (1, 1, 2, 1, 1),
        (1, 1, 1, 3, 1),
    ]


def test_paths_that_share_nothing_are_read_side_by_side():
    model = policy()
    _, memory = model.read(PROMPT)
    paths = [(0, 3), (2, 2), (5, 0)]
    for step in range(2):
        logits, memory = model.extend(memory, torch.tensor([[path[step]] for path in paths]).view(3, *[1] * (step + 1)))
    expected = torch.stack([alone(model, path) for path in paths])
    assert torch.allclose(logits.flatten(0, -2), expected, atol=1e-13, rtol=0)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
@pytest.mark.parametrize("scale", [1.0, 8.0, 100.0])
def test_attention_that_is_all_but_certain_loses_nothing(dtype, tolerance, scale):
    """Scores that differ by thousands: one number to subtract for all nodes would let some nodes' sums vanish."""
    model = policy(dtype, scale)
    _, memory = model.read(PROMPT)
    for depth in (1, 2, 3):
        logits, memory = model.extend(memory, torch.arange(4).view([1] * depth + [-1]))
    expected = torch.stack([alone(model, path) for path in itertools.product(range(4), repeat=3)])
    assert torch.allclose(
        logits.flatten(0, -2), expected, atol=tolerance * float(expected.detach().abs().max()), rtol=0
    )


def test_sums_that_a_common_shift_would_lose_are_kept():
    """A query meets a score of 0 and, at one of two nodes, a score of 2000: each node's softmax stands alone."""
    query = torch.tensor([[[1.0]]], dtype=torch.float64)
    prompt = torch.tensor([0.0, 7.0], dtype=torch.float64).view(1, 1, 1, 2)
    ancestor = torch.tensor([[-1.0, 3.0], [2000.0, 5.0]], dtype=torch.float64).view(2, 1, 1, 2)
    made = attend(query, (prompt, ancestor), heads=1)
    certain = (7 + 3 * math.exp(-1)) / (1 + math.exp(-1))
    assert made.flatten().tolist() == pytest.approx([certain, 5.0], rel=1e-14)
