"""I2 on trainers whose one mistake is known: each axis of the layouts is there to show one."""

import itertools
import math

import pytest
import torch
from backwards import NoBackward

from assay.audit.invariants.layouts import RANKS, Layout, Rows, example_rows, lay_out, layouts, one_batch
from assay.audit.invariants.partition import REMEDIES, accumulated, partition
from assay.verdicts import Verdict

ROWS = example_rows()
EVERY = layouts(ROWS, packed=True)


def terms(micro):
    return -micro.adv * micro.logp * micro.mask


def token_mean(micro, window):
    return terms(micro).sum() * len(window.ranks) / window.tokens


def sequence_mean(micro, window):
    """Written on sequence numbers, so that packed rows are told apart."""
    lengths = window.rows.mask.sum(1).clamp(min=1)
    return (terms(micro) / lengths[micro.sequence]).sum() * len(window.ranks) / window.sequences


def constant_length(micro, window):
    return terms(micro).sum() * len(window.ranks) / (window.sequences * 4)


def clipped_ratio(micro, window):
    ratio = (micro.logp - micro.logp_old).exp()
    kept = torch.minimum(ratio * micro.adv, ratio.clamp(0.97, 1.03) * micro.adv)
    return -(kept * micro.mask).sum() * len(window.ranks) / window.tokens


@pytest.mark.parametrize("step", [token_mean, sequence_mean, constant_length, clipped_ratio])
def test_global_counts_give_one_gradient_in_every_layout(step):
    made = partition(accumulated(step), ways=EVERY)
    assert made.verdict is Verdict.HOLDS, made
    assert made.error < 1e-14 and made.remedy == "" and made.name == "I2 partition"


MASK = ROWS.mask.double()
WEIGHTS = {
    token_mean: MASK / 12,
    sequence_mean: MASK / torch.tensor([1, 4, 2, 1, 2, 3])[:, None] / 6,
    constant_length: MASK / 24,
}


@pytest.mark.parametrize("step", WEIGHTS)
@pytest.mark.parametrize("named", WEIGHTS)
def test_a_reduction_must_be_the_one_that_its_name_stands_for(step, named):
    made = partition(accumulated(step), declared=-WEIGHTS[named] * ROWS.adv[:, None])
    assert (made.verdict is Verdict.HOLDS) == (step is named), made
    if step is not named:
        assert made.remedy == REMEDIES["one batch"] and made.findings[0].startswith("rank 0: rows 0 1 2 3 4 5: ")


def test_a_declared_scale_counts():
    declared = -WEIGHTS[token_mean] * ROWS.adv[:, None]
    made = partition(accumulated(token_mean), declared=2 * declared)
    assert made.verdict is Verdict.DISAGREES
    assert "(every entry is 0.5 times as large)" in made.findings[0]


def by_order(window):
    """Weigh the first token of the first micro-batch twice."""
    whole = torch.stack([terms(micro).sum() for micro in window.micro_batches]).sum()
    return whole + terms(window.ranks[0][0])[0, 0]


def by_row_of_tensor(micro, window):
    lengths = micro.mask.sum(1, keepdim=True).clamp(min=1)
    return (terms(micro) / lengths).sum() * len(window.ranks) / window.sequences


MISTAKES = {
    "micro-batches": accumulated(lambda micro, window: token_mean(micro, window) / len(window.ranks[0])),
    "ranks": accumulated(lambda micro, window: token_mean(micro, window) / len(window.ranks)),
    "order": by_order,
    "window": accumulated(lambda micro, window: token_mean(micro, window) * len(window.ranks[0]) / window.planned),
    "rollout": accumulated(lambda micro, window: token_mean(micro, window) * window.tokens / window.rollout_tokens),
    "padding": accumulated(lambda micro, window: token_mean(micro, window) / micro.mask.shape[1]),
    "packing": accumulated(by_row_of_tensor),
}
SHOWN_BY = {"micro-batches": {"ranks"}, "order": {"micro-batches", "ranks"}, "padding": {"packing"}}
"""Axes that vary as well where this one does: rows are dealt out of order, ranks hold several micro-batches."""


