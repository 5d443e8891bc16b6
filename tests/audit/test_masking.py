"""I3 on functions whose one mistake is known, and on scores, masks and losses that are right by construction."""

import itertools
import math

import pytest
import torch
from backwards import NoBackward
from torch import where

from assay.audit.invariants.independence import rows_are_independent
from assay.audit.invariants.mask_truth import Record, mask_is_truth
from assay.audit.invariants.masked_cases import (
    ABSENT,
    BY_MASK,
    ONE_MASK,
    OWN_MASK,
    SELECT,
    VALUES,
    example_case,
    variants,
)
from assay.audit.invariants.masking import AS_DECLARED, NO_TOKEN, SURFACE, masked_inert
from assay.verdicts import Verdict

CASE = example_case()
MASK = CASE["mask"] > 0
EMPTY_ROW = torch.tensor([[True, True, False], [False, False, False], [True, False, True]])


def token_mean(logp, adv, mask):
    return -(adv[:, None] * where(mask > 0, logp, 0.0)).sum() / mask.sum()


def sequence_mean(logp, adv, mask):
    return -(adv * where(mask > 0, logp, 0.0).sum(1) / mask.sum(1).clamp(min=1)).mean()


def clipped(logp, logp_old, logp_ref, adv, mask):
    counts = mask > 0
    gap = where(counts, logp, 0.0) - where(counts, logp_old, 0.0)
    away = where(counts, logp_ref, 0.0) - where(counts, logp, 0.0)
    kept = torch.minimum(gap.exp() * adv[:, None], gap.exp().clamp(0.97, 1.03) * adv[:, None])
    return (0.1 * (away.exp() - 1 - away) - kept).mul(mask).sum() / mask.sum()


@pytest.mark.parametrize("loss", [token_mean, sequence_mean, clipped])
def test_a_loss_that_selects_first_and_counts_under_its_mask_holds(loss):
    made = masked_inert(loss, by="logp")
    assert made.verdict is Verdict.HOLDS, made
    assert made.error < 1e-14 and made.name == "I3 masked positions" and made.remedy == ""


def nan_survives(logp, logp_old, adv, mask):
    return -((logp - logp_old).exp() * adv[:, None] * mask).sum() / mask.sum()


def nan_survives_in_the_gradient(logp, logp_old, adv, mask):
    """The value is selected, but the gradient at a masked position is 0 times exp of what stands there."""
    return -(where(mask > 0, (logp - logp_old).exp(), 0.0) * adv[:, None]).sum() / mask.sum()


def all_positions_counted(logp, adv, mask):
    return -(adv[:, None] * where(mask > 0, logp, 0.0)).mean()


def rows_counted_by_width(logp, adv, mask):
    return -(adv * where(mask > 0, logp, 0.0)[:, -4:].sum(1)).mean()


def trained_under_the_mask(logp, adv, mask):
    return -(adv[:, None] * logp).sum()


@pytest.mark.parametrize(
    ("loss", "begins", "says", "remedy"),
    [
        (nan_survives, "with 1000 under the mask of logp: ", "loss is nan", SELECT),
        (nan_survives_in_the_gradient, "with 1000 under the mask of logp: ", "masked position is nan", SELECT),
        (all_positions_counted, "with two more padded positions on the right: ", "at row 0, position 0", ONE_MASK),
        (rows_counted_by_width, "with two more padded positions on the right: ", "position", ONE_MASK),
        (
            trained_under_the_mask,
            "row 0, position 3 is masked",
            "there is -1, not 0",
            "select with the mask what the loss",
        ),
    ],
)
def test_a_loss_is_caught_by_its_smallest_witness(loss, begins, says, remedy):
    made = masked_inert(loss, by="logp")
    assert made.verdict is Verdict.DISAGREES
    assert made.findings[0].startswith(begins) and says in made.findings[0] and made.remedy.startswith(remedy)


