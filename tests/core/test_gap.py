"""The gap of a batch against arithmetic by hand, exhaustive expectations and the traps that others fell into."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.core.gap import effective_sample_size, gap

NAN = float("nan")


def batch(logp: list[list[float]], sampler: list[list[float]], mask: list[list[bool]]):
    return gap(torch.tensor(logp, dtype=torch.float64), torch.tensor(sampler, dtype=torch.float64), torch.tensor(mask))


def test_the_figures_of_two_responses_by_hand():
    made = batch([[-1.0, -2.0], [-0.5, 7.0]], [[-1.5, -1.0], [-0.25, -9.0]], [[True, True], [True, False]])
    ratios = [math.exp(0.5), math.exp(-1.0), math.exp(-0.25)]
    sequences = [math.exp(-0.5), math.exp(-0.25)]
    assert (made.difference_mean, made.difference_max) == (pytest.approx(1.75 / 3), 1.0)
    assert (made.token_ratio.min, made.token_ratio.max) == pytest.approx((min(ratios), max(ratios)))
    assert made.token_ratio.mean == pytest.approx(sum(ratios) / 3)
    assert (made.sequence_ratio.min, made.sequence_ratio.max) == pytest.approx(sequences)
    assert made.sequence_ratio.mean == pytest.approx(sum(sequences) / 2)
    assert made.kl == pytest.approx(sum(r - 1 - math.log(r) for r in ratios) / 3)
    assert made.effective_sample_size == pytest.approx(sum(sequences) ** 2 / (2 * sum(w * w for w in sequences)))
    assert made.unscored == 0


def test_the_record_has_the_names_of_trl_and_only_finite_numbers():
    record = batch([[-1.0]], [[-1.5]], [[True]]).record()
    trl = [f"sampling/sampling_logp_difference/{name}" for name in ("mean", "max")]
    trl += [f"sampling/importance_sampling_ratio/{name}" for name in ("min", "mean", "max")]
    assert set(trl) <= record.keys()
    assert all(math.isfinite(value) for value in record.values())
    assert record["sampling/importance_sampling_ratio/max"] == pytest.approx(math.exp(0.5))


def test_a_sequence_ratio_is_the_product_and_not_the_sum_of_the_token_ratios():
    """IS-01: exp of the sum is near 1, the sum of the exps near the length."""
    differences = [0.1, -0.2, 0.05]
    made = batch([differences], [[0.0] * 3], [[True] * 3])
    assert made.sequence_ratio.mean == pytest.approx(math.exp(sum(differences)))
    assert made.sequence_ratio.mean < 1


def test_a_ratio_is_reported_as_it_is_however_large():
    made = batch([[-0.01, -1.0]], [[-12.0, -1.0]], [[True, True]])
    assert made.token_ratio.max == pytest.approx(math.exp(11.99))


def test_a_sampler_at_another_temperature_shows():
    """LP-02: log-probabilities from before the temperature, against those after it."""
    logits = torch.tensor([[[2.0, 0.0, -1.0]]], dtype=torch.float64)
    raw, processed = logits.log_softmax(-1)[..., 1], (logits / 0.6).log_softmax(-1)[..., 1]
    mask = torch.ones(1, 1, dtype=torch.bool)
    assert gap(processed, processed, mask).difference_max == 0
    assert gap(processed, raw, mask).difference_max == pytest.approx(float((processed - raw).abs()))


def test_a_scorer_over_the_whole_vocabulary_against_a_truncated_sampler_shows_the_kept_mass():
    """IS-10: every ratio carries the kept mass as a factor, though the policy is the same."""
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0], dtype=torch.float64)
    whole, kept = logits.log_softmax(0), logits[:2].log_softmax(0)
    made = gap(whole[None, :2], kept[None], torch.ones(1, 2, dtype=torch.bool))
    mass = float(whole[:2].exp().sum())
    assert made.token_ratio.min == pytest.approx(mass) == pytest.approx(made.token_ratio.max)
    assert mass == pytest.approx(0.8808, abs=1e-4)


def test_a_token_without_a_log_probability_is_counted_and_kept_out_of_the_rest():
    made = batch([[-1.0, -2.0], [-3.0, -3.0]], [[-1.5, NAN], [NAN, NAN]], [[True, True], [True, False]])
    assert made.unscored == 2
    assert (made.difference_mean, made.token_ratio.min) == (0.5, made.token_ratio.max)
    assert made.sequence_ratio.mean == pytest.approx(math.exp(0.5))


def test_what_stands_under_the_mask_does_not_matter():
    clean = batch([[-1.0, 0.0]], [[-1.25, 0.0]], [[True, False]])
    for logp, sampler in ((NAN, NAN), (math.inf, -math.inf), (0.0, NAN)):
        assert batch([[-1.0, logp]], [[-1.25, sampler]], [[True, False]]) == clean


def test_a_nan_of_the_trainer_surfaces():
    assert math.isnan(batch([[NAN, -1.0]], [[-1.0, -1.0]], [[True, True]]).difference_mean)


def test_a_batch_without_a_token_has_no_gap():
    made = batch([[-1.0]], [[-2.0]], [[False]])
    assert (made.difference_mean, made.kl, made.sequence_ratio.max) == (0.0, 0.0, 0.0)
    assert made.effective_sample_size == 1.0


def test_the_kl_is_that_of_the_sampler_to_the_policy_in_expectation():
    sampler = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    policy = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    expected = 0.0
    for token in range(3):
        one = gap(policy.log()[None, None, token], sampler.log()[None, None, token], torch.ones(1, 1, dtype=torch.bool))
        assert one.kl >= 0
        expected += float(sampler[token]) * one.kl
    assert expected == pytest.approx(float((sampler * (sampler / policy).log()).sum()))


@given(st.lists(st.floats(-700, 700), min_size=1, max_size=6), st.floats(-1e4, 1e4))
def test_the_effective_sample_size_does_not_depend_on_the_scale_of_the_weights(weights, shift):
    size = effective_sample_size(torch.tensor(weights, dtype=torch.float64))
    assert 1 / len(weights) - 1e-12 <= size <= 1 + 1e-12
    shifted = torch.tensor(weights, dtype=torch.float64) + shift
    assert effective_sample_size(shifted) == pytest.approx(size, rel=1e-6)


def test_equal_weights_count_in_full_and_a_single_heavy_one_counts_once():
    assert effective_sample_size(torch.full((5,), -1e5)) == 1.0
    assert effective_sample_size(torch.tensor([0.0, -1e3, -1e3, -1e3])) == pytest.approx(0.25)


def test_a_policy_that_requires_gradients_is_measured_without_any():
    logp = torch.tensor([[-1.0]], requires_grad=True)
    assert gap(logp, torch.tensor([[-1.5]]), torch.ones(1, 1, dtype=torch.bool)).difference_mean == 0.5
