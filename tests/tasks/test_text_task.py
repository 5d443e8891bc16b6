"""Splits share nothing, are drawn by the seed, and say what they dropped."""

import itertools
import json

import pytest

from assay.core.streams import Stream, uniforms
from assay.errors import ConfigError
from assay.tasks.contamination import Contamination, count_near, prompt_key
from assay.tasks.text import build_task
from assay.types import TextProblem

SHOTS = "1+2=3\n5+4=9\n7+6=13\n"
SUMS = [
    {"prompt": f"{SHOTS}{a}+{b}=", "answer": str(a + b), "pair": sorted((a, b))}
    for a, b in itertools.product(range(10), range(10))
]


def numbers(seed, rows, sample):
    return uniforms(seed, Stream.DATA, 1, problem=list(rows), sample=[sample] * len(rows))[:, 0].tolist()


def keys(problems):
    return {prompt_key(problem) for problem in problems}


def pairs(problems):
    return {tuple(problem.columns["pair"]) for problem in problems}


def test_every_row_is_one_problem_with_its_own_number():
    task = build_task(SUMS, seed=29, test_problems=40)
    both = {problem.number: problem for problem in task.train + task.test}
    assert len(task.test) == 40 and len(task.train) == 60 and sorted(both) == list(range(100))
    assert all((both[i].prompt, both[i].answer) == (row["prompt"], row["answer"]) for i, row in enumerate(SUMS))
    assert all(both[i].columns == {"pair": row["pair"]} for i, row in enumerate(SUMS))


def test_the_test_problems_are_the_first_by_their_addressed_number_and_the_rest_has_an_order_of_its_own():
    task = build_task(SUMS, seed=29, test_problems=40)
    order = [row for _, row in sorted(zip(numbers(29, range(100), 0), range(100), strict=True))]
    assert [problem.number for problem in task.test] == order[:40]
    rest = order[40:]
    after = [row for _, row in sorted(zip(numbers(29, rest, 1), rest, strict=True))]
    assert [problem.number for problem in task.train] == after


def test_training_size_changes_neither_test_nor_order_and_the_seed_changes_both():
    whole, part = (
        build_task(SUMS, seed=29, test_problems=10),
        build_task(SUMS, seed=29, test_problems=10, train_problems=7),
    )
    assert part.test == whole.test and part.train == whole.train[:7]
    other = build_task(SUMS, seed=30, test_problems=10)
    assert other.test != whole.test and other.train != whole.train


@pytest.mark.parametrize("seed", range(5))
def test_mirrored_sums_do_not_leak(seed):
    """Without the column they do, in nearly every split."""
    task = build_task(SUMS, seed=seed, test_problems=31, split_by="pair")
    assert len(task.test) == 31 and not pairs(task.train) & pairs(task.test)
    leaking = build_task(SUMS, seed=seed, test_problems=31)
    assert pairs(leaking.train) & pairs(leaking.test)


def test_what_is_too_many_of_the_last_group_is_on_neither_side():
    """Ten groups of ten: 15 test problems touch two groups, and eight groups are left to train on."""
    rows = [{"prompt": f"{group}-{member}", "group": group} for group in range(10) for member in range(10)]
    task = build_task(rows, seed=1, test_problems=15, split_by="group")
    assert len(task.test) == 15 and len(task.train) == 80
    assert not {p.columns["group"] for p in task.train} & {p.columns["group"] for p in task.test}


def test_every_group_is_as_likely_to_be_tested_whatever_its_size():
    """Half of the groups have one member; over many seeds half of the first test groups are such."""
    rows = [{"prompt": f"{g}.{m}", "g": g} for g in range(20) for m in range(1 if g < 10 else 9)]
    single = [
        build_task(rows, seed=seed, test_problems=1, split_by="g").test[0].columns["g"] < 10 for seed in range(100)
    ]
    assert 30 <= sum(single) <= 70


