"""I13 on pairs of paths with the same formula, and on pairs that differ in one thing."""

import numpy as np
import pytest
import torch
from backwards import NoBackward

from assay.audit.invariants.parity import parity
from assay.audit.invariants.parity_cases import loss_cases
from assay.verdicts import Verdict


def plain(logp, logp_old, adv, mask):
    return -((logp - logp_old).exp() * adv[:, None] * mask).sum() / mask.sum()


def in_rows(logp, logp_old, adv, mask):
    rows = zip(logp, logp_old, adv, mask, strict=True)
    return sum((-(now - old).exp() * a * kept).sum() for now, old, a, kept in rows) / mask.sum()


def test_another_order_of_the_same_arithmetic_holds():
    found = parity(plain, in_rows)
    assert found.verdict is Verdict.HOLDS and found.error < 1e-12
    assert parity(plain, plain).error == 0.0


def test_a_value_that_cancels_to_zero_leaves_rounding_and_no_alarm():
    x = torch.tensor([0.1, 0.2, -0.3], dtype=torch.float64)

    def forwards(x):
        return (x[0] + x[1]) + x[2]

    def backwards(x):
        return x[0] + (x[1] + x[2])

    assert forwards(x) != backwards(x) and abs(float(forwards(x))) < 1e-16
    assert parity(forwards, backwards, cases={"one": {"x": x}}, trained=("x",)).verdict is Verdict.HOLDS


def only_the_gradient(logp, logp_old, adv, mask):
    """The same value: half of the ratio is a constant."""
    ratio = (logp - logp_old).exp()
    return -((ratio + ratio.detach()) / 2 * adv[:, None] * mask).sum() / mask.sum()


def only_the_value(logp, logp_old, adv, mask):
    return plain(logp, logp_old, adv, mask) + 0.1


def without_the_old_policy(logp, adv, mask):
    return -(logp - logp.detach()).exp().mul(adv[:, None] * mask).sum() / mask.sum()


def over_the_padded_length(logp, logp_old, adv, mask):
    return -((logp - logp_old).exp() * adv[:, None] * mask).sum() / mask.numel()


def detached(logp, logp_old, adv, mask):
    return plain(logp.detach(), logp_old, adv, mask)


@pytest.mark.parametrize(
    ("second", "witness"),
    [
        (only_the_gradient, "even lengths: gradient by logp"),
        (only_the_value, "even lengths: value"),
        (without_the_old_policy, "an old policy that differs: value"),
        (over_the_padded_length, "uneven lengths: value"),
        (detached, "even lengths: gradient by logp"),
    ],
)
def test_what_differs_is_named_with_the_case_that_shows_it(second, witness):
    found = parity(plain, second)
    assert found.verdict is Verdict.DISAGREES and found.findings[0].startswith(witness), found.findings


def test_witnesses_hold_both_values():
    found = parity(plain, only_the_value)
    case = loss_cases()["uneven lengths"]
    value = float(plain(*(case[name] for name in ("logp", "logp_old", "adv", "mask"))))
    assert any(f"uneven lengths: value is {value:.6g} and {value + 0.1:.6g}" == line for line in found.findings)


def test_each_case_has_the_one_thing_it_is_named_after():
    cases = loss_cases()
    for name, case in cases.items():
        everything = name == "all of these"
        lengths = case["mask"].sum(1)
        assert (len(set(lengths.tolist())) > 1) == ("uneven" in name or everything)
        assert torch.equal(case["logp"], case["logp_old"]) == ("old policy" not in name and not everything)
        assert torch.equal(case["logp_old"], case["logp_sampler"]) == ("sampler" not in name and not everything)
        assert bool((case["sample_mask"] == 0).any()) == ("does not train" in name or everything)
        assert (case["accumulation"] == 2) == ("micro-batches" in name or everything)
        sums = torch.zeros(2, dtype=torch.float64).index_add(0, case["group"], case["adv"])
        torch.testing.assert_close(sums, torch.zeros(2, dtype=torch.float64), atol=1e-15, rtol=0)


def test_mappings_tuples_numbers_and_arrays_are_compared_part_by_part():
    case = {"one": {"x": torch.tensor([1.0, 2.0], dtype=torch.float64)}}

    def first(x):
        return {"sum": x.sum(), "both": (float(x[0]), x.numpy())}

    def second(x):
        return {"sum": x.sum(), "both": (float(x[0]), np.array([1.0, 2.5]))}

    assert parity(first, first, cases=case, trained=()).verdict is Verdict.HOLDS
    found = parity(first, second, cases=case, trained=())
    assert found.findings == ("one: value['both'][1] at [1] is 2 and 2.5",)
    assert "gradient" not in found.detail


