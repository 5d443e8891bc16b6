"""The curves of a run, one quantity a panel.

Strict reward, log-ratio and return are kept apart: a positive return does not mean that the verifier accepted anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from matplotlib.axes import Axes

from assay.report import axes as draw
from assay.report.notation import count, counted, decimals, percent, significant
from assay.report.record import RESPONSES, Exact, Run


@dataclass(frozen=True)
class Key:
    """One entry of a legend: a CSS variable, the kind of mark, and what it stands for."""

    role: str
    mark: str
    text: str


@dataclass(frozen=True)
class Chart:
    """One panel: ``svg`` is absent where there is nothing to draw, and ``caption`` then says why."""

    key: str
    title: str
    caption: str
    legend: tuple[Key, ...] = ()
    svg: str | None = None


def draw_charts(run: Run) -> list[Chart]:
    """Return every panel that the run has steps for, RL first."""
    panels: list[Callable[[Run], Chart]] = []
    if run.rl:
        panels += [_success, _divergence, _return, _gradient, _zero_signal]
    if run.warmup:
        panels.append(_warmup)
    with draw.house_style():
        return [panel(run) for panel in panels]


def pass_means(values: Sequence[float], cycle: int) -> list[float]:
    """Return the mean over each ``cycle`` consecutive steps, in which every training problem has its turn once."""
    sums = [0.0, *accumulate(values)]
    return [(later - sooner) / cycle for sooner, later in zip(sums, sums[cycle:], strict=False)]


def _exact_steps(run: Run) -> list[tuple[int, Exact]]:
    """Return the exact means along RL, beginning with the weights that it began from."""
    before = run.results.points["warmup"]
    start = Exact({s: p.success for s, p in before.items()}, {s: p.kl for s, p in before.items()})
    return [(0, start), *((step.step, step.exact) for step in run.rl if step.exact is not None)]


def _batch(run: Run) -> str:
    """Say what one step's mean is taken over."""
    settings = run.settings
    if settings.generations:
        return f"{counted(settings.problems_per_step * settings.generations, 'response')} of one step"
    return f"the {counted(settings.problems_per_step, 'problem')} of one step, exact"


def _per_step(run: Run, axes: Axes, values: Sequence[float], what: str) -> list[Key]:
    """Draw one dot a step, and the mean over whole passes of the cycle; return their legend."""
    steps = [step.step for step in run.rl]
    draw.dots(axes, steps, values)
    legend = [Key("step", "dot", f"{what}, {_batch(run)}")]
    if 1 < run.cycle < len(values):
        draw.curve(axes, steps[run.cycle - 1 :], pass_means(values, run.cycle), "pass")
        legend.append(Key("pass", "line", f"its mean over the last {run.cycle} steps, each problem once"))
    return legend


def _success(run: Run) -> Chart:
    axes = draw.panel(unit="success", over="RL step", last=len(run.rl))
    draw.share_axis(axes)
    legend = _per_step(run, axes, [step.strict_reward for step in run.rl], "strict reward")
    exact = _exact_steps(run)
    for split, dashes, name in (("train", False, "training"), ("test", True, "test")):
        draw.curve(axes, [at for at, _ in exact], [e.success[split] for _, e in exact], split, dashes=dashes)
        legend.append(Key(split, "dashes" if dashes else "line", f"exact success, {name} problems"))
    first, last = exact[0][1].success, exact[-1][1].success
    moves = (
        f"Exact success goes from {percent(first['train'])} to {percent(last['train'])} on training problems and from "
        f"{percent(first['test'])} to {percent(last['test'])} on test problems."
    )
    moving = (
        "Dots are sampled before the update of their step, from a policy that moves: no interval belongs to them."
        if run.settings.generations
        else "Dots are exact too, for the problems of their step and before its update; nothing is sampled."
    )
    return _chart(axes, "success", "Strict reward, and exact success", f"{moves} {moving}", legend)


def _divergence(run: Run) -> Chart:
    axes = draw.panel(unit="nats a response", over="RL step", last=len(run.rl))
    draw.level(axes, 0.0)
    ratios = [step.log_ratio for step in run.rl]
    legend = _per_step(run, axes, ratios, "log-ratio")
    exact = _exact_steps(run)
    draw.curve(axes, [at for at, _ in exact], [e.kl["train"] for _, e in exact], "train")
    legend.append(Key("train", "line", "exact KL(policy to reference), training problems"))
    caption = (
        f"The policy ends {decimals(exact[-1][1].kl['train'])} nats from the reference on training problems. "
        "The log-ratio is log-probability under the policy minus under the reference; its expectation is the KL of the "
        "step's problems."
    )
    if min(ratios) < 0:
        caption += " A sampled mean can be negative; the KL cannot."
    return _chart(axes, "divergence", "Log-ratio, and exact KL", caption, legend)