def test_the_witness_is_arithmetic():
    """Two columns more make 35 positions of 25, and the first row has an advantage of 1."""
    assert MASK.numel() == 25 and float(CASE["adv"][0]) == 1.0
    made = masked_inert(all_positions_counted, by="logp")
    assert made.findings[0].endswith(f"gradient at row 0, position 0 is {-1 / 35:.6g}, without {-1 / 25:.6g}")


def test_a_wholly_masked_row_is_absent():
    case = {"score": torch.tensor([1.0, 5.0, 3.0]).double(), "mask": EMPTY_ROW}

    def centred_on_all(score, mask):
        return (score - score.mean())[:, None] * mask

    def centred_on_the_rest(score, mask):
        return (score - score[mask.any(1)].mean())[:, None] * mask

    made = masked_inert(centred_on_all, case)
    assert made.verdict is Verdict.DISAGREES and made.remedy == ABSENT
    assert made.findings[0].startswith("with score of row 1, wholly masked, 7 larger: output at row 0, position 0 is ")
    assert f"is {1 - 16 / 3:.6g}, without {1 - 9 / 3:.6g}" in made.findings[0]
    assert masked_inert(centred_on_the_rest, case).verdict is Verdict.HOLDS

    def counted_without_value(score, mask):
        return (score * mask.any(1)).sum() / len(score)

    assert masked_inert(counted_without_value, case).verdict is Verdict.HOLDS, "it may count as a row of 0"
    made = masked_inert(counted_without_value, case, absent=True)
    assert made.findings[0] == f"with the wholly masked rows taken out: output is {4 / 2:.6g}, without {4 / 3:.6g}"


def test_the_output_for_a_wholly_masked_row_does_not_count():
    def first_or_sum(logp, mask):
        return where(mask.any(1), where(mask, logp, 0.0).sum(1), logp[:, 0])

    made = masked_inert(first_or_sum, {"logp": CASE["logp"][:3, :3], "mask": EMPTY_ROW})
    assert made.verdict is Verdict.HOLDS, made


def test_time_goes_on_over_observations_where_it_is_said_to():
    def discounted(reward, mask):
        running, made = torch.zeros(len(reward), dtype=reward.dtype), []
        for t in reversed(range(reward.shape[1])):
            running = where(mask[:, t], reward[:, t], 0.0) + 0.5 * running
            made.append(running)
        return torch.stack(made[::-1], 1)

    case = {"reward": torch.ones(1, 3).double(), "mask": torch.tensor([[True, False, True]])}
    assert masked_inert(discounted, case, close_up=False).verdict is Verdict.HOLDS
    made = masked_inert(discounted, case)
    assert made.findings == ("with every masked position taken out: output at row 0, position 0 is 1.5, without 1.25",)


def test_a_function_of_right_padding_is_not_tried_on_the_left():
    def last_value(value, mask):
        return value[torch.arange(len(value)), mask.sum(1) - 1]

    values = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).double()
    case = {"value": values, "mask": torch.tensor([[True, True, False], [True, False, False]])}
    assert masked_inert(last_value, case, left=False).verdict is Verdict.HOLDS
    made = masked_inert(last_value, case)
    assert made.verdict is Verdict.DISAGREES and made.remedy == BY_MASK
    assert made.findings[0] == "with two more padded positions on the left: output of row 1 is 0, without 4"


def test_padding_holds_what_it_is_said_to():
    def by_label(reward, labels):
        return where(labels != -100, reward, 0.0).sum(1)

    labels = torch.tensor([[4, -100, -100], [4, 5, -100]])
    case = {"reward": torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).double(), "labels": labels}
    assert masked_inert(by_label, case, labels != -100, fill={"labels": -100}).verdict is Verdict.HOLDS

    def count(labels, reward):
        return (labels != -100).double().sum(1)

    assert masked_inert(count, case, labels != -100, fill={"labels": -100}).verdict is Verdict.HOLDS
    assert masked_inert(count, case, labels != -100).verdict is Verdict.DISAGREES