def test_shapes_and_lost_numbers():
    case = {"one": {"x": torch.ones(2, dtype=torch.float64)}}
    found = parity(lambda x: x, lambda x: x[:1], cases=case, trained=())
    assert found.findings == ("one: value has shape (2,) and (1,)",)
    found = parity(lambda x: x, lambda x: x * float("nan"), cases=case, trained=())
    assert found.verdict is Verdict.DISAGREES and found.findings[0].endswith("is 1 and nan")


def ends(*numbers):
    return lambda logp: torch.cat([logp[0, :1], torch.tensor(numbers, dtype=torch.float64)])


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (ends(INF), ends(1.0), "value at [1] is inf and 1"),
        (ends(INF), ends(-INF), "value at [1] is inf and -inf"),
        (ends(-INF, 1.0), ends(-INF, 2.0), "value at [2] is 1 and 2"),
        (ends(NAN), ends(1.0), "value at [1] is nan and 1"),
        (ends(NAN, 1.0), ends(NAN, 2.0), "value at [2] is 1 and 2"),
    ],
)
def test_what_is_not_finite_hides_nothing(first, second, says):
    for one, two in [(first, second), (second, first)]:
        assert parity(one, two).verdict is Verdict.DISAGREES
    assert parity(first, second).findings[0] == f"even lengths: {says}"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        (lambda logp: logp.sum() * NAN, "even lengths: value is not finite in both"),
        (lambda logp: logp.sum() * 0 + INF, "even lengths: value is not finite in both"),
        (ends(NAN, 1.0), "even lengths: value is not finite in both"),
        (lambda logp: (logp * 0).sqrt().sum(), "gradient by logp is not finite in both"),
        (lambda logp: 1.0, "whatever they are given"),
        (lambda logp: torch.ones(3), "whatever they are given"),
        (lambda logp: 0 * logp.sum(), "whatever they are given"),
        (lambda logp: logp * 1j, "complex"),
        (lambda logp: np.array(["one"]), "reading what the first path returned"),
        (lambda logp: logp.detach().to("meta"), "reading what the first path returned"),
        (lambda logp: NoBackward.apply(logp), "backward of the first path raised ValueError"),
    ],
)
def test_two_paths_that_show_nothing_could_not_run(path, says):
    found = parity(path, path)
    assert found.verdict is Verdict.COULD_NOT_RUN and says in found.detail


def test_equal_infinities_agree():
    assert parity(ends(-INF), ends(-INF)).verdict is Verdict.HOLDS


def test_one_case_is_moved_to_tell_a_constant():
    case = {"one": {"x": torch.ones(2, dtype=torch.float64)}}
    assert parity(lambda x: 2 * x, lambda x: x + x, cases=case, trained=()).verdict is Verdict.HOLDS
    assert parity(lambda x: 2.0, lambda x: 2.0, cases=case, trained=()).verdict is Verdict.COULD_NOT_RUN
    found = parity(lambda x: x, lambda x: x, cases={"one": {"x": torch.arange(2)}}, trained=("x",))
    assert found.verdict is Verdict.COULD_NOT_RUN and "by 'x'" in found.detail


def test_the_tolerance_is_that_of_the_coarser_path():
    def in_float32(logp, logp_old, adv, mask):
        return plain(logp.float(), logp_old.float(), adv.float(), mask.float())

    for one, two in [(plain, in_float32), (in_float32, plain)]:
        found = parity(one, two)
        assert found.verdict is Verdict.HOLDS and 1e-9 < found.error <= found.tolerance == 1e-5
        assert found.why == "the subject computes in float32"
    found = parity(plain, lambda logp, logp_old, adv, mask: in_float32(logp, logp_old, adv, mask) * 1.001)
    assert found.verdict is Verdict.DISAGREES
    half = parity(plain, lambda logp, logp_old, adv, mask: plain(logp.bfloat16(), logp_old, adv, mask))
    assert half.tolerance == 0.05 and "bfloat16" in half.why


def test_a_path_that_writes_into_its_arguments_does_not_reach_the_other():
    def writes(logp, logp_old, adv, mask):
        adv *= 2.0
        logp -= logp_old
        return -(logp.exp() * adv[:, None] * mask).sum() / mask.sum() / 2.0

    assert parity(writes, plain).verdict is Verdict.HOLDS


def test_what_cannot_be_audited_says_why():
    for second, options, reason in [
        (lambda logits: logits, {}, "the second path asks for 'logits'"),
        (lambda logp: 1 / 0, {}, "the second path raised ZeroDivisionError"),
        (lambda logp: "loss", {}, "the second path returned str"),
        (lambda logp: (logp, logp), {}, "the first path returned value"),
        (in_rows, {"cases": {}}, "no case"),
    ]:
        found = parity(plain, second, **options)
        assert found.verdict is Verdict.COULD_NOT_RUN and reason in found.detail
