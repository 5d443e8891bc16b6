"""Rows that see their padding or their pack, in one layer of attention."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.audit.invariants.independence import rows_are_independent
from assay.core.streams import Stream, normals
from specimens.bench import Specimen

VOCABULARY, WIDTH, PAD = 8, 4, 0
SIZES = (VOCABULARY * WIDTH, VOCABULARY * WIDTH, WIDTH * VOCABULARY)
EMBEDDING, PLACES, HEAD = normals(4, Stream.INIT, sum(SIZES)).split(SIZES)
Tokens = Int[Tensor, "B S"]


def causal_model(tokens: Tokens, places: Tokens, segments: Tokens | None = None) -> Float[Tensor, "B S V"]:
    """Return log-probabilities of the next token.

    Args:
        tokens: padded or packed.
        places: of each token in its row.
        segments: number of the row that a token belongs to; a token attends to no other. None attends to all before.
    """
    embedded = EMBEDDING.view(VOCABULARY, WIDTH)[tokens] + PLACES.view(VOCABULARY, WIDTH)[places]
    sees = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()
    if segments is not None:
        sees = sees & (segments[:, :, None] == segments[:, None, :])
    weights = (embedded @ embedded.mT).masked_fill(~sees, float("-inf")).softmax(-1)
    return ((weights @ embedded).tanh() @ HEAD.view(WIDTH, VOCABULARY)).log_softmax(-1)


def next_token_logp(logp: Float[Tensor, "S V"], row: Int[Tensor, " S"]) -> Float[Tensor, " S-1"]:
    return logp[:-1].gather(-1, row[1:, None])[:, 0]


def packed(rows: list[Tensor], **settings: Any) -> list[Tensor]:
    """Score rows that stand one after another."""
    places = torch.cat([torch.arange(len(row)) for row in rows])
    table = causal_model(torch.cat(rows)[None], places[None], settings.get("segments"))[0]
    parts = table.split([len(row) for row in rows])
    return [next_token_logp(part, row) for part, row in zip(parts, rows, strict=True)]


def numbered(rows: list[Tensor]) -> Tokens:
    return torch.cat([torch.full((len(row),), number) for number, row in enumerate(rows)])[None]


def packed_with_settings_nested(rows: list[Tensor]) -> list[Tensor]:
    """Hand the row numbers over one level too deep, where nothing looks for them."""
    return packed(rows, **{"packing": {"segments": numbered(rows)}})


def packed_with_settings_found(rows: list[Tensor]) -> list[Tensor]:
    return packed(rows, segments=numbered(rows))


def left_padded(rows: list[Tensor]) -> Tokens:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD, padding_side="left")


def padded(rows: list[Tensor], segments: Tokens | None) -> list[Tensor]:
    tokens = left_padded(rows)
    places = ((tokens != PAD).cumsum(1) - 1).clamp(min=0)
    table = causal_model(tokens, places, segments)
    return [next_token_logp(own[-len(row) :], row) for own, row in zip(table, rows, strict=True)]


def padded_without_segments(rows: list[Tensor]) -> list[Tensor]:
    return padded(rows, None)


def padded_with_segments(rows: list[Tensor]) -> list[Tensor]:
    return padded(rows, (left_padded(rows) != PAD).long())


SPECIMENS = (
    Specimen("MASK-18", rows_are_independent, packed_with_settings_nested, packed_with_settings_found),
    Specimen("MASK-19", rows_are_independent, padded_without_segments, padded_with_segments),
)
UNDECIDABLE = {
    "MASK-01": "the gradient is NaN inside one attention kernel that takes no left padding; its formula shows nothing. "
    "What it should have kept is checked on MASK-19: a row's log-probabilities do not depend on padding",
}