def test_every_masked_value_is_tried_in_every_argument_and_nowhere_else():
    """A function that reports its arguments: all that is said to be changed is changed, under the mask only."""
    case = {
        "logp": CASE["logp"],
        "logits": torch.arange(75.0).view(5, 5, 3).double(),
        "tokens": CASE["tokens"],
        "labels": where(MASK, CASE["tokens"], -100),
        "mask": CASE["mask"],
    }
    made = list(variants(case, MASK, fill={}, left=True, close_up=True, absent=False))
    seen = CASE["tokens"][MASK]
    puts = [*itertools.product(("logp", "logits"), VALUES), ("tokens", int(seen.min())), ("tokens", int(seen.max()))]
    changed = [(variant, name, value) for variant, (name, value) in zip(made, puts, strict=False)]
    for variant, name, value in changed:
        assert variant.name == f"{value:g} under the mask of {name}"
        under = variant.case[name][~MASK]
        assert torch.equal(under, torch.full_like(under, value)) or (math.isnan(value) and under.isnan().all())
        assert all(torch.equal(variant.case[key][MASK], case[key][MASK]) for key in case)
        assert all(torch.equal(variant.case[key], case[key]) for key in case if key != name)
    for variant in made[len(changed) :]:
        for key, value in case.items():
            assert torch.equal(variant.case[key][variant.mask], value[MASK]), (variant.name, key)
    widths = [(variant.mask.shape[1], variant.mask[:4, 0].all().item()) for variant in made[len(changed) :]]
    assert widths == [(7, True), (7, False), (4, True), (4, False)]  # the longest row has 5 tokens, one observed


@pytest.mark.parametrize(
    ("function", "options", "says"),
    [
        (lambda logp: 1 / 0, {}, "ZeroDivisionError"),
        (lambda logp: 1.0, {}, "returned float"),
        (lambda logp: logp[:2], {}, "returned (2, 5) for a batch of (5, 5)"),
        (lambda advantage: advantage, {}, "asks for 'advantage'"),
        (lambda logp: logp.sum(), {"by": "logits"}, "does not ask for 'logits'"),
        (lambda logp: logp, {"by": "logp"}, "one scalar"),
        (lambda logp, adv: adv.sum(), {"by": "logp"}, "one scalar"),
        (lambda logp: logp * math.nan, {}, "not finite"),
        (lambda logp: logp, {"case": {"logp": CASE["logp"]}}, "no mask"),
        (lambda logp: logp, {"mask": torch.zeros(4, 5, dtype=torch.bool)}, "zero everywhere"),
        (dict, {}, "signature"),
        (lambda logp, mask: logp.sum() if len(logp[0]) == 5 else 1 / 0, {"by": "logp"}, "ZeroDivisionError"),
    ],
)
def test_what_is_no_such_function_could_not_run(function, options, says):
    made = masked_inert(function, **options)
    assert made.verdict is Verdict.COULD_NOT_RUN and says in made.detail


def test_a_function_that_raises_at_a_masked_value_depends_on_it():
    def strict(logp, mask):
        assert logp.isfinite().all(), "a log-probability is not finite"
        return where(mask > 0, logp, 0.0).sum(1)

    made = masked_inert(strict)
    assert made.verdict is Verdict.DISAGREES and "with inf under the mask of logp" in made.findings[0]
    assert "AssertionError" in made.findings[0]


def test_arguments_are_not_changed_and_any_may_be_taken():
    before = {name: value.clone() for name, value in CASE.items()}

    def takes_all(**given):
        assert set(given) == set(CASE)
        given["reward"].zero_()
        return where(given["mask"] > 0, given["logp"], 0.0).sum(1)

    assert masked_inert(takes_all, CASE).verdict is Verdict.HOLDS
    assert all(torch.equal(CASE[name], value) for name, value in before.items())


def mask_of_tokens(logp, adv, tokens, mask):
    return -(where(tokens != 0, logp, 0.0) * adv[:, None]).sum() / mask.sum()


def mask_of_tokens_as_weight(tokens, mask):
    return (tokens != 0).sum(1) / mask.sum(1).clamp(min=1)


def nan_is_replaced(logp, adv, mask):
    return -(logp * adv[:, None] * mask).nan_to_num(posinf=0.0).sum() / mask.sum()


