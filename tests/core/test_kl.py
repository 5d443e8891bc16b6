import torch

from assay.core.kl import kl_in_reward


def test_the_worked_values_of_a_right_and_a_wrong_answer():
    """1 - 0.03 x 0.5 = 0.985, and 0 - 0.03 x -0.2 = +0.006: positive, though nothing was accepted."""
    reward = torch.tensor([1.0, 0.0], dtype=torch.float64)
    logp = torch.tensor([-1.0, -2.2], dtype=torch.float64)
    logp_ref = logp - torch.tensor([0.5, -0.2], dtype=torch.float64)
    made = kl_in_reward(reward, logp, logp_ref, beta=0.03)
    assert torch.allclose(made, torch.tensor([0.985, 0.006], dtype=torch.float64), atol=1e-15, rtol=0)


def test_the_return_carries_no_gradient():
    logp = torch.tensor([-1.0], requires_grad=True)
    assert not kl_in_reward(torch.ones(1), logp, torch.zeros(1), beta=0.03).requires_grad


def test_inside_the_reward_it_ascends_minus_beta_kl_and_in_the_loss_nothing():
    """Enumerate four outcomes: score-function gradient of the return against the derivative of the KL itself."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, dtype=torch.float64, generator=generator).requires_grad_()
    logp_ref = torch.randn(4, dtype=torch.float64, generator=generator).log_softmax(0)
    logp = logits.log_softmax(0)
    p = logp.detach().exp()
    returns = kl_in_reward(torch.zeros(4, dtype=torch.float64), logp, logp_ref, beta=0.7)

    in_reward = torch.autograd.grad((p * returns * logp).sum(), logits, retain_graph=True)[0]
    in_loss = torch.autograd.grad((p * -0.7 * (logp - logp_ref)).sum(), logits, retain_graph=True)[0]
    kl = torch.autograd.grad((logp.exp() * (logp - logp_ref)).sum(), logits)[0]
    assert float(kl.norm()) > 0.1
    assert torch.allclose(in_reward, -0.7 * kl, atol=1e-15)
    assert torch.allclose(in_loss, torch.zeros(4, dtype=torch.float64), atol=1e-15)