def _return(run: Run) -> Chart:
    axes = draw.panel(unit="return", over="RL step", last=len(run.rl))
    draw.level(axes, 0.0)
    returns = [step.shaped_return for step in run.rl]
    legend = _per_step(run, axes, returns, "return")
    beta = run.settings.beta
    shift = max(abs(step.shaped_return - step.strict_reward) for step in run.rl)
    caption = "β = 0, so the return is the strict reward; RL ascends its mean."
    if beta > 0:
        caption = (
            f"Return is strict reward minus β × log-ratio, β = {significant(beta)}; RL ascends its mean. "
            f"The KL term moves a step's mean by at most {significant(shift, 2)} here. A response less likely than "
            "under the reference has a positive return even when the verifier rejected it."
        )
    return _chart(axes, "return", "Return", caption, legend)


def _gradient(run: Run) -> Chart:
    title, limit = "Gradient norm", run.settings.max_grad_norm
    steps = [step for step in run.rl if step.grad_norm > 0]
    if not steps:
        return Chart("gradient", title, "No step had a gradient: every group was without signal.")
    axes = draw.panel(unit="norm, log scale", over="RL step", last=len(run.rl))
    at = [step.step for step in steps]
    raw, clipped = [step.grad_norm for step in steps], [step.clipped_grad_norm for step in steps]
    draw.log_axis(axes, raw + [value for value in clipped if value > 0])
    draw.curve(axes, at, raw, "pass")
    draw.curve(axes, at, clipped, "clipped", dashes=True)
    legend = [Key("pass", "line", "raw"), Key("clipped", "dashes", f"after clipping at {significant(limit)}")]
    shortened = sum(value > limit for value in raw)
    acted = f"in {count(shortened)} of {counted(len(run.rl), 'step')}" if shortened else "in no step"
    caption = f"The two lines part where clipping acted: {acted}. "
    caption += f"The {'unbiased' if run.settings.generations else 'exact'} gradient is the raw one."
    if missing := len(run.rl) - len(steps):
        caption += f" Left out: {counted(missing, 'step')} that had no signal and so no gradient."
    return _chart(axes, "gradient", title, caption, legend)


def _zero_signal(run: Run) -> Chart:
    title, total = "Groups without signal", run.results.zero_signal_groups
    groups = len(run.rl) * run.settings.problems_per_step
    if not total:
        return Chart(
            "zero-signal", title, f"None: each of {counted(groups, 'group')} had an advantage that is not zero."
        )
    axes = draw.panel(unit="groups of a step", over="RL step", last=len(run.rl))
    draw.bars(axes, [step.step for step in run.rl], [step.zero_signal_groups for step in run.rl])
    draw.count_axis(axes, run.settings.problems_per_step)
    caption = (
        f"{count(total)} of {count(groups)} groups, out of {counted(run.settings.problems_per_step, 'group')} a step, "
        "had every advantage exactly zero and taught nothing."
    )
    return _chart(axes, "zero-signal", title, caption, [])


def _warmup(run: Run) -> Chart:
    axes = draw.panel(unit="nats a response", over="warm-up step", last=len(run.warmup))
    values, chance = [step.nll for step in run.warmup], math.log(RESPONSES)
    draw.level(axes, chance)
    draw.curve(axes, [step.step for step in run.warmup], values, "train")
    axes.set_ylim(0, 1.08 * max(chance, *values))
    legend = [
        Key("train", "line", "negative log-likelihood, training problems"),
        Key("muted", "dotted", f"a uniform guess, ln {RESPONSES} = {decimals(chance, 2)}"),
    ]
    first, last = decimals(values[0], 2), decimals(values[-1], 2)
    moves = f"goes from {first} to {last} nats, each value" if len(values) > 1 else f"is {first} nats,"
    caption = (
        f"Of the full two-token response: the sum over its tokens, not their mean. It {moves} before its step's update."
    )
    return _chart(axes, "warmup", "Warm-up: negative log-likelihood", caption, legend)


def _chart(axes: Axes, key: str, title: str, caption: str, legend: list[Key]) -> Chart:
    return Chart(key, title, caption, tuple(legend), draw.finished(axes, key=key, title=title, description=caption))