@pytest.mark.parametrize("axis", MISTAKES)
def test_each_axis_shows_its_mistake_and_names_the_remedy(axis):
    ways = [way for way in EVERY if way.axis == axis]
    made = partition(MISTAKES[axis], ways=ways)
    assert made.verdict is Verdict.DISAGREES and made.remedy == REMEDIES[axis]
    rest = partition(MISTAKES[axis], ways=[way for way in EVERY if way.axis not in {axis} | SHOWN_BY.get(axis, set())])
    assert rest.verdict is Verdict.HOLDS, rest


def test_unequal_micro_batches_alone_break_a_mean_of_means():
    def mean_of_means(micro, window):
        lengths = micro.mask.sum(1).clamp(min=1)
        return (terms(micro).sum(1) / lengths).mean() / len(window.ranks[0])

    assert partition(accumulated(mean_of_means), ways=layouts(ROWS, even=True)).verdict is Verdict.HOLDS
    assert partition(accumulated(mean_of_means)).verdict is Verdict.DISAGREES


def test_the_witness_is_arithmetic():
    """Responses of 1 and 3 tokens, advantages +1 and -1: over 4 tokens each weighs 1/4, in parts 1/2 and 1/6."""
    mask = torch.tensor([[True, False, False], [True, True, True]])
    logp = torch.full((2, 3), -0.5, dtype=torch.double)
    rows = Rows(logp, logp, torch.tensor([1.0, -1.0]).double(), mask, mask.sum(1), torch.tensor([0, 0]))

    def mean_of_means(micro, window):
        return terms(micro).sum() / micro.mask.sum() / len(window.ranks[0])

    made = partition(accumulated(mean_of_means), rows=rows, ways=[Layout((((0,), (1,)),), "micro-batches", 3)])
    assert made.findings == ("rank 0: rows 0 | 1: the gradient at row 0, token 0 is -0.5, in one batch -0.25",)
    assert made.error == pytest.approx(1.0)


def test_a_gradient_in_the_trainers_own_parameters_is_compared_as_it_is():
    features = torch.arange(6 * 4 * 3).view(6, 4, 3).double().sin()

    def update(window, scale=lambda micro: 1.0):
        own = torch.zeros(3, dtype=torch.double)
        for micro in window.micro_batches:
            seen = micro.sequence >= 0
            place = seen.cumsum(1) - 1
            weight = (micro.adv * micro.mask * scale(micro) / window.tokens)[seen]
            own -= (weight[:, None] * features[micro.sequence[seen], place[seen]]).sum(0)
        return own

    assert partition(update).verdict is Verdict.HOLDS
    made = partition(lambda window: update(window, lambda micro: 1 / len(micro.mask)))
    assert made.verdict is Verdict.DISAGREES and "entry (" in made.findings[0]
    by_hand = -torch.einsum("nt,n,ntd->d", MASK, ROWS.adv, features) / 12
    assert partition(update, declared=by_hand).verdict is Verdict.HOLDS


def test_a_micro_batch_without_a_token_is_among_the_layouts():
    def no_guard(micro, window):
        share = micro.mask.sum() * len(window.ranks) / window.tokens
        return terms(micro).sum() / micro.mask.sum() * share

    made = partition(accumulated(no_guard))
    assert made.verdict is Verdict.DISAGREES and made.error == math.inf
    assert "| 3 |" in made.findings[0] and "nan" in made.findings[0]


@pytest.mark.parametrize(
    ("update", "says"),
    [
        (lambda window: 1 / 0, "ZeroDivisionError"),
        (lambda window: "loss", "returned str"),
        (lambda window: window.ranks[0][0].logp, "only a scalar can be applied"),
        (lambda window: terms(window.ranks[0][0]).sum().detach(), "no gradient"),
        (lambda window: torch.ones((), requires_grad=True) * 2, "no gradient"),
        (lambda window: 0 * terms(window.ranks[0][0]).sum(), "zero or not finite"),
        (lambda window: torch.stack([micro.adv.sum() for micro in window.micro_batches]), "a gradient of shape (2,)"),
        (lambda window: torch.arange(1.0, 5.0), "not made from them"),
        (lambda window: window.rows.adv, "not made from them"),
        (lambda window: torch.ones(3, device="meta"), "reading what the update returned"),
        (lambda window: torch.ones(3) * 1j, "complex"),
        (lambda window: NoBackward.apply(window.ranks[0][0].logp), "backward of the update raised ValueError"),
    ],
)
def test_what_is_no_update_could_not_run(update, says):
    made = partition(update)
    assert made.verdict is Verdict.COULD_NOT_RUN and says in made.detail


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nothing_agrees_with_a_declared_gradient_that_is_not_finite(value):
    declared = -WEIGHTS[token_mean] * ROWS.adv[:, None]
    made = partition(accumulated(token_mean), declared=declared.index_fill(0, torch.tensor([0]), value))
    assert made.verdict is Verdict.COULD_NOT_RUN and "declared gradient is not finite" in made.detail


