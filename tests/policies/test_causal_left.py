"""Logits that a forward leaves for its backward: no choice of how many changes a gradient, and there is a limit."""

import pytest
import torch

from assay.policies.causal import head
from assay.policies.causal.head import Head, token_logp

STATES, VOCABULARY = 6, 700
SLICE_LOGITS = 256 * STATES  # three slices: 256, 256 and 188 tokens


def gradients(made, inputs, *, keep=False):
    total = (made.logp * torch.linspace(-1, 1, len(made.logp), dtype=torch.float64)).sum() + made.entropy.sum()
    return torch.autograd.grad(total, inputs, retain_graph=keep)


@pytest.fixture
def forward(monkeypatch):
    """Return a function that runs a forward which may leave so many logits."""
    monkeypatch.setattr(head, "SLICE", 1)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(STATES, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    weight = torch.randn(VOCABULARY, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    row = torch.randint(STATES, (11,), generator=generator)
    token = torch.randint(VOCABULARY, (11,), generator=generator)

    def run(limit):
        monkeypatch.setattr(head, "LEFT", limit)
        return token_logp(Head(weight, None, 0.8), hidden, row, token), (hidden, weight)

    run.parts = (hidden, weight, row, token)
    return run


@pytest.mark.parametrize("limit", [0, SLICE_LOGITS, 2 * SLICE_LOGITS, 10**9])
def test_gradients_are_those_of_all_logits_at_once_however_many_are_left(forward, limit):
    hidden, weight, row, token = forward.parts
    logp = (hidden @ weight.T * 0.8).log_softmax(-1)
    entropy = -(logp.exp() * logp).sum(-1)
    expected = gradients(head.TokenLogp(logp[row, token], entropy[row]), (hidden, weight))
    for found, right in zip(gradients(*forward(limit)), expected, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("limit", "slices"), [(0, 0), (SLICE_LOGITS, 1), (2 * SLICE_LOGITS, 2), (10**9, 3)])
def test_no_more_are_left_than_the_limit_and_none_after_the_backward(forward, limit, slices):
    made, inputs = forward(limit)
    left = made.logp.grad_fn.left
    assert len(left) == slices and sum(logits.numel() for logits in left.values()) <= limit
    gradients(made, inputs)
    assert not left


def test_a_second_backward_makes_them_again(forward):
    made, inputs = forward(10**9)
    first = gradients(made, inputs, keep=True)
    for again, once in zip(gradients(made, inputs), first, strict=True):
        torch.testing.assert_close(again, once, rtol=1e-12, atol=1e-13)


def test_a_forward_without_gradient_leaves_none(forward, monkeypatch):
    seen = []
    apply = head._TokenLogp.apply
    monkeypatch.setattr(head._TokenLogp, "apply", lambda *given: (seen.append(given[-1]), apply(*given))[1])
    with torch.no_grad():
        forward(10**9)
    forward(10**9)
    assert seen == [0, 10**9]
