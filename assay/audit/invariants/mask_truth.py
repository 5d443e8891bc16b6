"""I3: the mask holds the tokens that the policy sampled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Bool, Int
from torch import Tensor

from assay.audit.check import Check, SubjectError, answers, foreign, verdict_of
from assay.audit.invariants.findings import few
from assay.audit.invariants.readings import numbers_of


@dataclass(frozen=True)
class Record:
    """Tokens as they went through the sampler, and who chose each.

    Attributes:
        given: what a mask is built from, by argument name.
        tokens: as the policy saw or chose them, at the positions that log-probabilities have, ``[B, T]``.
        sampled: where the policy chose the token, ``[B, T]``.
    """

    given: Mapping[str, Any]
    tokens: Int[Tensor, "B T"]
    sampled: Bool[Tensor, "B T"]


@answers("I3")
def mask_is_truth(builder: Callable[..., Any], records: Sequence[Record]) -> Check:
    """Check that a mask holds the tokens that the policy sampled, all of them and no others.

    Args:
        builder: called with what a record gives; returns the mask ``[B, T]``, or the tokens together with their mask
            where it renders them itself.
        records: at least one token sampled and one not.
    """
    findings: list[str] = []
    positions = sum(record.tokens.numel() for record in records)
    if not 0 < sum(int(record.sampled.sum()) for record in records) < positions:
        raise SubjectError("the records tell nothing: some tokens must be sampled and some not")
    for number, record in enumerate(records):
        made = foreign("the mask builder", builder, **record.given)
        parts = made if isinstance(made, tuple) else (record.tokens, made)
        if len(parts) != 2 or not all(isinstance(part, Tensor) for part in parts):
            raise SubjectError("the mask builder must return a mask, or tokens and their mask, as tensors")
        tokens, mask = (numbers_of("the mask builder", part) for part in parts)
        findings += [f"record {number}{line}" for line in _against(record, tokens, mask)]
    return verdict_of(
        "I3",
        "the mask against the tokens that the policy sampled",
        few(findings),
        exactness=f"{positions} positions in {len(records)} records",
        remedy="carry who chose each token from the sampler to the loss, at the positions of the log-probabilities",
    )


def _against(record: Record, tokens: Tensor, mask: Tensor) -> list[str]:
    """Return where tokens and mask are not those of the record."""
    truth = record.sampled
    if tokens.shape != record.tokens.shape or bool((tokens != record.tokens).any()):
        return [f": the tokens are {tokens.long().tolist()}, the sampler had {record.tokens.tolist()}"]
    if mask.shape != truth.shape:
        raise SubjectError(f"a mask of shape {tuple(mask.shape)} for tokens {tuple(truth.shape)}")
    return [_misjudged(record, row, column) for row, column in (mask != truth).nonzero().tolist()]


def _misjudged(record: Record, row: int, column: int) -> str:
    says = (
        "is sampled, and masked" if record.sampled[row, column] else "is in the mask, and the policy did not sample it"
    )
    return f", row {row}, position {column}: token {int(record.tokens[row, column])} {says}"
