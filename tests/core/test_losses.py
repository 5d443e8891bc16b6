from fractions import Fraction

import torch

from assay.core.losses import likelihood_terms, reinforce_terms, weighted_loss
from assay.core.weights import sequence_mean, trajectory_mass


def test_a_row_of_logp_minus_three_adds_minus_three_fifty_sixths():
    """-(A logp) / 8 with A = -1/7 and logp = -3: -((-1/7)(-3)) / 8 = -3/56."""
    logp = torch.tensor([-3.0], dtype=torch.float64)
    terms = reinforce_terms(logp, torch.tensor([-1 / 7], dtype=torch.float64))
    row = weighted_loss(terms, sequence_mean(1, total=8, dtype=torch.float64))
    assert abs(float(row) - float(Fraction(-3, 56))) < 1e-16


def test_the_gradient_is_minus_weight_times_advantage():
    logp = torch.tensor([-1.0, -2.0, -3.0, -4.0], requires_grad=True)
    adv = torch.tensor([1.0, -0.5, 0.25, 0.0], requires_grad=True)
    weighted_loss(reinforce_terms(logp, adv), sequence_mean(4, total=4)).backward()
    assert torch.equal(logp.grad, -adv.detach() / 4)
    assert adv.grad is None, "the advantage is a constant of the batch"


def test_no_split_of_a_batch_changes_the_gradient():
    """The count is an argument: two micro-batches of 3 and 5 rows add up to the whole batch of 8."""
    logp = torch.linspace(-3, -1, 8, dtype=torch.float64, requires_grad=True)
    adv = torch.linspace(-1, 1, 8, dtype=torch.float64)

    def gradient(parts: list[slice]) -> torch.Tensor:
        loss = sum(
            weighted_loss(
                reinforce_terms(logp[part], adv[part]), sequence_mean(len(adv[part]), total=8, dtype=torch.float64)
            )
            for part in parts
        )
        return torch.autograd.grad(loss, logp)[0]

    assert torch.equal(gradient([slice(0, 8)]), gradient([slice(0, 3), slice(3, 8)]))


def test_mass_weights_are_the_expectation_that_sequence_mean_estimates():
    logp = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]], dtype=torch.float64).log().requires_grad_()
    weights = trajectory_mass(logp)
    assert not weights.requires_grad
    assert torch.allclose(weights, torch.tensor([[0.25, 0.125, 0.125], [0.05, 0.1, 0.35]], dtype=torch.float64))


def test_the_supervised_unit_is_the_full_response():
    """For two tokens the sum is twice the mean: the gradient of the full response is twice that of the token mean."""
    tokens = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    full = torch.autograd.grad(weighted_loss(likelihood_terms(tokens.sum(1)), sequence_mean(1, total=1)), tokens)[0]
    mean = torch.autograd.grad(-tokens.mean(1).sum(), tokens)[0]
    assert torch.equal(full, 2 * mean)
