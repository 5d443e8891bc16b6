"""Text tasks: problems from a user's data, split by the seed into training and test problems that share nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from assay.core.streams import Stream, uniforms
from assay.errors import ConfigError
from assay.tasks.contamination import Contamination, count_near, drop_duplicates, prompt_key
from assay.tasks.gym import GYM, draw_gym_problems
from assay.tasks.problems import problem_of
from assay.tasks.rows import read_rows
from assay.types import TextProblem


@dataclass(frozen=True)
class Source:
    """Where problems came from.

    Attributes:
        name: a file, a function, or a data set of reasoning-gym.
        sha256: digest of what was read.
        rows: how many there were.
    """

    name: str
    sha256: str
    rows: int


@dataclass(frozen=True)
class TextTask:
    """The problems of a run.

    Attributes:
        name: of the data.
        train: in the order drawn by the seed.
        test: the same for any number of training problems (of reasoning-gym, all but acre's).
        sources: one, or one for each split.
        contamination: what was found between and within the splits.
    """

    name: str
    train: tuple[TextProblem, ...]
    test: tuple[TextProblem, ...]
    sources: tuple[Source, ...]
    contamination: Contamination

    def record(self) -> dict[str, Any]:
        """Return what was read, kept and dropped, as plain values for JSON."""
        return {
            "name": self.name,
            "sources": [asdict(source) for source in self.sources],
            "train_problems": len(self.train),
            "test_problems": len(self.test),
            "contamination": asdict(self.contamination),
        }

    def __str__(self) -> str:
        rows = " + ".join(f"{source.rows} rows of {source.name}" for source in self.sources)
        return f"{rows}: {len(self.train)} training and {len(self.test)} test problems. {self.contamination}"


def build_task(
    data: str | Path | Iterable[Any],
    *,
    seed: int,
    train_problems: int = 0,
    test_problems: int = 100,
    prompt_column: str = "prompt",
    answer_column: str = "answer",
    split_by: str = "",
    test_data: str | Path | Iterable[Any] = "",
    options: Mapping[str, Any] | None = None,
) -> TextTask:
    """Read data and split it.

    A problem's number is its row in the data; rows of a second file are numbered on from the first. Of problems whose
    prompts differ in white space alone, the first is kept; what would be in both splits stays in test.

    Args:
        data: ``"gym:NAME"`` for a data set of reasoning-gym, or what :func:`assay.tasks.rows.read_rows` reads.
        seed: names the draw.
        train_problems: 0 takes all that are left.
        test_problems: at least 1; 0 takes all of ``test_data``.
        prompt_column: see :func:`assay.tasks.problems.problem_of`.
        answer_column: see there.
        split_by: a column; problems with an equal value of it are all on one side.
        test_data: a second source, for the test problems.
        options: of the reasoning-gym data set.

    Raises:
        ConfigError: the data cannot be read, there are fewer problems than asked for, or a setting does nothing.
    """
    if train_problems < 0 or test_problems < 0:
        raise ConfigError(f"train_problems = {train_problems}, test_problems = {test_problems}: must not be below 0")
    if isinstance(data, str) and data.startswith(GYM):
        if split_by or test_data or (prompt_column, answer_column) != ("prompt", "answer"):
            raise ConfigError(
                f"{data}: split_by, test_data, prompt_column and answer_column do nothing; leave them out"
            )
        return _gym_task(data, seed, train_problems, test_problems, options or {})
    if options:
        raise ConfigError("task.options do nothing here: they are for data = 'gym:NAME'; leave them out")
    columns = (prompt_column, answer_column)
    problems, source, found = _read(data, columns, first_number=0)
    if isinstance(test_data, str) and not test_data:
        if not test_problems:
            raise ConfigError("test_problems = 0: nothing would be held out; set at least 1, or name test_data")
        test, rest = _take_groups(problems, _keys(problems, split_by), seed, test_problems)
        sources: tuple[Source, ...] = (source,)
    else:
        held_out, second, found_there = _read(test_data, columns, first_number=source.rows)
        test = _take(held_out, "test", seed, test_problems)
        rest, overlap, shared = _without(problems, test, split_by)
        found = replace(
            found,
            duplicates=found.duplicates + found_there.duplicates,
            conflicting_answers=found.conflicting_answers + found_there.conflicting_answers,
            overlap_prompts=overlap,
            shared_keys=shared,
        )
        sources = (source, second)
    train = _take(rest, "train", seed, train_problems)
    return _task(source.name, train, test, sources, found)


def _task(
    name: str,
    train: Sequence[TextProblem],
    test: Sequence[TextProblem],
    sources: tuple[Source, ...],
    found: Contamination,
) -> TextTask:
    return TextTask(name, tuple(train), tuple(test), sources, replace(found, near_duplicates=count_near(train, test)))


def _gym_task(data: str, seed: int, train: int, test: int, options: Mapping[str, Any]) -> TextTask:
    """Return a task of reasoning-gym; the test problems come first, so they are the same for any training size."""
    if not train or not test:
        raise ConfigError(f"{data} has no end: set train_problems and test_problems to at least 1")
    problems, tried = draw_gym_problems(data, options, seed=seed, count=test + train)
    content = json.dumps([(problem.prompt, problem.answer, problem.columns) for problem in problems])
    source = Source(data, hashlib.sha256(content.encode()).hexdigest(), tried)
    found = Contamination(duplicates=tried - len(problems))
    return _task(data, problems[test:], problems[:test], (source,), found)


def _read(
    data: str | Path | Iterable[Any], columns: tuple[str, str], *, first_number: int
) -> tuple[list[TextProblem], Source, Contamination]:
    """Return the distinct problems of a source, and how many were dropped."""
    read = read_rows(data)
    prompt, answer = columns
    every = [
        problem_of(number, row, prompt_column=prompt, answer_column=answer)
        for number, row in enumerate(read.rows, start=first_number)
    ]
    problems, dropped, conflicting = drop_duplicates(every)
    return problems, Source(read.source, read.sha256, len(read.rows)), Contamination(dropped, conflicting)


def _keys(problems: Sequence[TextProblem], split_by: str) -> list[str]:
    """Return what decides which problems stay together: equal values of a column, or nothing but the problem."""
    if not split_by:
        return [str(problem.number) for problem in problems]
    keys = []
    for problem in problems:
        columns = {"answer": problem.answer, **problem.columns}
        if split_by not in columns:
            raise ConfigError(f"row {problem.number}: no column {split_by!r} to split by; it has {', '.join(columns)}")
        keys.append(json.dumps(columns[split_by], sort_keys=True, default=repr))
    return keys


def _numbers(problems: Sequence[TextProblem], seed: int, sample: int) -> list[float]:
    """Return the addressed number of each problem."""
    rows = [problem.number for problem in problems]
    drawn: list[float] = uniforms(seed, Stream.DATA, 1, problem=rows, sample=[sample] * len(rows))[:, 0].tolist()
    return drawn


def _take_groups(
    problems: Sequence[TextProblem], keys: Sequence[str], seed: int, count: int
) -> tuple[list[TextProblem], list[TextProblem]]:
    """Take whole groups of equal keys, in the order drawn by the seed, until there are so many problems.

    Returns:
        The problems taken, and those of the groups not touched; what is too many of the last group is in neither.
    """
    groups: dict[str, list[TextProblem]] = {}
    for problem, key in zip(problems, keys, strict=True):
        groups.setdefault(key, []).append(problem)
    numbers = _numbers([group[0] for group in groups.values()], seed, 0)
    ordered = [group for _, group in sorted(zip(numbers, groups.values(), strict=True), key=lambda pair: pair[0])]
    taken: list[TextProblem] = []
    while ordered and len(taken) < count:
        taken += ordered.pop(0)
    if len(taken) < count:
        raise ConfigError(f"test_problems = {count}: only {len(problems)} different problems exist; ask for fewer")
    return taken[:count], [problem for group in ordered for problem in group]


def _take(problems: Sequence[TextProblem], split: str, seed: int, count: int) -> list[TextProblem]:
    """Take problems in the order drawn by the seed; 0 takes all.

    Raises:
        ConfigError: there are not so many, or none.
    """
    if count > len(problems) or not problems:
        raise ConfigError(
            f"{split}_problems = {count}: only {len(problems)} different problems are left for {split}; ask for fewer"
        )
    numbers = _numbers(problems, seed, 1)
    ordered = [problem for _, problem in sorted(zip(numbers, problems, strict=True), key=lambda pair: pair[0])]
    return ordered[: count or len(ordered)]


def _without(
    train: Sequence[TextProblem], test: Sequence[TextProblem], split_by: str
) -> tuple[list[TextProblem], int, int]:
    """Drop the training problems whose prompt, or value of the column to split by, a test problem has.

    Returns:
        What is left, how many were dropped for their prompt, and how many more for the column.
    """
    prompts = {prompt_key(problem) for problem in test}
    distinct = [problem for problem in train if prompt_key(problem) not in prompts]
    if not split_by:
        return distinct, len(train) - len(distinct), 0
    keys = set(_keys(test, split_by))
    left = [problem for problem, key in zip(distinct, _keys(distinct, split_by), strict=True) if key not in keys]
    return left, len(train) - len(distinct), len(distinct) - len(left)
