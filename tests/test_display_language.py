"""What a person sees of a language run, on a terminal and off it, with responses that try to do harm."""

from __future__ import annotations

import io
import re
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from assay.display_language import LanguageView, Sample, closing, opening, samples_table, show_language_plan, step_line
from assay.display_results import show_language_results
from assay.evaluation.answers import Answer, point_record
from assay.evaluation.bounds import Bounds, bounds_record
from assay.evaluation.compare import compare_points
from assay.evaluation.format_share import format_share
from assay.runs.language.advice import LITTLE_SIGNAL, REASONS, WINDOW, advice
from assay.types import Outcome

HOSTILE = [
    "\x1b[31mred\x1b]0;title\x07",
    "[bold red]markup[/] [link=file:///etc/passwd]x[/link] [/nonsense]",
    "one\rtwo\nthree\x0b\x0c\x85\u2028\u2029four",
    "\u202eexe.gpj\u2066\u2069\u200f\u200e",
    "back\b\b\b\x7f\x9b2J",
    "zero\u200bwidth\ufeff\u00ad\ud800",
    "שלום ١٢٣ مرحبا",
    "漢字" * 500,
    "e" + "\u0301" * 10_000,
    "y" * 1_000_000,
    "",
]


def console(*, terminal: bool = False, width: int = 100) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, height=40, color_system=None)


def printed(made: Console) -> str:
    return made.file.getvalue()  # type: ignore[attr-defined]


def record(step: int, **changes: Any) -> dict[str, Any]:
    return {
        "phase": "rl",
        "step": step,
        "reward": 0.25,
        "outcomes": {"right": 16, "wrong": 44, "unparseable": 3, "timeout": 1, "error": 0},
        "groups": {"informative": 5, "all_right": 1, "all_wrong": 2, "all_equal": 0, "unscorable": 0},
        "completions/mean_length": 3.25,
        "completions/clipped_ratio": 0.0,
        "kl": 0.0125,
        "sampling/sampling_logp_difference/max": 2.5e-6,
        "grad_norm": 0.5,
        "stepped": True,
        **changes,
    }


def groups(**counts: int) -> dict[str, int]:
    return {"informative": 0, **dict.fromkeys(REASONS, 0), **counts}


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("clip", [opening, closing])
def test_hostile_text_becomes_one_bounded_line_that_does_nothing(text, clip):
    made = clip(text, 24)
    isolated = made.startswith("\u2068")
    inside = made.removeprefix("\u2068").removesuffix("\u2069") if isolated else made
    assert cell_len(inside) <= 24
    assert inside.isprintable()
    turned = any(unicodedata.bidirectional(character) in ("R", "AL", "AN") for character in inside)
    assert turned == isolated


@given(st.text(), st.integers(1, 30))
def test_any_text_is_clipped_to_its_cells_and_whole_where_it_fits(text, cells):
    for clip in (opening, closing):
        made = clip(text, cells).strip("\u2068\u2069")
        assert cell_len(made) <= cells and made.isprintable()
    plain = re.sub(r"[^a-z]", "", text)
    if len(plain) <= cells:
        assert opening(plain, cells) == closing(plain, cells) == plain


def test_the_beginning_of_a_response_and_the_end_of_a_prompt_are_shown():
    assert opening("abcdefgh", 5) == "abcd…"
    assert closing("abcdefgh", 5) == "…efgh"


@pytest.mark.parametrize("text", HOSTILE)
def test_a_row_of_samples_stays_one_line_whatever_was_answered(text):
    made = console(width=90)
    made.print(samples_table([Sample(text, text, "wrong", 0.0), Sample("1+2=", "3", "right", 1.0)]))
    heading, row, last, rest = printed(made).split("\n")
    assert heading.split() == ["outcome", "reward", "prompt", "response"]
    assert row.startswith("wrong") and last.split() == ["right", "1", "1+2=", "3"] and rest == ""
    assert all(character.isprintable() or character in "\u2068\u2069" for character in row)