def test_prompts_that_differ_in_white_space_alone_are_one_problem():
    rows = [
        {"prompt": "2 + 2 =", "answer": "4"},
        {"prompt": " 2  +\n2 = ", "answer": "4"},
        {"prompt": "2 + 2 =", "answer": "5"},
        {"prompt": [{"role": "user", "content": "2 + 2 ="}], "answer": "4"},
        {"prompt": [{"role": "user", "content": "2 +  2 ="}], "answer": "4"},
        {"prompt": "3 + 3 =", "answer": "6"},
    ]
    task = build_task(rows, seed=0, test_problems=1)
    assert sorted(problem.number for problem in task.train + task.test) == [0, 3, 5]
    assert task.contamination == Contamination(duplicates=3, conflicting_answers=1)
    assert "3 duplicate prompts dropped (1 with another answer)" in str(task)


def test_a_second_file_gives_the_test_problems_and_training_loses_what_is_in_it():
    held_out = [
        {"prompt": SHOTS + "1+2= ", "answer": "3", "pair": [1, 2]},
        {"prompt": SHOTS + "11+1=", "answer": "12", "pair": [1, 11]},
        {"prompt": SHOTS + "11+1=", "answer": "12", "pair": [1, 11]},
    ]
    task = build_task(SUMS, test_data=held_out, seed=3, test_problems=0)
    assert {problem.number for problem in task.test} == {100, 101} and len(task.train) == 99
    assert not keys(task.train) & keys(task.test)
    assert task.contamination.overlap_prompts == 1 and task.contamination.duplicates == 1
    task = build_task(SUMS, test_data=held_out, seed=3, test_problems=0, split_by="pair")
    assert task.contamination.shared_keys == 1 and len(task.train) == 98 and (1, 2) not in pairs(task.train)
    assert len(build_task(SUMS, test_data=held_out, seed=3, test_problems=1).test) == 1


def test_near_duplicates_are_counted_by_answer_and_without_the_common_frame():
    frame = 5 * SHOTS
    story = "Ann has {} red apples and gives {} of them to her old friend Bo, how many are left"
    train = [TextProblem(0, frame + story.format(9, 2) + " over?", "7"), TextProblem(1, frame + "3 + 4 =?", "7")]
    near = [
        TextProblem(2, frame + story.format(9, 2) + " now?", "7"),  # all but its last two 8-grams
        TextProblem(3, frame + "3+4=?", "7"),  # white space
    ]
    far = [
        TextProblem(4, frame + story.format(9, 2) + " now?", "8"),  # another answer
        TextProblem(5, frame + "4+3=?", "7"),  # shares the frame alone
        TextProblem(6, frame + "Ann has 3 red apples and finds 4 green pears at the shop, how many?", "7"),
    ]
    assert count_near(train, near + far) == len(near)
    assert count_near([], near) == 0 and count_near(train, []) == 0


def test_the_record_says_what_was_read_and_kept():
    task = build_task([*SUMS, SUMS[0]], seed=3, test_problems=20, train_problems=10)
    record = json.loads(json.dumps(task.record()))
    assert record["sources"][0]["rows"] == 101 and len(record["sources"][0]["sha256"]) == 64
    assert record["train_problems"] == 10 and record["test_problems"] == 20
    assert record["contamination"]["duplicates"] == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"test_problems": 101}, "test_problems = 101: only 100 different problems"),
        ({"test_problems": 100}, "train_problems = 0: only 0 different problems are left"),
        ({"test_problems": 50, "train_problems": 51}, "train_problems = 51: only 50 different problems are left"),
        ({"test_problems": 0}, "nothing would be held out"),
        ({"test_problems": -1}, "must not be below 0"),
        ({"split_by": "pairs"}, "no column 'pairs' to split by; it has answer, pair"),
        ({"options": {"min_terms": 2}}, "task.options do nothing"),
        ({"answer_column": "solution"}, "row 0: no column 'solution'"),
    ],
)
def test_settings_that_cannot_be_met_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        build_task(SUMS, seed=0, **settings)


def test_a_column_to_split_by_may_be_the_answer():
    task = build_task(SUMS, seed=0, test_problems=20, split_by="answer")
    assert not {problem.answer for problem in task.train} & {problem.answer for problem in task.test}
