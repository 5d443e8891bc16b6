import pytest
import torch
from torch import nn

from assay.errors import UpdateError
from assay.training.step import apply_update


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Parameter(torch.tensor([3.0, 4.0]))
        self.other = nn.Parameter(torch.tensor([12.0]))


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=0.1, weight_decay=0.0, fused=True)


def test_raw_and_clipped_norms_and_the_step_are_torchs_own():
    """The gradient of (w.w)/2 is w: norms 5 and 12, together 13, clipped to 1."""
    ours, theirs = Two(), Two()
    optimizer, other = adamw(ours), adamw(theirs)
    update = apply_update(
        ours, optimizer, sum(p.square().sum() / 2 for p in ours.parameters()), max_grad_norm=1.0, place="here"
    )
    assert update.tensor_norms == {"used": 5.0, "other": 12.0}
    assert update.grad_norm == pytest.approx(13.0)
    assert update.clipped_grad_norm == pytest.approx(1.0, abs=1e-6)
    sum(p.square().sum() / 2 for p in theirs.parameters()).backward()
    nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
    after_clipping = torch.cat([p.grad for p in theirs.parameters()]).norm()
    other.step()
    assert update.clipped_grad_norm == pytest.approx(float(after_clipping), rel=1e-6)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-7)


def test_a_small_gradient_is_not_scaled_up():
    module = Two()
    loss = sum(0.01 * p.square().sum() / 2 for p in module.parameters())
    update = apply_update(module, adamw(module), loss, max_grad_norm=1.0, place="here")
    assert update.clipped_grad_norm == update.grad_norm == pytest.approx(0.13)


def test_gradients_of_an_earlier_batch_are_cleared():
    module = Two()
    module.used.grad = torch.full((2,), 1e6)
    update = apply_update(
        module, adamw(module), sum(p.square().sum() / 2 for p in module.parameters()), max_grad_norm=99.0, place="x"
    )
    assert update.grad_norm == pytest.approx(13.0)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_stops_with_parameter_and_step_and_touches_nothing(poison):
    module = Two()
    optimizer = adamw(module)
    before = [p.detach().clone() for p in module.parameters()]
    loss = module.used.sum() + (module.other * poison).sum()
    with pytest.raises(UpdateError, match="rl step 7: the gradient of parameter other is not finite"):
        apply_update(module, optimizer, loss, max_grad_norm=1.0, place="rl step 7")
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    assert not optimizer.state


def test_a_missing_gradient_stops_with_parameter_and_step():
    module = Two()
    with pytest.raises(UpdateError, match="warmup step 2: parameter other has no gradient"):
        apply_update(module, adamw(module), module.used.sum(), max_grad_norm=1.0, place="warmup step 2")


def test_a_step_that_overflows_names_the_parameter_and_the_remedy():
    """The gradient is finite and the weights become infinite: that must not be blamed on what comes next."""
    module = Two()
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e38, weight_decay=0.0, fused=True)
    with pytest.raises(UpdateError, match="rl step 3: parameter used is not finite after the step; lower the learning"):
        for _ in range(2):
            loss = sum(p.square().sum() / 2 for p in module.parameters())
            apply_update(module, optimizer, loss, max_grad_norm=1.0, place="rl step 3")


def test_a_total_norm_beyond_float32_stops_the_run():
    """The squares of each tensor, 2e38 and 2.25e38, are finite in float32; their sum is not."""
    module = Two()
    loss = module.used.sum() * 1e19 + module.other.sum() * 1.5e19
    with pytest.raises(UpdateError, match="the norm of the whole gradient is inf"):
        apply_update(module, adamw(module), loss, max_grad_norm=1.0, place="here")
