"""What a language run came to, in sentences that follow from its records."""

from __future__ import annotations

from assay.report.language.measured import Comparison, Rate
from assay.report.language.names import CONTROLS, KINDS, NAMES, PHASES
from assay.report.language.record import LanguageRun, Pairs
from assay.report.notation import MINUS, count, counted, listed, percent, points, significant


def headline_in_words(run: LanguageRun) -> str:
    """Return success on the test problems at every point, in one sentence."""
    rates = {point: percent(splits["test"].leading.success.rate) for point, splits in run.points.items()}
    if len(rates) == 1:
        return f"Held-out success of the base model is {rates['base']}; nothing was trained"
    later = [f"{rates[point]} {NAMES[point].replace('After', 'after')}" for point in rates if point != "base"]
    return f"Held-out success: {rates['base']} for the base model, {', '.join(later)}"


def verdict(change: Rate) -> str:
    """Return on which side of nothing the whole interval of a difference is."""
    return "higher" if change.low > 0 else "lower" if change.high < 0 else "inside noise"


def verdict_in_words(run: LanguageRun) -> str:
    """Return what each phase changed on the test problems, and whether that is more than noise."""
    measured = run.points["base"]["test"].problems
    if not run.gains["test"]:
        return (
            f"The base model was measured on {counted(measured, 'test problem')}. There was neither a warm-up nor RL, "
            "so there is no gain."
        )
    shown = {name: made for name, made in run.gains["test"].items() if name != "total" or len(run.gains["test"]) > 2}
    sentences = " ".join(f"{PHASES[name]} {_changed(made)}." for name, made in shown.items())
    basis = next(iter(shown.values())).basis
    return f"{sentences} All on the same {counted(measured, 'test problem')}, by {basis} responses."


def _changed(made: Comparison) -> str:
    """Return a change as the predicate of a sentence."""
    size, ends = points(made.change.rate), span_of_points(made.change)
    if verdict(made.change) == "inside noise":
        return f"changed success by {size} points ({ends}), which is inside noise"
    word = "raised" if made.change.low > 0 else "lowered"
    return f"{word} success by {size.lstrip('+' + MINUS)} points ({ends})"


def span_of_points(change: Rate) -> str:
    """Return the interval of a difference in percentage points."""
    return f"{points(change.low)} to {points(change.high)}"


def format_in_words(run: LanguageRun) -> str:
    """Say what part of the gain is format, and how sure that is."""
    made = run.format
    if made is None:
        return "Nothing was trained, so there is no gain to part."
    if verdict(made.gain) == "inside noise":
        return (
            f"The whole change, {points(made.gain.rate)} points, is inside noise: how it parts into format and "
            "accuracy says little."
        )
    text = (
        f"Of the whole change of {points(made.gain.rate)} points from the base model, {points(made.format.rate)} "
        f"({span_of_points(made.format)}) is {_more(made.format)} responses in format, and "
        f"{points(made.accuracy.rate)} ({span_of_points(made.accuracy)}) is {_more(made.accuracy)} right ones among "
        "those in format."
    )
    if None in made.right_in_format:
        text += " At one point nothing was in format; it is taken to have the other's accuracy."
    return text


def _more(part: Rate) -> str:
    return "more" if part.rate > 0 else "fewer" if part.rate < 0 else "neither more nor fewer"


def controls_in_words(run: LanguageRun) -> str:
    """Say what the matched controls leave of RL's gain."""
    if "rl" not in run.points:
        return "There was no RL, so there is nothing to compare with a control."
    if not run.controls:
        return (
            "No matched control was trained (evaluation.controls): whether a coin, the format alone, or imitation of "
            "the model's own right answers would have done as much is not known."
        )
    by: dict[str, list[str]] = {"higher": [], "inside noise": [], "lower": []}
    for name, (_, made) in run.controls.items():
        by[verdict(made.change)].append(CONTROLS[name][0].lower())
    parts = [f"RL ends above {listed(by['higher'])}."] * bool(by["higher"])
    parts += [f"From {listed(by['inside noise'])} RL differs by no more than noise."] * bool(by["inside noise"])
    parts += [f"RL ends below {listed(by['lower'])}."] * bool(by["lower"])
    return " ".join(["Each control began with the base model and took the same warm-up and as many steps.", *parts])


def intervals_in_words(run: LanguageRun) -> str:
    """Say what the intervals are of."""
    level = f"{100 * run.points['base']['test'].level:g}%"
    text = (
        f"{level} intervals, which take the problems as a sample of their kind. Rates of several sampled responses a "
        "problem are clustered by problem; those of one response are Wilson's."
    )
    if not run.gains["test"]:
        return text
    return (
        f"{text} Changes are paired: each problem is compared with itself. No interval shows what another training "
        "seed would have given."
    )


