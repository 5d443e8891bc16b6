"""What was planned beside what was spent."""

from __future__ import annotations

from dataclasses import dataclass

from assay.report.notation import DASH, count, count_range
from assay.report.record import Run


@dataclass(frozen=True)
class Line:
    """One budget: its name, and plan and spending as text."""

    name: str
    planned: str
    spent: str

    @property
    def differs(self) -> bool:
        """Whether the run did not do what was planned."""
        return self.planned not in (self.spent, DASH)


def budget_lines(run: Run) -> list[Line]:
    """Return every budget, then what no plan can fix."""
    plan, spent = run.results.plan, run.results.spent
    groups = len(run.rl) * run.settings.problems_per_step
    return [
        Line("Warm-up steps", count(plan.warmup_steps), count(spent.warmup_steps)),
        Line("RL steps", count(plan.rl_steps), count(spent.rl_steps)),
        Line("Training trajectories", count(plan.training_trajectories), count(spent.training_trajectories)),
        Line("Visits to each training problem", count_range(plan.visits), count_range(spent.visits)),
        Line(
            "Trajectories of each training problem",
            count_range(plan.trajectories_per_problem),
            count_range(spent.trajectories_per_problem),
        ),
        Line("Evaluation samples, counted apart", count(plan.evaluation_samples), count(spent.evaluation_samples)),
        Line("Groups without signal", DASH, _of(run.results.zero_signal_groups, groups)),
        Line("RL steps without any signal", DASH, _of(run.results.zero_signal_steps, len(run.rl))),
    ]


def _of(number: int, total: int) -> str:
    return f"{count(number)} of {count(total)}" if total else count(number)
