"""What a reader gets to see of many witnesses, and of two numbers that are almost one."""

from assay.audit.invariants.findings import few, told_apart


def test_few_counts_what_it_leaves_out():
    lines = [f"line {number}" for number in range(7)]
    assert few(lines, most=5) == [*lines[:5], "and 2 more of the same kind"]
    assert few(lines, most=7) == lines
    assert few(["", "one", ""], most=1) == ["one"]
    assert few(iter(())) == []


def test_numbers_are_told_apart():
    assert told_apart(0.25, 0.75) == ("0.25", "0.75")
    one, other = told_apart(1 / 3, 1 / 3 + 1e-12)
    assert one != other and float(one) < float(other)
    assert told_apart(1.0, 1.0) == ("1", "1")