def policy_in_words(run: LanguageRun) -> str:
    """Say whose distribution is trained and measured."""
    made = run.settings
    cuts = [f"top-k {made.top_k}"] * bool(made.top_k) + [f"top-p {significant(made.top_p)}"] * (made.top_p < 1)
    text = f"The policy is the model at temperature {significant(made.temperature)}"
    if cuts:
        text += f", cut to {listed(cuts)}; the cut is held fixed in the gradient, so that what moves a token across it"
        text += " is not seen"
    if made.engine != "own":
        text += f". Responses were drawn by {made.engine}, whose log-probabilities are not the trainer's"
    longest = counted(made.max_completion_length, "token")
    if made.mask_truncated:
        return (
            f"{text}. A response without an end after {longest} leaves its group: nothing works against being cut off."
        )
    return f"{text}. A response without an end after {longest} is graded as it stands."


def applied_in_words(run: LanguageRun) -> str:
    """Say how the step that was applied differs from the gradient that was estimated."""
    made = run.settings
    text = (
        f"The step is not the gradient: its norm is clipped to {significant(made.max_grad_norm)}, and AdamW divides "
        "every coordinate by its own recent size"
    )
    if made.weight_decay:
        text += f" and shrinks each weight by {significant(made.weight_decay)} times the learning rate"
    if made.schedule != "constant":
        text += f"; the learning rate goes down to 0, by the {made.schedule} schedule"
    if made.num_iterations > 1:
        text += f"; updates 2 to {made.num_iterations} on a batch are off-policy"
    skipped = sum(not step.stepped for step in run.rl)
    if skipped:
        text += f". In {counted(skipped, 'step')} nothing had a gradient, and the optimizer did not step"
    return f"{text}."


def signal_in_words(run: LanguageRun) -> str:
    """Count the groups that taught something, and explain the others."""
    groups = run.groups
    total, taught = sum(groups.values()), groups["informative"]
    others = [
        f"{count(groups[kind])} {words}" for kind, words in KINDS.items() if kind != "informative" and groups[kind]
    ]
    text = (
        f"A group is the {counted(run.settings.num_generations, 'response')} to one problem. "
        f"{count(taught)} of {counted(total, 'group')} ({percent(taught / total)}) were informative, having two "
        f"different rewards: {significant(taught / len(run.rl))} of {significant(total / len(run.rl))} a step."
    )
    if others:
        text += f" The others: {listed(others)}. They cost as many responses and say nothing of the reward."
        text += " The KL to the reference can still move the policy there." if run.settings.has_reference else ""
    return text


def data_in_words(run: LanguageRun) -> str:
    """Say how many problems there are, and whether any is on both sides."""
    sizes, shared = run.data.sizes, run.data.overlap.get("prompts", 0)
    text = f"{counted(sizes['train'], 'training problem')} and {counted(sizes['test'], 'test problem')}. "
    if shared:
        return (
            f"{text}{counted(shared, 'test prompt')} of them stand in training too: test rates measure memory in part."
        )
    return f"{text}No test prompt stands in training. Whether the base model met any of them before is not known."


def grader_in_words(run: LanguageRun) -> str:
    """Say what the grader's test on known answers came to."""
    if not run.data.claims:
        return "The grader was not tried on known answers before training (grading.self_test = 0)."
    failed = [claim.name for claim in run.data.claims if claim.verdict == "disagrees"]
    tried = f"Before training the grader was tried on {counted(run.data.tried, 'problem')} whose answer is known"
    return f"{tried}. It fails on {listed(failed)} answers." if failed else f"{tried}; nothing disagreed."


def reference_in_words(run: LanguageRun) -> str:
    """Say whether the frozen reference stayed what it was, by the digests taken along the way."""
    taken, digests = run.digests.reference, run.digests
    if not run.rl:
        return "There was no RL, so nothing was measured from a reference."
    if not taken:
        return "No reference was kept: no KL is a part of what is ascended, and none was measured."
    if not {"start", "end"} <= taken.keys():
        return "The reference has no digest at the start of RL or at the end: nothing shows that it stayed the same."
    saves = len(taken) - 2
    way = f", at {counted(saves, 'save')} on the way," if saves else ""
    when = f"at the start of RL{way} and at the end"
    if len(set(taken.values())) > 1:
        return f"The reference changed: its digest is not the same {when}. KL was not measured from one policy."
    known = {digests.base: " is the base model; it", digests.warmup: " is the policy after warm-up; it"}
    return f"The frozen reference{known.get(taken['start'], '')} has one digest, the same {when}."


def reference_changed(run: LanguageRun) -> bool:
    """Return whether the digests of the reference are not all one."""
    return len(set(run.digests.reference.values())) > 1


def weight_digests(run: LanguageRun) -> Pairs:
    """Return the digests of weights by name; the reference's once, or each where they differ."""
    taken = [(f"reference, {when}", digest) for when, digest in run.digests.reference.items()]
    if taken and not reference_changed(run):
        taken = [("reference", taken[0][1])]
    warmup = [("policy after warm-up", run.digests.warmup)] if run.digests.warmup else []
    return (("base model", run.digests.base), *warmup, ("final policy", run.digests.policy), *taken)
