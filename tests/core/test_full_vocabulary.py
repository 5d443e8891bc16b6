import pytest
import torch
from torch.distributions import Categorical, kl_divergence

from assay.core.full_vocabulary import sequence_kl_terms, token_entropy, token_kl

NAN, NEVER = float("nan"), float("-inf")
GENERATOR = torch.Generator().manual_seed(0)
LOGITS, REF = (torch.randn(2, 3, 4, dtype=torch.float64, generator=GENERATOR) for _ in range(2))
MASK = torch.tensor([[True, True, True], [True, False, False]])


def test_kl_and_entropy_are_those_of_an_independent_library():
    expected = kl_divergence(Categorical(logits=LOGITS), Categorical(logits=REF)) * MASK
    assert torch.allclose(token_kl(LOGITS, REF, MASK), expected, atol=1e-14)
    assert torch.allclose(token_entropy(LOGITS, MASK), Categorical(logits=LOGITS).entropy() * MASK, atol=1e-14)


def test_forbidden_tokens_count_as_nothing_in_value_and_gradient():
    """A token that neither policy can choose, against the same distributions without it."""
    wide = [
        torch.cat([table, torch.full((2, 3, 1), NEVER, dtype=torch.float64)], -1).requires_grad_()
        for table in (LOGITS, REF)
    ]
    narrow = LOGITS.clone().requires_grad_()
    for measure, plain in (
        (token_kl(*wide, MASK), token_kl(narrow, REF, MASK)),
        (token_entropy(wide[0], MASK), token_entropy(narrow, MASK)),
    ):
        assert torch.allclose(measure, plain, atol=1e-14)
        by_wide = torch.autograd.grad(measure.sum(), wide[0])[0]
        assert torch.allclose(by_wide[..., :4], torch.autograd.grad(plain.sum(), narrow)[0], atol=1e-14)
        assert not by_wide[..., 4].any()


def test_what_the_reference_cannot_choose_is_infinitely_far():
    ref = REF.clone()
    ref[0, 1, 2] = NEVER
    made = token_kl(LOGITS, ref, MASK)
    assert made.isinf().tolist() == [[False, True, False], [False, False, False]]


def test_nan_under_the_mask_is_inert_and_elsewhere_surfaces():
    spoiled = LOGITS.clone()
    spoiled[1, 1:] = NAN
    leaf = spoiled.requires_grad_()
    made = token_kl(leaf, REF, MASK).sum() + token_entropy(leaf, MASK).sum()
    assert torch.equal(made, token_kl(LOGITS, REF, MASK).sum() + token_entropy(LOGITS, MASK).sum())
    assert not torch.autograd.grad(made, leaf)[0][1, 1:].any()
    spoiled = LOGITS.clone()
    spoiled[0, 0, 0] = NAN
    assert token_kl(spoiled, REF, MASK)[0, 0].isnan() and token_entropy(spoiled, MASK)[0, 0].isnan()


def test_the_sequence_terms_weigh_each_state_by_the_way_there():
    logp = torch.tensor([[-1.0, -2.0, -0.5], [-1.0, NAN, NAN]], dtype=torch.float64)
    logp_old = torch.tensor([[-1.5, -1.0, -0.7], [-2.0, NAN, NAN]], dtype=torch.float64)
    made = sequence_kl_terms(token_kl(LOGITS, REF, MASK), logp, logp_old, MASK)
    way = torch.tensor([0.0, 0.5, -0.5], dtype=torch.float64).exp()
    assert made[0].tolist() == pytest.approx((way * token_kl(LOGITS, REF, MASK)[0]).tolist())