def test_markup_in_a_response_is_shown_and_not_obeyed():
    made = console(width=120)
    made.print(samples_table([Sample("[b]ask[/b]", "[red]x[/red] [/]", "wrong", None)]))
    assert "[b]ask[/b]" in printed(made) and "[red]x[/red] [/]" in printed(made) and "none" in printed(made)


def test_off_a_terminal_each_step_is_one_line_without_codes():
    made = console()
    with LanguageView(made, {"warmup": 1, "rl": 12}) as view:
        view.on_step({"phase": "warmup", "step": 1, "negative_log_likelihood": 1.25, "grad_norm": 2.0}, 1.5, [])
        for step in range(1, 13):
            view.on_step(record(step), 4.125, [Sample("1+2=", "[b]3\n", "right", 1.0)])
    lines = printed(made).splitlines()
    assert lines[0] == "warm-up 1/1  nll 1.250  grad 2.00  seconds 1.5"
    assert lines[1] == (
        "RL 1/12  reward 0.250  outcomes 16 right, 44 wrong, 3 unparseable, 1 timeout  informative 5 of 8  "
        "length 3.2  KL 0.013  gap 2.5e-06  grad 0.50  seconds 4.1"
    )
    assert [line for line in lines if not line.startswith("RL")][1:] == [r"    1 right: [b]3\n"] * 2
    assert len(lines) == 1 + 12 + 2
    assert "\x1b" not in printed(made)


def test_on_a_terminal_the_last_steps_and_samples_are_drawn_over_and_cleared():
    made = console(terminal=True, width=80)
    with LanguageView(made, {"warmup": 0, "rl": 12}) as view:
        for step in range(1, 13):
            view.on_step(record(step), 4.1, [Sample("1+2=", f"answer {step}", "right", 1.0)])
        frame = printed(made).rsplit("RL, 12 steps", 1)[1]
    shown = [line.split() for line in frame.splitlines() if "16/44/4" in line]
    assert [line[0] for line in shown] == [str(step) for step in range(5, 13)]
    assert shown[-1] == ["12", "0.250", "16/44/4", "5", "of", "8", "3.2", "0.013", "2.5e-06", "0.50", "4.1"]
    assert "answer 12" in frame and "answer 11" not in frame
    assert "\x1b[2K" in printed(made).rsplit(frame, 1)[1], "what was drawn is cleared at the end"


def test_a_step_without_an_update_or_a_figure_says_so():
    line = step_line(record(3, stepped=False, kl=None, grad_norm=0.0), 9, 1.0)
    assert "grad no step" in line and "KL" not in line
    bare = {name: value for name, value in record(3).items() if not name.startswith("sampling")}
    assert "gap" not in step_line(bare, 9, 1.0)


@pytest.mark.parametrize("reason", REASONS)
def test_advice_names_the_reason_of_most_groups(reason):
    made = advice([record(step, groups=groups(**{reason: 8})) for step in range(7)])
    assert made is not None and REASONS[reason] in made
    assert f"0 of {8 * WINDOW} groups of the last {WINDOW} steps" in made and "cut off" not in made


def test_advice_looks_at_the_last_steps_of_rl_and_at_its_threshold():
    silent, loud = record(1, groups=groups(all_wrong=10)), record(2, groups=groups(informative=1, all_wrong=9))
    assert LITTLE_SIGNAL == 0.1
    assert advice([loud] * WINDOW) is None
    assert advice([loud] * (WINDOW - 1) + [silent]) is not None
    assert advice([silent] * 3 + [loud] * WINDOW) is None
    assert advice([]) is None
    assert advice([{"phase": "warmup", "step": 1}]) is None


def test_advice_sees_that_responses_are_cut_off():
    cut = record(1, groups=groups(all_wrong=8), **{"completions/clipped_ratio": 0.75})
    assert "raise max_completion_length" in (advice([cut, cut]) or "")


def test_the_plan_is_printed_as_it_is_written():
    made = console()
    show_language_plan(made, [("problems", "[b]50[/b] test\x1b[0m")], "runs/[red]add")
    assert printed(made).split() == ["Plan,", "into", "runs/[red]add", "problems", "[b]50[/b]", r"test\x1b[0m"]