def test_the_usual_case_holds_what_real_batches_do():
    assert not MASK[4].any() and MASK[:4].any(1).all()
    assert CASE["tokens"][1, 2] > 0 and not MASK[1, 2] and (CASE["tokens"][MASK] > 0).all()


def test_a_mask_made_from_tokens_trains_on_observations():
    made = masked_inert(mask_of_tokens, by="logp")
    assert made.findings[0].startswith("row 1, position 2 is masked, and the gradient by logp there is")
    made = masked_inert(mask_of_tokens_as_weight)
    assert made.remedy == OWN_MASK and "under the mask of tokens: output of row 2 is " in made.findings[0]
    assert made.findings[0].endswith("is 5, without 1"), "row 2 has five positions, one of them unmasked"


def test_a_nan_that_counts_must_show():
    made = masked_inert(nan_is_replaced, by="logp")
    assert made.remedy == SURFACE and made.findings[0] == (
        "with NaN at row 0, position 0 of logp, which is not masked: the loss and its gradient are finite"
    )


def test_a_row_without_a_token_must_not_be_nan():
    def no_guard(logp, adv, mask):
        return -(adv * where(mask > 0, logp, 0.0).sum(1) / mask.sum(1)).mean()

    made = masked_inert(no_guard, by="logp")
    assert made.verdict is Verdict.DISAGREES and made.remedy == NO_TOKEN
    assert made.findings == ("with row 4 wholly masked: loss is nan, without such rows it is finite",)


@pytest.mark.parametrize(
    ("function", "options", "says"),
    [
        (lambda logp, mask: torch.tensor(1.0), {}, "depends on nothing that is unmasked"),
        (lambda logp, mask: torch.ones_like(logp), {}, "depends on nothing that is unmasked"),
        (
            lambda logp, mask: 0 * where(mask > 0, logp, 0.0).sum(),
            {"by": "logp"},
            "depends on nothing that is unmasked",
        ),
        (lambda logp, mask: where(mask > 0, logp, 0.0).sum() * torch.rand(()), {}, "when called again"),
        (lambda tokens, mask: (tokens * mask).sum(), {"by": "tokens"}, "no floating tensor"),
        (lambda adv, mask: adv.sum(), {"by": "adv"}, "no floating tensor"),
        (lambda logp: logp, {"case": {"logp": CASE["logp"], "mask": 3}}, "no mask"),
        (lambda logp: logp, {"mask": torch.ones(5)}, "must be [B, T]"),
        (lambda logp: logp.to("meta"), {}, "reading what the function returned"),
        (lambda logp: logp * 1j, {}, "complex"),
    ],
)
def test_a_constant_or_an_unusable_argument_could_not_run(function, options, says):
    made = masked_inert(function, **options)
    assert made.verdict is Verdict.COULD_NOT_RUN and says in made.detail


def test_a_float_mask_numbers_and_truth_values_are_taken():
    def scaled(logp, mask, scale):
        return where(mask > 0, logp, 0.0).sum(1) * scale

    case = {name: CASE[name] for name in ("logp", "mask")} | {"scale": 2.0}
    assert masked_inert(scaled, case, MASK.float()).verdict is Verdict.HOLDS
    assert masked_inert(lambda tokens, mask: (tokens > 3) & (mask > 0)).verdict is Verdict.HOLDS


def test_a_backward_that_raises_could_not_run():
    made = masked_inert(lambda logp, mask: NoBackward.apply(where(mask > 0, logp, 0.0)), by="logp")
    assert made.verdict is Verdict.COULD_NOT_RUN and "backward of the loss raised ValueError: no kernel" in made.detail


def test_the_tolerance_is_that_of_what_the_function_computes_in():
    def in_float32(logp, adv, mask):
        return token_mean(logp.float(), adv.float(), mask.float())

    made = masked_inert(in_float32, by="logp")
    assert made.verdict is Verdict.HOLDS and made.tolerance == 1e-5 and "float32" in made.why
    made = masked_inert(lambda logp, adv, mask: all_positions_counted(logp.float(), adv, mask), by="logp")
    assert made.verdict is Verdict.DISAGREES


