"""The curves of a language run, one quantity a panel."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.axes import Axes

from assay.report import axes as draw
from assay.report.language.record import KINDS, LanguageRun
from assay.report.notation import counted, decimals, significant
from assay.report.plots import Chart, Key

WINDOW = 5
"""Steps whose mean the thick line shows."""


def draw_language_charts(run: LanguageRun) -> list[Chart]:
    """Return every panel that the run has steps for, RL first."""
    panels: list[Callable[[LanguageRun], Chart]] = []
    if run.steps:
        panels += [_reward, _groups, _divergence, _entropy, _gradient, _length, _gap]
    if run.warmup:
        panels.append(_warmup)
    with draw.house_style():
        return [panel(run) for panel in panels]


def _reward(run: LanguageRun) -> Chart:
    axes = _axes(run, "mean reward of a step")
    legend = _with_means(axes, run, "reward")
    tested = [(step["step"], step["test"]) for step in run.steps if step["test"] is not None]
    if tested:
        draw.curve(axes, [step for step, _ in tested], [rate for _, rate in tested], "test", dashes=True)
        legend.append(Key("test", "dashes", "greedy success on the test problems"))
    caption = (
        "Each dot is about the problems of its own step, drawn from the policy before its update: a rate of a moving "
        "policy on training problems, not a result."
    )
    return _chart(axes, "reward", "Reward", caption, legend)


def _groups(run: LanguageRun) -> Chart:
    size = max(sum(step["groups"].values()) for step in run.steps)
    axes = _axes(run, "informative groups of a step")
    draw.bars(axes, [step["step"] for step in run.steps], [step["groups"]["informative"] for step in run.steps])
    draw.count_axis(axes, size)
    totals = {kind: sum(step["groups"][kind] for step in run.steps) for kind in KINDS}
    others = ", ".join(f"{totals[kind]:,} {kind.replace('_', ' ')}" for kind in KINDS[1:])
    caption = (
        f"Groups with two different rewards: {totals['informative']:,} of {sum(totals.values()):,}, the rest being "
        f"{others}. Only the KL moves the policy in a group without them."
    )
    return _chart(axes, "groups", "Groups that teach", caption, [])


def _divergence(run: LanguageRun) -> Chart:
    axes = _axes(run, "nats a response")
    draw.level(axes, 0.0)
    legend = _with_means(axes, run, "kl")
    caption = "Mean log-ratio of the sampled responses to the reference, an estimate of KL(policy ‖ reference)."
    return _chart(axes, "kl", "KL to the reference", caption, legend)


def _entropy(run: LanguageRun) -> Chart:
    known = [step for step in run.steps if step["entropy"] is not None]
    if not known:
        return Chart("entropy", "Entropy", "No step scored a token.")
    axes = _axes(run, "nats a token")
    draw.curve(axes, [step["step"] for step in known], [step["entropy"] for step in known], "pass")
    caption = "Of the next-token distribution, mean over the response tokens that the update read."
    return _chart(axes, "entropy", "Entropy", caption, [])


def _gradient(run: LanguageRun) -> Chart:
    steps = [step for step in run.steps if step["grad_norm"] > 0]
    if not steps:
        return Chart("gradient", "Gradient norm", "No step had a gradient: every group was without signal.")
    axes = _axes(run, "norm, log scale")
    at = [step["step"] for step in steps]
    raw, clipped = [step["grad_norm"] for step in steps], [step["clipped_grad_norm"] for step in steps]
    draw.log_axis(axes, raw + [value for value in clipped if value > 0])
    draw.curve(axes, at, raw, "pass")
    draw.curve(axes, at, clipped, "clipped", dashes=True)
    limit = run.config["rl.max_grad_norm"]
    legend = [Key("pass", "line", "raw"), Key("clipped", "dashes", f"after clipping at {limit}")]
    acted = sum(a > b * (1 + 1e-5) for a, b in zip(raw, clipped, strict=True))
    caption = f"Clipping acted in {acted:,} of {counted(len(run.steps), 'step')}. The estimate is the raw gradient."
    return _chart(axes, "gradient", "Gradient norm", caption, legend)


def _length(run: LanguageRun) -> Chart:
    axes = _axes(run, "tokens a response")
    legend = _with_means(axes, run, "length")
    caption = (
        f"The token that ended a response counts. The longest allowed is {run.config['rl.max_completion_length']}."
    )
    return _chart(axes, "length", "Length", caption, legend)


def _gap(run: LanguageRun) -> Chart:
    known = [step for step in run.steps if step["gap"]]
    if not known:
        return Chart("gap", "Sampler and trainer", "No step had a gap between them.")
    axes = _axes(run, "nats, log scale")
    values = [step["gap"] for step in known]
    draw.log_axis(axes, values)
    draw.curve(axes, [step["step"] for step in known], values, "pass")
    caption = (
        f"Largest difference in a token's log-probability when it was drawn and when it was scored: at most "
        f"{significant(max(values), 2)} nats. Rounding alone, where the engine draws from the policy itself."
    )
    return _chart(axes, "gap", "Sampler and trainer", caption, [])


def _warmup(run: LanguageRun) -> Chart:
    axes = draw.panel(unit="nats a response", over="warm-up step", last=len(run.warmup))
    values = [step["nll"] for step in run.warmup]
    draw.curve(axes, [step["step"] for step in run.warmup], values, "train")
    axes.set_ylim(0, 1.08 * max(values))
    caption = (
        f"Of the right answer, ending included: the sum over its tokens. From {decimals(values[0], 2)} to "
        f"{decimals(values[-1], 2)} nats, each before its step's update and about its own problems."
    )
    return _chart(axes, "warmup", "Warm-up: negative log-likelihood", caption, [])


def _with_means(axes: Axes, run: LanguageRun, name: str) -> list[Key]:
    """Draw a dot a step and the running mean, and return what they stand for."""
    at, values = [step["step"] for step in run.steps], [step[name] for step in run.steps]
    draw.dots(axes, at, values)
    legend = [Key("step", "dot", "a step")]
    if len(values) >= WINDOW:
        means = [sum(values[i : i + WINDOW]) / WINDOW for i in range(len(values) - WINDOW + 1)]
        draw.curve(axes, at[WINDOW - 1 :], means, "pass")
        legend.append(Key("pass", "line", f"mean of {WINDOW} steps"))
    return legend


def _axes(run: LanguageRun, unit: str) -> Axes:
    return draw.panel(unit=unit, over="RL step", last=len(run.steps))


def _chart(axes: Axes, key: str, title: str, caption: str, legend: list[Key]) -> Chart:
    svg = draw.finished(axes, key=key, title=title, description=caption)
    return Chart(key, title, caption, tuple(legend), svg)