def point(right: int, of: int = 40, *, unparseable: int = 0) -> dict[str, Any]:
    """A point whose first problems are all right, the next not readable, the rest wrong; two samples and one greedy."""
    statuses = ["right"] * right + ["unparseable"] * unparseable + ["wrong"] * (of - right - unparseable)
    answers = [Answer(Outcome(float(status == "right"), status)) for status in statuses]  # type: ignore[arg-type]
    return point_record(range(of), [[answer, answer] for answer in answers], greedy=answers, pass_k=(1, 2))


def results(**changes: Any) -> dict[str, Any]:
    base, rl = point(4, unparseable=20), point(30)
    gains = {"rl": compare_points(base, rl), "total": compare_points(base, rl)}
    return {
        "points": {"base": {"train": base, "test": base}, "rl": {"train": rl, "test": rl}},
        "gains": {"train": gains, "test": gains},
        "format": format_share(base, rl),
        **changes,
    }


def summary(made: dict[str, Any], overlap: dict[str, int]) -> str:
    to = console(width=140)
    show_language_results(to, made, overlap)
    return printed(to)


def test_the_summary_gives_rates_intervals_gains_format_and_what_the_splits_share():
    text = summary(results(), {"prompts": 0})
    (row,) = {line for line in text.splitlines() if line.startswith("after RL")}
    rl = point(30)
    low, high = rl["sampled"]["interval"]
    wilson_low, wilson_high = rl["greedy"]["wilson"]
    assert re.split(r"  +", row) == [
        "after RL", "75.0%", f"{low:.1%} to {high:.1%}", "30/40", f"{wilson_low:.1%} to {wilson_high:.1%}", "75.0%",
        "100.0%", "0.0%", "0.0%",
    ]  # fmt: skip
    gain = compare_points(point(4, unparseable=20), rl)
    assert f"test, RL: {gain['words']}, sampled answers; permutation p" in text and "McNemar p" in text
    assert "in all" not in text, "without a warm-up the whole gain is that of RL"
    assert "after warm-up" not in text
    assert f"format: {format_share(point(4, unparseable=20), rl)['words']}" in text
    assert text.endswith("the splits share nothing\n")


def test_the_summary_of_everything_that_can_be_asked_for():
    same = compare_points(point(30), point(30))
    bounds = bounds_record([1], [Bounds(0.25, 0.5, 0.0, 0.25, 9, 4, False)])
    made = results(
        controls={"[bold]random_reward": {"test": point(5), "comparison": same}}, bounds={"rl": {"test": bounds}}
    )
    made["points"]["warmup"] = {"train": point(9), "test": point(9)}
    made["gains"] = {split: {**gains, "warmup": gains["rl"]} for split, gains in made["gains"].items()}
    text = summary(made, {"prompts": 3})
    assert "control: [bold]random_reward" in text and text.count("after warm-up") == 2
    assert f"RL against the control [bold]random_reward: {same['words']}" in text and "inside noise" in text
    assert "test, in all: higher" in text and "test, warm-up: higher" in text
    assert "certain, after RL, test: success from 25.00% to 50.00%\n" in text
    assert "both splits have: 3 prompts; test rates may be too high" in text


def test_a_run_with_greedy_answers_alone_has_a_summary_too():
    def greedy(right: int) -> dict[str, Any]:
        answers = [Answer(Outcome(float(at < right), "right" if at < right else "wrong")) for at in range(10)]
        return point_record(range(10), [[] for _ in range(10)], greedy=answers)

    base, rl = greedy(1), greedy(9)
    gains = {"rl": compare_points(base, rl)}
    made = results(
        points={"base": {"train": base, "test": base}, "rl": {"train": rl, "test": rl}},
        gains={"train": gains, "test": gains},
        format=None,
    )
    text = summary(made, {})
    assert "9/10" in text and "greedy answers; McNemar p" in text and "permutation" not in text
