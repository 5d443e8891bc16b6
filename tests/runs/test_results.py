"""Where a recorded result departs from a recomputed one."""

import pytest

from assay.runs.results import deviations


@pytest.mark.parametrize(
    ("recorded", "computed", "found"),
    [
        ({"a": [1, 2.0]}, {"a": [1, 2.0]}, []),
        ({"a": {"b": 0.5 + 1e-10}}, {"a": {"b": 0.5}}, []),
        ({"a": {"b": 0.6}}, {"a": {"b": 0.5}}, ["a.b: recorded 0.6, recomputed 0.5"]),
        ({"a": 1}, {"a": 1.0}, []),
        ({"a": 1.0}, {"a": 1}, ["a: recorded 1.0, recomputed 1"]),
        ({"a": True}, {"a": 1}, ["a: recorded True, recomputed 1"]),
        ({"a": True}, {"a": 1.0}, ["a: recorded True, recomputed 1.0"]),
        ({"a": float("nan")}, {"a": 1.0}, ["a: recorded nan, recomputed 1.0"]),
        ({"a": float("inf")}, {"a": float("inf")}, ["a: recorded inf, recomputed inf"]),
        ({"a": 1}, {"b": 1}, ["a: only recorded", "b: only recomputed"]),
        ({"a": [1]}, {"a": [1, 2]}, ["a: recorded [1], recomputed [1, 2]"]),
        ({"a": [{"b": 1}, {"b": 2}]}, {"a": [{"b": 1}, {"b": 3}]}, ["a.1.b: recorded 2, recomputed 3"]),
        ({"a": "x" * 100}, {"a": ""}, [f"a: recorded '{'x' * 56}..., recomputed ''"]),
        ({"a": None}, {"a": [1]}, ["a: recorded None, recomputed [1]"]),
    ],
)
def test_each_departure_is_named_by_its_place(recorded, computed, found):
    assert deviations(recorded, computed, tolerance=1e-9) == found
