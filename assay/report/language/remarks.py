"""What the numbers of a language run do not show: remarks that follow from the run itself."""

from __future__ import annotations

from assay.report.language.prose import verdict
from assay.report.language.record import LanguageRun
from assay.report.notation import counted, percent, points
from assay.report.remarks import Remark


def what_it_does_not_show(run: LanguageRun) -> list[Remark]:
    """Return what the numbers must not be taken for."""
    return [
        *_trained(run),
        Remark(
            "Other problems",
            f"{counted(run.data.sizes['test'], 'test problem')} of the data's own kind were measured. What was lost or "
            "gained elsewhere does not show.",
        ),
        Remark(
            "What the base model had seen",
            "Overlap is counted between training and test problems alone. Whether the base model met either in its own "
            "training is not known.",
        ),
        *_leaks(run),
        *_unscorable(run),
        *_format(run),
    ]


def _trained(run: LanguageRun) -> list[Remark]:
    """Return what a run that trained something does not show."""
    made = []
    if run.warmup or run.rl:
        made.append(
            Remark(
                "Another seed",
                "One training run was made. Intervals are over problems and responses; how far another seed of "
                "training would end from here, none of them shows.",
            )
        )
    if run.warmup and run.rl:
        total, rl = run.gains["test"]["total"], run.gains["test"]["rl"]
        made.append(
            Remark(
                "What RL alone gave",
                f"The change from the base model, {points(total.change.rate)} points, includes the warm-up; RL's own "
                f"is {points(rl.change.rate)}, from the policy after warm-up.",
            )
        )
    if run.rl:
        made.append(
            Remark(
                "A result in the curves",
                "A step's reward is of its own training problems, under a policy that moves. Results are of frozen "
                "weights.",
            )
        )
    if run.rl and not run.controls:
        made.append(
            Remark(
                "What the reward's content gave",
                "No matched control was trained. A gain can come from as many steps on a coin or on format alone.",
            )
        )
    return made


def _leaks(run: LanguageRun) -> list[Remark]:
    near = run.data.overlap.get("near_duplicates", 0)
    if not near:
        return []
    resembles = (
        f"{counted(near, 'test problem')} nearly all of whose words stand in training problems with the same answer"
    )
    return [Remark("Near duplicates", f"There is {resembles}; kept, and counted like any other." if near == 1 else
                   f"There are {resembles}; they were kept and count like any other.")]  # fmt: skip


def _unscorable(run: LanguageRun) -> list[Remark]:
    worst = max(splits["test"].leading.unscorable for splits in run.points.values())
    if not worst:
        return []
    return [
        Remark(
            "Responses without a score",
            f"Up to {percent(worst)} of a point's test responses could not be scored. They count as not right here; "
            "what the rates would be if all of them were right stands beside them.",
        )
    ]


def _format(run: LanguageRun) -> list[Remark]:
    if run.settings.has_format or run.format is None or verdict(run.format.gain) == "inside noise":
        return []
    return [
        Remark(
            "Format, by itself",
            "What counts as in format is the grader's own word, and a grader that only says right or wrong takes every "
            "response as in format (grading.format names an expression instead).",
        )
    ]
