"""Cutting a batch: every response once, within the budget, its group's prompt beside it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from assay.training.language.batch import Batch, spread


@some.composite
def groups(draw: some.DrawFn) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Return groups of any sizes whose tokens say where they stand."""
    sizes = draw(some.lists(some.integers(1, 4), min_size=1, max_size=4))
    prompts = [tuple(range(draw(some.integers(1, 6)))) for _ in sizes]
    group = tuple(number for number, size in enumerate(sizes) for _ in range(size))
    responses = [tuple(100 * row + place for place in range(draw(some.integers(1, 5)))) for row in range(len(group))]
    return tuple(prompts), tuple(responses), group


def read(batch: Batch, rows: list[int]) -> int:
    """Return the tokens that a part of a batch reads: its prompts once, and each response but its last token."""
    prompts = {batch.group[row] for row in rows}
    return sum(len(batch.prompts[g]) for g in prompts) + sum(len(batch.responses[row]) - 1 for row in rows)


@given(groups(), some.integers(1, 30))
def test_parts_hold_every_row_once_in_order_within_the_budget(given, budget):
    batch = Batch(*given)
    parts = batch.parts(range(len(batch.responses)), budget)
    assert [row for part in parts for row in part] == list(range(len(batch.responses)))
    for part, after in zip(parts, [*parts[1:], []], strict=True):
        assert read(batch, part) <= budget or len(part) == 1
        assert not after or read(batch, [*part, after[0]]) > budget  # and none is cut short
        assert len(batch.part(part).tokens) == read(batch, part)


@given(groups(), some.data())
def test_a_packed_part_predicts_each_response_from_its_own_prompt(given, data):
    batch = Batch(*given)
    rows = sorted(data.draw(some.sets(some.integers(0, len(batch.responses) - 1), min_size=1)))
    packed = batch.part(rows)
    tokens, positions = packed.tokens.tolist(), packed.positions.tolist()
    assert packed.target.tolist() == [token for row in rows for token in batch.responses[row]]
    assert packed.lengths.tolist() == [len(batch.responses[row]) for row in rows]
    at = iter(packed.source.tolist())
    for row in rows:
        prompt = batch.prompts[batch.group[row]]
        for place, _ in enumerate(batch.responses[row]):
            source = next(at)
            assert tokens[source] == (batch.responses[row][place - 1] if place else prompt[-1])
            assert positions[source] == len(prompt) + place - 1


@given(groups())
def test_tables_hold_each_value_at_its_own_place(given):
    batch = Batch(*given)
    table = batch.padded(batch.responses, torch.long)
    assert table.shape == batch.mask.shape == (len(batch.responses), max(map(len, batch.responses)))
    for row, response in enumerate(batch.responses):
        assert table[row, : len(response)].tolist() == list(response)
        assert batch.mask[row].sum() == len(response) and not table[row, len(response) :].any()


def test_spread_values_carry_their_gradient():
    mask = torch.tensor([[True, False, False], [True, True, False]])
    flat = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    table = spread(flat, mask)
    assert table.tolist() == [[1.0, 0.0, 0.0], [2.0, 3.0, 0.0]]
    (table * torch.tensor([[5.0, 9.0, 9.0], [6.0, 7.0, 9.0]])).sum().backward()
    assert flat.grad is not None and flat.grad.tolist() == [5.0, 6.0, 7.0]


def test_a_response_longer_than_the_budget_is_a_part_of_its_own():
    batch = Batch(((1, 2),), ((3,) * 9, (4,), (5,)), (0, 0, 0))
    assert batch.parts(range(3), 3) == [[0], [1, 2]]
    assert batch.parts([], 3) == []


@pytest.mark.parametrize("budget", [1, 7, 100])
def test_no_part_reads_a_group_that_has_no_row_in_it(budget):
    batch = Batch(((1,) * 3, (2,) * 3, (3,) * 3), ((4, 4), (5, 5), (6, 6)), (0, 1, 2))
    for part in batch.parts([0, 2], budget):
        assert 2 not in batch.part(part).tokens.tolist()