def test_packing_is_tried_where_the_trainer_packs_and_said_to_be_left_out_elsewhere():
    made = partition(MISTAKES["packing"])
    assert made.verdict is Verdict.HOLDS and made.exactness.endswith("packing not tried")
    made = partition(MISTAKES["packing"], packed=True)
    assert made.verdict is Verdict.DISAGREES and "not tried" not in made.exactness
    assert partition(accumulated(sequence_mean), packed=True).verdict is Verdict.HOLDS


def test_the_tolerance_is_that_of_what_the_update_computes_in():
    """Thirds of float32 numbers, added up in another order, differ in the last of 24 bits."""

    def in_float32(window):
        parts = [(micro.logp.detach() * micro.mask).float().sum() / 3 for micro in window.micro_batches]
        return sum(parts)[None].expand(2)

    made = partition(in_float32)
    assert made.verdict is Verdict.HOLDS and 1e-9 < made.error <= made.tolerance == 1e-5 and "float32" in made.why
    made = partition(lambda window: in_float32(window) / len(window.micro_batches))
    assert made.verdict is Verdict.DISAGREES


def test_no_layout_is_no_verdict():
    assert partition(accumulated(token_mean), ways=[]).verdict is Verdict.COULD_NOT_RUN


def test_the_cuts_are_all_there_are():
    """Counted from below: choose the sizes of the micro-batches, and ask that they add up."""
    cells = {way.cells for way in layouts(ROWS) if way.axis in ("micro-batches", "ranks")}
    for ranks, each in itertools.product(RANKS, range(1, 7)):
        sizes = itertools.product(range(1, 7), repeat=ranks * each) if ranks * each <= 6 else ()
        expected = sum(sum(choice) == 6 for choice in sizes)
        dealt = (ranks, each) in ((1, 2), (2, 1))
        found = sum(len(cell) == ranks and all(len(rank) == each for rank in cell) for cell in cells)
        assert found == expected + dealt - ((ranks, each) == (1, 1))


@pytest.mark.parametrize("way", EVERY, ids=str)
def test_a_layout_holds_every_token_once(way):
    window = lay_out(way, ROWS, ROWS.logp)
    found = {name: [] for name in ("logp", "logp_old", "adv", "mask")}
    for micro in window.micro_batches:
        seen = micro.sequence >= 0
        assert not micro.mask[~seen].any() and not micro.logp[~seen].any()
        for name, values in found.items():
            values += list(zip(micro.sequence[seen].tolist(), getattr(micro, name)[seen].tolist(), strict=True))
    for name, values in found.items():
        source = getattr(ROWS, name)
        source = source[:, None].expand(6, 4) if source.ndim == 1 else source.double()
        expected = [(row, float(source[row, t])) for row in range(6) for t in range(int(ROWS.length[row]))]
        assert sorted(values) == sorted(expected)
    assert window.tokens == 12 and window.sequences == 6 and window.rollout_tokens == 12 * way.steps


def test_the_example_has_what_real_batches_have():
    trained = ROWS.mask.sum(1)
    assert sorted(trained.tolist()) == [0, 1, 2, 2, 3, 4] and (ROWS.adv > 0).any() and (ROWS.adv < 0).any()
    assert (trained < ROWS.length).sum() == 2  # one row wholly masked, one observation inside
    assert one_batch(ROWS).cells == (((0, 1, 2, 3, 4, 5),),)
