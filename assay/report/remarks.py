"""What a run shows and what it does not: remarks that follow from its numbers, none of them fixed beforehand."""

from __future__ import annotations

from dataclasses import dataclass

from assay.report.notation import count, counted, decimals, percent, points, significant
from assay.report.record import RESPONSES, Run


@dataclass(frozen=True)
class Remark:
    """A point to keep in mind, and the sentences that make it."""

    head: str
    text: str


def what_it_shows(run: Run) -> list[Remark]:
    """Return what the numbers support."""
    return [_generalisation(run), _two_gains(run), *([_distance(run)] if run.rl else [])]


def what_it_does_not_show(run: Run) -> list[Remark]:
    """Return what the numbers must not be taken for."""
    remarks = [_moving_policy(run), _objective(run), _applied_step(run)] if run.rl else []
    if run.rl and not run.settings.generations:
        remarks.append(Remark("A method that scales", _ENUMERATION))
    return [*remarks, Remark("A loss", _LOSS), _one_seed(run)]


def _generalisation(run: Run) -> Remark:
    """Compare success on problems trained on, on others, and by chance."""
    train, test, chance = run.success("rl", "train"), run.success("rl", "test"), 1 / RESPONSES
    compared = (
        f"Success is {percent(train)} on the {counted(len(run.problems['train']), 'training problem')} and "
        f"{percent(test)} on the {counted(len(run.problems['test']), 'test problem')}; chance is {percent(chance)}."
    )
    if train < 2 * chance:
        return Remark("Little was learnt", f"{compared} That is near chance: there is hardly anything to carry over.")
    carried = max(0.0, test - chance) / (train - chance)
    compared += f" Of what was gained over chance on training problems, {percent(carried)} carries over to the others."
    if carried >= 0.5:
        return Remark("Much of it carries over", compared)
    answers = counted(len(run.problems["train"]), "answer")
    return Remark(
        "Memorising is not arithmetic", f"{compared} Most of it is memory of {answers}, not a way to calculate."
    )


def _two_gains(run: Run) -> Remark:
    def both(split: str) -> str:
        return f"{points(run.gain('warmup', split))} points from warm-up and {points(run.gain('rl', split))} from RL"

    return Remark(
        "What supervision gave, and what reinforcement gave",
        f"On training problems: {both('train')}. On test problems: {both('test')}. Warm-up is shown the right "
        "responses; RL sees only whether its own were right. One before-and-after number would mix the two.",
    )


def _distance(run: Run) -> Remark:
    kl = {split: decimals(point.kl) for split, point in run.results.points["rl"].items()}
    beta = run.settings.beta
    price = f"A nat costs β = {significant(beta)} of reward." if beta else "β is 0: the distance costs nothing."
    return Remark(
        "How far RL moved the policy",
        f"KL(policy to reference) is {kl['train']} nats a response on training problems and {kl['test']} on test "
        f"problems. {price}",
    )


def _moving_policy(run: Run) -> Remark:
    last = [step.strict_reward for step in run.rl][-run.cycle :]
    window = f"over the last {len(last)} steps" if len(last) > 1 else "in the last step"
    seen = f"The strict reward seen in training, {percent(sum(last) / len(last))} {window},"
    rate = (
        "comes from a policy that moves with every step. It is the rate of no single policy and gets no interval."
        if run.settings.generations
        else "is exact, but every step has problems and weights of its own. It is the rate of no single policy."
    )
    final = percent(run.success("rl", "train"))
    return Remark(
        "A success rate in training",
        f"{seen} {rate} The exact success of the final weights on all training problems is {final}.",
    )


def _objective(run: Run) -> Remark:
    """Say which objective's gradient a step follows."""
    batch, train = run.settings.problems_per_step, len(run.problems["train"])
    makes = {"rloo": "estimates without bias", "exact": "computes exactly"}.get(run.settings.estimator, "follows")
    if batch >= train:
        return Remark(
            "An objective beyond these problems",
            f"Each step {makes} the gradient of the mean objective over all {counted(train, 'training problem')} at "
            "its own weights. No other problem is part of that objective.",
        )
    return Remark(
        f"The gradient over all {count(train)} problems",
        f"Step k {makes} the gradient of the mean objective over its own {counted(batch, 'problem')} at its own "
        f"weights, not over all {count(train)}. The fixed cycle reaches all of them every {run.cycle} steps, but the "
        "weights move in between.",
    )


def _applied_step(run: Run) -> Remark:
    limit = run.settings.max_grad_norm
    kind = {"rloo": "unbiased ", "exact": "exact "}.get(run.settings.estimator, "")
    clipped = sum(step.grad_norm > limit for step in run.rl)
    return Remark(
        "A step along the gradient",
        f"Clipping and AdamW come after the {kind}gradient. Clipping to norm {significant(limit)} shortened it in "
        f"{count(clipped)} of {counted(len(run.rl), 'step')}, and AdamW rescales every coordinate by what earlier "
        "steps saw.",
    )


def _one_seed(run: Run) -> Remark:
    return Remark(
        "Other seeds",
        f"One seed is one seed. Seed {run.settings.seed} fixes the problems, the initial weights and every draw; the "
        "values here are exact for these weights and these problems, and do not say how far other seeds would spread.",
    )


_LOSS = (
    "Its value is not reported. It is built so that its gradient is the right one; the value itself is no success rate "
    "and means nothing."
)
_ENUMERATION = (
    f"This run enumerates all {RESPONSES} trajectories of a problem. That removes sampling noise from the gradient, is "
    "possible only where trajectories can be enumerated, and does not say how noisy sampled steps would be."
)