def test_a_metric_is_compared_with_what_is_declared():
    declared = MASK.sum(1)[MASK.any(1)].double()
    assert masked_inert(lambda mask: (mask > 0).sum(1), declared=declared).verdict is Verdict.HOLDS
    made = masked_inert(lambda mask, truncated: (mask > 0).sum(1) * ~truncated, declared=declared)
    assert made.remedy == AS_DECLARED and made.findings == ("output of row 1 is 0, declared 4",) and made.error == 1.0


TOKENS = torch.tensor([[9, 5, 6, 0], [9, 9, 7, 5]])
TRUTH = torch.tensor([[False, True, True, False], [False, False, True, True]])
RECORDS = [Record({"tokens": TOKENS}, TOKENS, TRUTH)]


def test_a_mask_is_compared_with_who_chose_each_token():
    assert mask_is_truth(lambda tokens: (tokens > 0) & (tokens < 9), RECORDS).verdict is Verdict.HOLDS
    made = mask_is_truth(lambda tokens: tokens > 5, RECORDS)
    assert made.verdict is Verdict.DISAGREES
    assert made.findings == (
        "record 0, row 0, position 0: token 9 is in the mask, and the policy did not sample it",
        "record 0, row 0, position 1: token 5 is sampled, and masked",
        "record 0, row 1, position 0: token 9 is in the mask, and the policy did not sample it",
        "record 0, row 1, position 1: token 9 is in the mask, and the policy did not sample it",
        "record 0, row 1, position 3: token 5 is sampled, and masked",
    )


def test_tokens_are_compared_too():
    assert mask_is_truth(lambda tokens: (tokens, TRUTH), RECORDS).verdict is Verdict.HOLDS
    made = mask_is_truth(lambda tokens: (tokens.where(tokens != 6, 8), TRUTH), RECORDS)
    assert made.findings == (
        "record 0: the tokens are [[9, 5, 8, 0], [9, 9, 7, 5]], the sampler had [[9, 5, 6, 0], [9, 9, 7, 5]]",
    )


@pytest.mark.parametrize(
    ("builder", "records", "says"),
    [
        (lambda tokens: TRUTH, [Record({"tokens": TOKENS}, TOKENS, torch.zeros_like(TRUTH))], "tell nothing"),
        (lambda tokens: TRUTH[:, :2], RECORDS, "a mask of shape (2, 2)"),
        (lambda tokens: TRUTH.tolist(), RECORDS, "as tensors"),
        (lambda tokens: (tokens, TRUTH, TRUTH), RECORDS, "as tensors"),
        (lambda tokens: TRUTH.to("meta"), RECORDS, "reading what the mask builder returned"),
        (lambda ids: TRUTH, RECORDS, "TypeError"),
    ],
)
def test_what_builds_no_mask_could_not_run(builder, records, says):
    made = mask_is_truth(builder, records)
    assert made.verdict is Verdict.COULD_NOT_RUN and says in made.detail


def bigram(row):
    """Score each token from the one before it alone: nothing else can be seen."""
    table = torch.arange(64.0, dtype=torch.double).view(8, 8).sin().log_softmax(-1)
    return table[row[:-1], row[1:]]


def test_a_scorer_that_sees_its_row_alone_holds():
    made = rows_are_independent(lambda rows: [bigram(row) for row in rows])
    assert made.verdict is Verdict.HOLDS and made.error == 0.0 and made.exactness == "14 batches of 4 rows"


