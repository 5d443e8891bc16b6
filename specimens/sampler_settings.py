"""The sampler draws at a temperature and over a support that the scorer does not share."""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.audit.invariants.scoring import scorer_agrees, statistic_agrees
from assay.core.logprobs import processed_logp
from specimens.bench import Specimen

Logits = Float[Tensor, "*rows V"]
Tokens = Int[Tensor, "*rows"]


def tempered(logits: Logits, temperature: float) -> Logits:
    """Draw over all tokens at a temperature."""
    return processed_logp(logits, temperature).exp()


def nucleus(logits: Logits, temperature: float, top_k: int, top_p: float, min_p: float) -> Logits:
    """Draw over the tokens that top-k, top-p and min-p keep."""
    return processed_logp(logits, temperature, top_k, top_p, min_p).exp()


def pick(logits: Logits, tokens: Tokens) -> Tensor:
    """Return the log-probability of each token."""
    return logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]


def raw(logits: Logits, tokens: Tokens) -> Tensor:
    """Leave the temperature out: what an engine reports unless asked for more, taken before its processors run."""
    return pick(logits, tokens)


def divided(logits: Logits, tokens: Tokens, temperature: float) -> Tensor:
    return pick(logits / temperature, tokens)


def divided_twice(logits: Logits, tokens: Tokens, temperature: float) -> Tensor:
    from_engine = logits / temperature  # this version of the engine divides already
    return pick(from_engine / temperature, tokens)


def at_temperature_zero(logits: Logits, tokens: Tokens, temperature: float) -> Tensor:
    temperature = 0.0  # the re-scoring request asks for no sampling, and for zero the engine leaves logits alone
    return pick(logits / temperature if temperature else logits, tokens)


def tempered_in_place(logits: Logits, tokens: Tokens, temperature: float) -> Tensor:
    return pick(logits.div_(temperature), tokens)


def after_processors(
    logits: Logits, tokens: Tokens, temperature: float, top_k: int, top_p: float, min_p: float
) -> Tensor:
    reported = processed_logp(logits, temperature, top_k, top_p, min_p)
    return reported.gather(-1, tokens[..., None])[..., 0]


def over_the_kept_set(
    logits: Logits, tokens: Tokens, temperature: float, top_k: int, top_p: float, min_p: float
) -> Tensor:
    kept = processed_logp(logits, temperature, top_k, top_p, min_p).isfinite()  # replayed from the rollout
    return pick((logits / temperature).masked_fill(~kept, float("-inf")), tokens)


def entropy_of_logits(logits: Logits) -> Tensor:
    return torch.distributions.Categorical(logits=logits).entropy()


def entropy_as_sampled(logits: Logits, temperature: float) -> Tensor:
    return torch.distributions.Categorical(logits=logits / temperature).entropy()


def untempered_kl(logits: Logits, logits_ref: Logits) -> Tensor:
    return _kl(logits, logits_ref)


def tempered_kl(logits: Logits, logits_ref: Logits, temperature: float) -> Tensor:
    return _kl(logits / temperature, logits_ref / temperature)


def _kl(logits: Logits, logits_ref: Logits) -> Tensor:
    policy, reference = logits.log_softmax(-1), logits_ref.log_softmax(-1)
    return torch.nn.functional.kl_div(reference, policy, log_target=True, reduction="none").sum(-1)


scored_as_tempered = partial(scorer_agrees, tempered)
scored_as_kept = partial(scorer_agrees, nucleus)

SPECIMENS = (
    Specimen("LP-01", scored_as_tempered, raw, divided),
    Specimen("LP-02", scored_as_tempered, raw, after_processors),
    Specimen("LP-03", scored_as_kept, raw, after_processors),
    Specimen("LP-04", scored_as_tempered, raw, tempered_in_place),
    Specimen("LP-05", scored_as_tempered, divided_twice, divided),
    Specimen("LP-06", partial(statistic_agrees, tempered, of="entropy"), entropy_of_logits, entropy_as_sampled),
    Specimen("LP-07", partial(statistic_agrees, tempered, of="kl"), untempered_kl, tempered_kl),
    # of the report: the rollout's side of a correlation that is 1 where both sides score what was drawn
    Specimen("LP-08", scored_as_tempered, raw, divided),
    Specimen("LP-09", scored_as_kept, divided, over_the_kept_set),
    Specimen("IS-10", scored_as_kept, divided, over_the_kept_set),
    Specimen("X-11", scored_as_tempered, at_temperature_zero, divided),
)
UNDECIDABLE = {
    "LP-10": "a measurement of an engine's kernels: log-probs returned while sampling differ from those of a second "
    "pass by what the two kernels round, which no formula says"
}
