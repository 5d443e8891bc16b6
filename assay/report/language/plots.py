"""The curves of a language run, one quantity a panel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from matplotlib.axes import Axes

from assay.report import axes as draw
from assay.report.language.names import KINDS
from assay.report.language.record import LanguageRun
from assay.report.notation import count, counted, decimals, percent, significant
from assay.report.plots import Chart, Key
from assay.report.svg import COLOUR

WINDOW = 5
"""Steps whose mean the line shows."""
CLOSE = 100
"""From so many steps on, bars touch one another."""
ROLES = {"informative": "train", "all_right": "clipped", "all_wrong": "test", "all_equal": "step", "unscorable": "pass"}
"""Colour of each kind of group."""


def draw_language_charts(run: LanguageRun) -> list[Chart]:
    """Return every panel that the run has steps for, RL first."""
    panels: list[Callable[[LanguageRun], Chart]] = []
    if run.rl:
        panels += [_reward, _groups, _divergence, _entropy, _gradient, _length, _gap]
    if run.warmup:
        panels.append(_warmup)
    with draw.house_style():
        return [panel(run) for panel in panels]


def _reward(run: LanguageRun) -> Chart:
    axes = _axes(run, "reward")
    legend = _with_means(axes, run, [step.reward for step in run.rl], "mean of a step")
    tested = [(step.step, step.test) for step in run.rl if step.test is not None]
    if tested:
        draw.curve(axes, [at for at, _ in tested], [rate for _, rate in tested], "test", dashes=True)
        legend.append(Key("test", "dashes", "greedy success on the test problems"))
    each = counted(run.settings.problems_per_step * run.settings.num_generations, "response")
    caption = (
        f"A dot is the mean over the scored ones of {each} to its own step's training problems, drawn before its "
        "update: of a policy that moves, so that no interval belongs to it."
    )
    return _chart(axes, "reward", "Reward", caption, legend)


def _groups(run: LanguageRun) -> Chart:
    axes = _axes(run, "groups of a step")
    kinds = [kind for kind, total in run.groups.items() if total]
    _stack(axes, [step.step for step in run.rl], {kind: [step.groups[kind] for step in run.rl] for kind in kinds})
    draw.count_axis(axes, max(sum(step.groups.values()) for step in run.rl))
    legend = [Key(ROLES[kind], "block", KINDS[kind]) for kind in kinds]
    groups = run.groups
    caption = f"{count(groups['informative'])} of {counted(sum(groups.values()), 'group')} had two different rewards."
    return _chart(axes, "groups", "What groups taught", caption, legend)


def _divergence(run: LanguageRun) -> Chart:
    title = "KL to the reference"
    if not run.settings.has_reference:
        return Chart("kl", title, "No reference was kept, so there is no KL to it.")
    axes = _axes(run, "nats a response")
    draw.level(axes, 0.0)
    ratios = [step.log_ratio for step in run.rl]
    legend = _with_means(axes, run, ratios, "mean log-ratio of a step")
    caption = (
        f"Log-probability of a response under the policy minus under the reference; its expectation is the KL. "
        f"{_moves(ratios, 'nats')}"
    )
    if min(ratios) < 0:
        caption += " A sampled mean can be negative; the KL cannot."
    return _chart(axes, "kl", title, caption, legend)


def _entropy(run: LanguageRun) -> Chart:
    known = [(step.step, step.entropy) for step in run.rl if step.entropy is not None]
    if not known:
        return Chart("entropy", "Entropy", "No step scored a token.")
    axes = _axes(run, "nats a token")
    values = [value for _, value in known]
    draw.curve(axes, [at for at, _ in known], values, "pass")
    axes.set_ylim(bottom=min(0.0, *values))
    caption = "Of the next token's distribution, mean over the response tokens that had a gradient. "
    return _chart(axes, "entropy", "Entropy", caption + _moves(values, "nats"), [])


def _gradient(run: LanguageRun) -> Chart:
    steps = [step for step in run.rl if step.grad_norm > 0]
    if not steps:
        return Chart("gradient", "Gradient norm", "No step had a gradient: every group was without signal.")
    axes = _axes(run, "norm, log scale")
    at = [step.step for step in steps]
    raw, clipped = [step.grad_norm for step in steps], [step.clipped_grad_norm for step in steps]
    draw.log_axis(axes, raw + [value for value in clipped if value > 0])
    draw.curve(axes, at, raw, "pass")
    draw.curve(axes, at, clipped, "clipped", dashes=True)
    limit = run.settings.max_grad_norm
    legend = [Key("pass", "line", "raw"), Key("clipped", "dashes", f"after clipping at {significant(limit)}")]
    shortened = sum(value > limit for value in raw)
    caption = (
        f"Clipping acted in {count(shortened)} of {counted(len(run.rl), 'step')}. The estimate is the raw gradient."
    )
    if missing := len(run.rl) - len(steps):
        caption += f" Left out: {counted(missing, 'step')} without a gradient."
    return _chart(axes, "gradient", "Gradient norm", caption, legend)


def _length(run: LanguageRun) -> Chart:
    axes = _axes(run, "tokens a response")
    lengths = [step.length for step in run.rl]
    legend = _with_means(axes, run, lengths, "mean of a step")
    cut = [step.clipped for step in run.rl]
    caption = (
        f"The token that ended a response counts; the longest allowed is {count(run.settings.max_completion_length)}. "
        f"Cut off there: {percent(cut[0])} of the first step's responses, {percent(cut[-1])} of the last one's, "
        f"{percent(max(cut))} at most."
    )
    return _chart(axes, "length", "Length", caption, legend)


def _gap(run: LanguageRun) -> Chart:
    title = "Sampler and trainer"
    measured = [(step.step, step.gap) for step in run.rl if step.gap is not None]
    known = [(at, gap) for at, gap in measured if gap > 0]
    if not known:
        none = f"No gap in any of {counted(len(measured), 'step')}." if measured else "No step scored a token."
        return Chart("gap", title, none)
    axes = _axes(run, "nats, log scale")
    values = [gap for _, gap in known]
    draw.log_axis(axes, values)
    draw.curve(axes, [at for at, _ in known], values, "pass")
    caption = (
        "Largest difference between a token's log-probability when it was drawn and when it was scored, at most "
        f"{significant(max(values), 2)} nats."
    )
    caption += " The sampler is the policy itself: this is rounding." if run.settings.engine == "own" else ""
    return _chart(axes, "gap", title, caption, [])


def _warmup(run: LanguageRun) -> Chart:
    axes = draw.panel(unit="nats a response", over="warm-up step", last=len(run.warmup))
    values = [step.nll for step in run.warmup]
    draw.curve(axes, [step.step for step in run.warmup], values, "train")
    axes.set_ylim(min(0.0, *values), 1.08 * max(values) or 1.0)
    caption = (
        f"Of the right answer and its ending: the sum over tokens. {_moves(values, 'nats')} Each value is of its own "
        "step's problems, before its update."
    )
    return _chart(axes, "warmup", "Warm-up: negative log-likelihood", caption, [])


def _moves(values: Sequence[float], unit: str) -> str:
    """Return the first and the last of some values as a sentence."""
    first, last = (decimals(round(value, 2) + 0.0, 2) for value in (values[0], values[-1]))
    if len(values) == 1:
        return f"Its one value is {first} {unit}."
    return f"The first value is {first} and the last {last} {unit}."


def _with_means(axes: Axes, run: LanguageRun, values: Sequence[float], what: str) -> list[Key]:
    """Draw a dot a step and the running mean, and return what they stand for."""
    at = [step.step for step in run.rl]
    draw.dots(axes, at, values)
    legend = [Key("step", "dot", what)]
    if len(values) > WINDOW:
        sums = [0.0, *accumulate(values)]
        means = [(later - sooner) / WINDOW for sooner, later in zip(sums, sums[WINDOW:], strict=False)]
        draw.curve(axes, at[WINDOW - 1 :], means, "pass")
        legend.append(Key("pass", "line", f"its mean over the last {WINDOW} steps"))
    return legend


def _stack(axes: Axes, x: Sequence[int], heights: dict[str, list[int]]) -> None:
    """Draw one bar a step, in layers, the first at the bottom; each layer is one outline."""
    half = 0.5 if len(x) > CLOSE else min(0.4, 0.015 * max(x))
    edges = [edge for at in x for edge in (at - half, at + half)]
    base = [0] * len(x)
    for kind, values in heights.items():
        tops = [low + value for low, value in zip(base, values, strict=True)]
        low, high = _outline(base), _outline(tops)
        axes.stairs(high, edges, baseline=low, fill=True, color=COLOUR[ROLES[kind]], linewidth=0)
        base = tops


def _outline(values: Sequence[int]) -> list[int]:
    """Return values with nothing between any two of them."""
    return [level for value in values for level in (value, 0)][:-1]


def _axes(run: LanguageRun, unit: str) -> Axes:
    return draw.panel(unit=unit, over="RL step", last=len(run.rl))


def _chart(axes: Axes, key: str, title: str, caption: str, legend: list[Key]) -> Chart:
    svg = draw.finished(axes, key=key, title=title, description=caption)
    return Chart(key, title, caption, tuple(legend), svg)