@pytest.mark.parametrize(
    ("leak", "witness"),
    [
        (lambda rows: 0.01 * len(rows), "row 0 in a batch of rows [0, 1]"),
        (lambda rows: 0.01 * int(rows[0][0]), "row 1 in a batch of rows [0, 1]"),
        (lambda rows: 0.01 * max(len(row) for row in rows), "row 0 in a batch of rows [0, 1]"),
        (lambda rows: 0.01 * int(rows[-1][-1]), "row 0 in a batch of rows [0, 1]"),
        (lambda rows: 0.01 * (len(rows) == 2 and rows[1].tolist() == [3, 1]), "row 1 in a batch of rows [1, 0]"),
        (lambda rows: math.nan if len(rows) == 4 else 0.0, "row 0 in a batch of rows [0, 1, 2, 3]"),
    ],
)
def test_whatever_a_row_sees_of_others_is_found(leak, witness):
    made = rows_are_independent(lambda rows: [bigram(row) + leak(rows) for row in rows])
    assert made.verdict is Verdict.DISAGREES and made.findings[0].startswith(witness)
    assert "alone" in made.findings[0]


@pytest.mark.parametrize(
    ("score", "says"),
    [
        (lambda rows: [bigram(row) for row in rows][:1], "a tensor for each of 2 rows"),
        (lambda rows: [bigram(row)[:1] for row in rows], "a log-probability for each token: (1,) for 2 tokens"),
        (lambda rows: [torch.zeros(0) for row in rows], "a log-probability for each token"),
        (lambda rows: [torch.zeros(len(row)) for row in rows], "one number, or none"),
        (lambda rows: [torch.tensor(-1.0) for row in rows], "one number, or none"),
        (lambda rows: [row * 1j for row in rows], "complex"),
        (lambda rows: [float(row.sum()) for row in rows], "returned float"),
        (lambda rows: torch.stack([bigram(row) for row in rows]), "returned Tensor"),
        (lambda rows: [bigram(row) - math.inf for row in rows], "not finite"),
    ],
)
def test_what_does_not_score_rows_could_not_run(score, says):
    made = rows_are_independent(score)
    assert made.verdict is Verdict.COULD_NOT_RUN and says in made.detail


def test_a_tolerance_is_for_scorers_in_lower_precision():
    def rounded(rows):
        return [bigram(row) + 1e-6 * len(rows) for row in rows]

    assert rows_are_independent(rounded).verdict is Verdict.DISAGREES
    assert rows_are_independent(rounded, tolerance=1e-4).verdict is Verdict.HOLDS


def test_the_tolerance_is_that_of_what_the_scorer_computes_in():
    """float32 has 24 bits: sums in another order differ by about 6e-8 each."""

    def padded_sums(rows):
        width = max(len(row) for row in rows)
        parts = [torch.cat([bigram(row), torch.zeros(width)]).float() for row in rows]
        return [
            part.flip(0).cumsum(0).flip(0)[: len(row) - 1] / 3 * len(rows) ** 0.5 / len(rows) ** 0.5
            for part, row in zip(parts, rows, strict=True)
        ]

    made = rows_are_independent(padded_sums)
    assert made.verdict is Verdict.HOLDS and 1e-9 < made.error <= made.tolerance == 1e-5 and "float32" in made.why
    assert rows_are_independent(lambda rows: [bigram(row).float() + 1e-3 * len(rows) for row in rows]).findings


def test_scores_cut_to_the_shortest_row_are_a_finding():
    made = rows_are_independent(lambda rows: [bigram(row)[: min(map(len, rows)) - 1] for row in rows])
    assert made.findings[0] == "row 1 in a batch of rows [0, 1]: log-probabilities of shape (1,), alone (4,)"
    assert len(made.findings) == 6 and made.findings[5].endswith("more of the same kind")


def test_scores_of_whole_rows_and_of_truth_values_are_read():
    assert rows_are_independent(lambda rows: [bigram(row).sum() for row in rows]).verdict is Verdict.HOLDS
    assert rows_are_independent(lambda rows: [row > 2 for row in rows]).verdict is Verdict.HOLDS
    assert rows_are_independent(lambda rows: [row > len(rows) for row in rows]).verdict is Verdict.DISAGREES


@pytest.mark.parametrize("rows", [[], [torch.tensor([1, 2])]])
def test_one_row_has_no_neighbour(rows):
    made = rows_are_independent(lambda rows: [bigram(row) for row in rows], rows)
    assert made.verdict is Verdict.COULD_NOT_RUN and f"{len(rows)} rows" in made.detail
