import math

import pytest
import torch

from assay.core import ratios
from assay.errors import InputError

NAN = float("nan")
NEW = torch.tensor([[-1.0, -2.0, -0.5], [-1.0, NAN, NAN]], dtype=torch.float64)
OLD = torch.tensor([[-1.5, -1.0, -0.7], [-2.0, NAN, NAN]], dtype=torch.float64)
MASK = torch.tensor([[True, True, True], [True, False, False]])


def test_each_ratio_by_hand():
    token = ratios.token_ratio(NEW, OLD, MASK)
    assert token[MASK].tolist() == pytest.approx([math.exp(d) for d in (0.5, -1.0, 0.2, 1.0)])
    assert ratios.sequence_ratio(NEW, OLD, MASK)[:, 0].tolist() == pytest.approx([math.exp(-0.3), math.exp(1.0)])
    assert ratios.geometric_ratio(NEW, OLD, MASK)[:, 0].tolist() == pytest.approx([math.exp(-0.1), math.exp(1.0)])
    prefix = ratios.prefix_ratio(NEW, OLD, MASK)
    assert prefix[0].tolist() == pytest.approx([1.0, math.exp(0.5), math.exp(-0.5)])
    assert float(prefix[1, 0]) == 1.0


def test_equal_policies_have_ratios_of_exactly_one():
    for make in (ratios.token_ratio, ratios.prefix_ratio, ratios.sequence_ratio, ratios.geometric_ratio):
        assert (make(NEW, NEW, MASK) == 1).all()


def test_the_gradient_is_the_numerators_alone():
    new, old = NEW.clone().requires_grad_(), OLD.clone().requires_grad_()
    ratios.token_ratio(new, old, MASK).sum().backward()
    assert old.grad is None
    assert torch.equal(new.grad[~MASK], torch.zeros(2, dtype=torch.float64))


def test_weights_are_cut_or_left_out_and_carry_no_gradient():
    ratio = torch.tensor([[0.1, 0.5, 1.0, 2.0, 3.0]]).requires_grad_()
    cut, left = ratios.truncated(ratio, high=2.0), ratios.inside(ratio, low=0.5, high=2.0)
    assert cut.tolist() == [pytest.approx([0.1, 0.5, 1.0, 2.0, 2.0])]
    assert left.tolist() == [[0.0, 0.5, 1.0, 2.0, 0.0]]
    assert not cut.requires_grad and not left.requires_grad


def test_a_nan_weight_is_neither_cut_nor_left_out():
    ratio = torch.tensor([[NAN, 1.0]])
    assert ratios.truncated(ratio, high=2.0).isnan().tolist() == [[True, False]]
    assert ratios.inside(ratio, low=0.5, high=2.0).isnan().tolist() == [[True, False]]


def test_an_empty_range_is_refused():
    with pytest.raises(InputError, match="high = 0"):
        ratios.truncated(torch.ones(1, 1), high=0.0)
    with pytest.raises(InputError, match="low = 2.0, high = 1.0"):
        ratios.inside(torch.ones(1, 1), low=2.0, high=1.0)
