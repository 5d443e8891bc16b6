"""Temperature, top-k, top-p and min-p: against Transformers' own processors, and by their definition."""

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from assay.audit.check import SubjectError
from assay.audit.invariants.decoding import Decoding, called, decodings_of
from assay.core.logprobs import processed_logp


def logits_of(rows, vocabulary=11):
    return 2 * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [(0, 1.0, 0.0), (3, 1.0, 0.0), (0, 0.6, 0.0), (0, 1.0, 0.3), (5, 0.7, 0.2), (99, 1.0, 0.0)],
)
def test_processed_log_probs_are_those_of_transformers(temperature, top_k, top_p, min_p):
    logits = logits_of(200)
    processors = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    processors += [TopKLogitsWarper(top_k)] if top_k else []
    processors += [TopPLogitsWarper(top_p)] if top_p < 1 else []
    processors += [MinPLogitsWarper(min_p)] if min_p else []
    theirs = processors(None, logits.clone()).log_softmax(-1)
    ours = processed_logp(logits, temperature, top_k, top_p, min_p)
    assert torch.equal(ours.isinf(), theirs.isinf())
    assert torch.allclose(ours.exp(), theirs.exp(), rtol=1e-12, atol=0)


def test_top_p_keeps_the_fewest_tokens_that_have_the_mass():
    for row in logits_of(50):
        probability = row.softmax(-1)
        kept = processed_logp(row[None], top_p=0.6)[0].isfinite()
        mass, least = float(probability[kept].sum()), float(probability[kept].min())
        assert mass >= 0.6 > mass - least and least >= float(probability[~kept].max())


def test_only_settings_that_a_sampler_takes_are_moved():
    assert decodings_of(lambda logits: logits) == [Decoding()]
    tempered = decodings_of(lambda logits, temperature: logits)
    assert {made.temperature for made in tempered} == {1.0, 0.6, 1.7} and {made.top_k for made in tempered} == {0}
    with_k = decodings_of(lambda logits, top_k=0: logits)
    assert with_k == [Decoding(), Decoding(top_k=2)]
    assert any(made.top_k and made.top_p < 1 for made in decodings_of(processed_logp))
    with pytest.raises(SubjectError, match="asks for 'typical_p'"):
        decodings_of(lambda logits, typical_p: logits)


def test_settings_are_named_where_they_are_not_plain():
    assert str(Decoding()) == "temperature 1"
    assert str(Decoding(temperature=0.5, top_k=2)) == "temperature 0.5, top_k 2"


def test_a_function_gets_what_it_names_and_cannot_change_it():
    logits = logits_of(1)
    kept = logits.clone()
    made = called("it", lambda logits, temperature: logits.div_(temperature), Decoding(temperature=2.0), logits=logits)
    assert torch.equal(logits, kept) and torch.equal(made, kept / 2)
