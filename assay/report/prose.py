"""A run in sentences that follow from its numbers."""

from __future__ import annotations

from assay.report.budget import Line
from assay.report.notation import count, counted, listed, percent, points, seconds
from assay.report.record import RESPONSES, Run


def estimator_in_words(run: Run) -> str:
    """Say what turned a batch into a gradient."""
    settings = run.settings
    if settings.estimator == "rloo":
        return f"sampled REINFORCE, leave-one-out baseline, {counted(settings.generations, 'response')} a problem"
    if settings.estimator == "exact":
        return f"exact gradient over all {RESPONSES} trajectories"
    return f"estimator {settings.estimator}, {counted(settings.generations, 'response')} a problem"


def headline_in_words(run: Run) -> str:
    """Say what the run came to, in one line."""
    when = "after RL" if run.rl else "without RL"
    train, test = percent(run.success("rl", "train")), percent(run.success("rl", "test"))
    return f"Success {when}: {train} on training problems, {test} on test problems"


def result_in_words(run: Run) -> str:
    """Tell the run in one paragraph: three points, two splits, and the two gains apart."""
    train, test = (len(run.problems[split]) for split in ("train", "test"))
    at_first, warm, at_last = (percent(run.success(point, "train")) for point in ("init", "warmup", "rl"))
    on_test = listed([percent(run.success(point, "test")) for point in ("init", "warmup", "rl")])
    return (
        f"On the {counted(train, 'training problem')} the policy answers right with probability {at_first} at random "
        f"initialisation, {warm} after {counted(len(run.warmup), 'supervised warm-up step')}, and {at_last} after "
        f"{counted(len(run.rl), 'RL step')}. On the {counted(test, 'test problem')}, which it never trains on, the "
        f"same three are {on_test}; a uniform guess is right {percent(1 / RESPONSES)} of the time. So warm-up changed "
        f"success by {points(run.gain('warmup', 'train'))} percentage points on training problems and "
        f"{points(run.gain('warmup', 'test'))} on test problems; RL by {points(run.gain('rl', 'train'))} and "
        f"{points(run.gain('rl', 'test'))}."
    )


def intervals_in_words(run: Run) -> str:
    """Say how the sampled intervals did against the exact values, and how often such intervals miss."""
    made = [point for splits in run.results.points.values() for point in splits.values()]
    missed, level = sum(point.missed for point in made), made[0].level
    outcome = f"{len(made) - missed} of {len(made)} contain" if missed else f"all {len(made)} contain"
    return (
        f"Of the probabilities, the large one is the exact mean over the problems, from all {RESPONSES} responses to "
        "each. Below it: right answers among independent samples under the same frozen weights, with the exact "
        f"(Clopper–Pearson) {100 * level:g}% binomial interval. About 1 in {round(1 / (1 - level))} such intervals "
        f"misses the true value; here {outcome} the exact value."
    )


def budget_in_words(run: Run, lines: list[Line]) -> str:
    """Say what one step takes, and whether the plan was kept."""
    settings = run.settings
    drawn = f"{counted(settings.problems_per_step, 'problem')} of a fixed cycle"
    if settings.generations:
        each = counted(settings.problems_per_step * settings.generations, "trajectory", "trajectories")
        step = f"An RL step takes {drawn} and {counted(settings.generations, 'response')} to each: {each}."
    else:
        step = f"An RL step takes {drawn} and draws no responses: it sums over all trajectories of each."
    off = [line.name for line in lines if line.differs]
    kept = f"The plan was not kept in: {', '.join(off)}." if off else "Every budget was spent exactly as planned."
    return f"{step} {kept}"


def time_in_words(run: Run) -> str:
    """Say what the steps took on the clock of the machine that ran them."""
    timing = run.timing
    text = (
        f"The steps took {seconds(timing.warmup + timing.rl)} of wall time on that machine: {seconds(timing.warmup)} "
        f"of warm-up and {seconds(timing.rl)} of RL, its exact evaluations included."
    )
    if timing.resumed:
        often = {1: "once", 2: "twice"}.get(timing.resumed, f"{count(timing.resumed)} times")
        again = max(0, timing.steps - len(run.warmup) - len(run.rl))
        repeated = f", {counted(again, 'step')} had to be taken again, and that time is counted" if again else ""
        text += f" The run was interrupted and resumed {often}{repeated}."
    return text


def participation_in_words(run: Run) -> str:
    """Say which tensors took part in RL, and no more than that."""
    tensors = run.results.tensors
    if not run.rl:
        return "No RL step was taken, so no tensor moved and none has a gradient."
    still = [one.name for one in tensors if not one.max_abs_change > 0]
    silent = [one.name for one in tensors if not one.last_gradient_norm > 0]
    if not still and not silent:
        return (
            f"All {len(tensors)} tensors moved, and each had a gradient at the last update: the whole network took "
            "part, and nothing more. It does not say that any tensor moved the right way."
        )
    parts = [f"{listed(still)} did not move"] if still else []
    parts += [f"{listed(silent)} had no gradient at the last update"] if silent else []
    return f"Of {len(tensors)} tensors, {'; '.join(parts)}: that part of the network took no part in RL."


def zero_signal_in_words(run: Run) -> str:
    """Explain silent groups, and count them."""
    what = "the responses to one problem" if run.settings.generations else "all trajectories of one problem"
    text = (
        f"A group ({what}) all of whose advantages are exactly zero teaches nothing. A batch of only such groups does "
        "not step the optimizer: its gradient is zero, yet Adam's momentum from earlier steps would still move the "
        f"weights. {_EQUAL_REWARDS if run.settings.beta > 0 else 'With β = 0 every group of equal rewards is silent.'} "
    )
    groups = len(run.rl) * run.settings.problems_per_step
    if not groups:
        return f"{text}No RL step was taken, so there was no group."
    silent, skipped = run.results.zero_signal_groups, run.results.zero_signal_steps
    return text + (
        f"Here {count(silent)} of {counted(groups, 'group')} ({percent(silent / groups)}) had no signal, and "
        f"{count(skipped)} of {counted(len(run.rl), 'step')} did not step."
    )


_EQUAL_REWARDS = (
    "A group of equal rewards is not silent by itself: once policy and reference differ, the KL in the return can tell "
    "its responses apart."
)


def reference_in_words(run: Run) -> str:
    """Say whether the frozen reference stayed what it was, by the digests taken along the way."""
    taken = dict(run.results.reference_digests)
    if not {"rl 0", "end"} <= taken.keys():
        return "The reference has no digest at the start of RL or at the end: nothing shows that it stayed the same."
    checkpoints = len(taken) - 2
    way = f", at {counted(checkpoints, 'checkpoint')} on the way," if checkpoints else ""
    when = f"at the start of RL{way} and at the end"
    if len(set(taken.values())) > 1:
        return f"The reference changed: its digest is not the same {when}. KL was not measured from where RL began."
    return f"The frozen reference has one digest, the same {when}."
