import pytest
import torch
from torch.distributions import Categorical, kl_divergence

from assay.errors import InputError
from assay.tree.objectives import check_mass, expected_reward, penalised_reward, sequence_kl


@pytest.fixture
def logps():
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(2, 9, dtype=torch.float64, generator=generator).log_softmax(1) for _ in range(2)]


def test_kl_is_torchs_own(logps):
    logp, logp_ref = logps
    theirs = kl_divergence(Categorical(logits=logp), Categorical(logits=logp_ref))
    assert torch.allclose(sequence_kl(logp, logp_ref), theirs, atol=1e-14)


def test_the_objective_is_reward_minus_beta_kl(logps):
    logp, logp_ref = logps
    reward = torch.eye(9, dtype=torch.float64)[[2, 5]]
    assert torch.allclose(expected_reward(logp, reward), logp.exp()[[0, 1], [2, 5]], atol=1e-15)
    made = penalised_reward(logp, logp_ref, reward, beta=0.03)
    by_sum = [
        sum(float(p.exp()) * (float(r) - 0.03 * float(p - q)) for p, q, r in zip(*row, strict=True))
        for row in zip(logp, logp_ref, reward, strict=True)
    ]
    assert made.tolist() == pytest.approx(by_sum, abs=1e-14)


def test_mass_that_is_not_one_is_an_error(logps):
    assert check_mass(logps[0]) < 1e-14
    with pytest.raises(InputError, match="sum to one only within"):
        check_mass(logps[0][:, :-1])
    with pytest.raises(InputError, match="nan"):
        check_mass(logps[0] * float("nan"))
