"""The loop of a language run: warm-up, then RL. It emits records through a callable and knows no files."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from assay.errors import Interrupted
from assay.training.language.recipe import estimator_of
from assay.training.language.state import LanguageState, begin_rl, check_reference
from assay.training.language.steps import Record, Workplace, needs_reference, rl_step, warmup_step


@dataclass(frozen=True)
class Hooks:
    """What the loop calls while it runs.

    Attributes:
        emit: receives each step's record and the seconds that it took.
        save: receives the state every ``save_steps`` steps, when RL begins, when stopping, and at the end.
        warmed_up: told once, when the warm-up is over and before RL begins, if there was one.
        monitor: measures added to every ``evaluation.every``-th record of RL.
        stopping: asked after each step; True saves and stops.
    """

    emit: Callable[[Record, float], None]
    save: Callable[[LanguageState], None]
    warmed_up: Callable[[LanguageState], None] = lambda state: None
    monitor: Callable[[LanguageState], Record] = lambda state: {}
    stopping: Callable[[], bool] = lambda: False


def run(state: LanguageState, work: Workplace, hooks: Hooks) -> None:
    """Carry a state from where it stands to the end of the plan, in place.

    Raises:
        UpdateError: a guard stopped the run; the last saved state is before the faulty step.
        Interrupted: ``hooks.stopping`` asked for it; the state was saved.
    """
    recipe = work.recipe
    length = {"warmup": recipe.warmup.steps, "rl": recipe.rl.steps}
    advance = {"warmup": warmup_step, "rl": rl_step}
    while state.phase != "done":
        if state.step == length[state.phase]:
            _next_phase(state, work, hooks)
            hooks.save(state)
            continue
        began = time.perf_counter()
        record = advance[state.phase](state, work)
        every = recipe.evaluation.every
        if every and state.phase == "rl" and state.step % every == 0:
            record |= hooks.monitor(state)
        hooks.emit(record, time.perf_counter() - began)
        if state.step % recipe.save_steps == 0 and state.step < length[state.phase]:
            check_reference(state, f"rl {state.step}")
            hooks.save(state)
        if hooks.stopping():
            check_reference(state)
            hooks.save(state)
            raise Interrupted(f"stopped after {state.phase} step {state.step} of {length[state.phase]}")


def _next_phase(state: LanguageState, work: Workplace, hooks: Hooks) -> None:
    if state.phase == "warmup":
        if work.recipe.warmup.steps:
            hooks.warmed_up(state)
        begin_rl(state, work.recipe.rl, with_reference=needs_reference(estimator_of(work.recipe)[1]))
    else:
        check_reference(state, "end")
        state.phase = "done"
