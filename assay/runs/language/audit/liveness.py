"""I5: every setting of RL that a run has changes what its steps do, or is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.audit.check import Check, answers, verdict_of
from assay.errors import ConfigError, UpdateError
from assay.policies.engines import Drawn
from assay.runs.language.audit.bench import bench, drawn, noise, own_engine, prompted
from assay.runs.language.audit.gradient import least
from assay.runs.language.audit.miniature import LENGTH, Miniature, with_policy, with_rl
from assay.training.language.algorithm import corrects_sampler
from assay.training.language.recipe import LanguageRecipe, estimator_of
from assay.training.language.steps import rl_step

FAST = 0.05
"""A learning rate at which a step or two can be seen."""
LAG = 0.2
"""How far the sampler is from the policy, in nats a token, where that is corrected for."""
Change = Callable[[Any], tuple[Any, ...]]

_SCRIPTED: dict[str, Change] = {
    "algorithm": lambda was: ("mean_centred" if was != "mean_centred" else "rloo",),
    "beta": lambda was: (2 * was or 0.1,),
    "kl": lambda was: ("k2_loss" if was != "k2_loss" else "k3_loss",),
    "epsilon": lambda was: (was / 1000,),
    "epsilon_high": lambda was: (was / 1000,),
    "delta": lambda was: (1.0, was + 1),
    "mask_truncated_completions": lambda was: (not was,),
    "entropy": lambda was: (2 * was or 0.1,),
    "eps": lambda was: (was + 0.5,),
    "k": lambda was: (was + 1, was - 1),
    "length": lambda was: (2 * was,),
    "level": lambda was: ("token" if was == "sequence" else "sequence",),
    "weight_low": lambda was: (1.0, 0.0),
    "weight_high": lambda was: (1.0, was + 1),
    "dynamic_sampling": lambda was: (not was,),
    "overlong_length": lambda was: (was + 1,),
    "overlong_cache": lambda was: (was + 1,),
}
"""Settings that are asked on prescribed responses, each with the values that it is changed to."""
_DRAWN: dict[str, Change] = {
    "seed": lambda was: ((was + 1) % 2**32,),
    "problems_per_step": lambda was: (1,),
    "num_generations": lambda was: (was + 1,),
    "max_completion_length": lambda was: (1, LENGTH + 1),
    "temperature": lambda was: (1.7 * was,),
    "top_k": lambda was: (0 if was else 2, 1),
    "top_p": lambda was: (0.5 if was == 1 else 1.0,),
}
"""The same on responses that are drawn."""
_OPTIMIZED: dict[str, Change] = {
    "learning_rate": lambda was: (2 * was,),
    "weight_decay": lambda was: (was + 0.1,),
    "max_grad_norm": lambda was: (was / 1000,),
    "lr_scheduler_type": lambda was: ("linear" if was != "linear" else "constant",),
    "num_iterations": lambda was: (was + 1,),
    "max_sampler_gap": lambda was: (1e-12,),
}
"""The same by the weights that two steps of the optimizer leave."""
_NOT_ASKED = ("steps",)
"""How many there are is not a matter of one."""


@dataclass(frozen=True)
class Seen:
    """What a recipe did.

    Attributes:
        refused: the error it was refused with, if it was.
        tensors: gradients and weights.
        tokens: of the responses.
    """

    refused: str = ""
    tensors: tuple[Tensor, ...] = ()
    tokens: tuple[Any, ...] = ()

    def same(self, other: Seen) -> bool:
        """Return whether nothing at all is different."""
        if (self.refused, self.tokens, len(self.tensors)) != (other.refused, other.tokens, len(other.tensors)):
            return False
        return all(torch.equal(a, b) for a, b in zip(self.tensors, other.tensors, strict=True))


@answers("I5")
def liveness(miniature: Miniature) -> Check:
    """Change each setting that the run has, and see gradients, responses or weights change, or an error."""
    findings, asked, refused = [], [], []
    given = {**miniature.original.rl.model_dump(exclude_none=True), "seed": miniature.original.seed}
    for kind, table in (("script", _SCRIPTED), ("draw", _DRAWN), ("optimize", _OPTIMIZED)):
        base = _watched(kind, miniature, miniature.recipe)
        for name in (name for name in table if name in given):
            was = _value(miniature.recipe, name)
            seen = [_watched(kind, miniature, _changed(miniature.recipe, name, value)) for value in table[name](was)]
            asked.append(name)
            if all(one.same(base) for one in seen):
                findings.append(f"rl.{name} = {was}: changed to {table[name](was)[0]}, and nothing changes")
            elif all(one.refused for one in seen):
                refused.append(name)
    adapters = _adapters(miniature)
    findings += adapters
    turned = f"; refused when changed: {', '.join(refused)}" if refused else ""
    return verdict_of(
        "I5",
        f"each of {len(asked)} settings of rl that the run has, changed alone, changes gradients, responses or weights, "
        f"or is refused{turned}",
        findings,
        exactness=", ".join(asked),
        remedy="leave the setting out, for nothing reads it",
    )


def _value(recipe: LanguageRecipe, name: str) -> Any:
    return recipe.seed if name == "seed" else getattr(recipe.rl, name)


def _changed(recipe: LanguageRecipe, name: str, value: Any) -> LanguageRecipe:
    if name == "seed":
        return recipe.model_copy(update={"seed": value})
    return with_rl(recipe, **{name: value})


def _watched(kind: str, miniature: Miniature, recipe: LanguageRecipe) -> Seen:
    """Run a recipe, and say what came of it."""
    watch = {"script": _scripted, "draw": _responses, "optimize": _optimized}[kind]
    try:
        estimator_of(recipe)
        return watch(miniature, recipe)
    except (ConfigError, UpdateError) as error:
        return Seen(refused=f"{type(error).__name__}: {error}")


def _scripted(miniature: Miniature, recipe: LanguageRecipe) -> Seen:
    """Return the gradients of all passes over a batch with everything in it that a setting may be about.

    One group is varied, one is a single response over and over; some are cut off, and weights move between passes.
    """
    made = bench(miniature, recipe, script=True)
    made.work.engine.groups = _everything(made, recipe)  # type: ignore[attr-defined]
    taken, _ = made.taken(moves=noise(made.state.policy, seed=2))
    return Seen(tensors=tuple(value for gradient in taken for value in gradient.values()))


def _everything(made: Any, recipe: LanguageRecipe) -> list[list[Drawn]]:
    size = max(4, least(recipe) + 1)
    lag = LAG if corrects_sampler(estimator_of(recipe)[0]) else 0.0
    first, second = (place.problem for place in prompted(made))
    there = first.drawn.tolist()
    groups = [
        drawn(first, [there[2 * member % len(there)] for member in range(size)]),
        drawn(second, [second.drawn.tolist()[0]] * size),
    ]
    return [[_lagging(one, lag * (-1) ** at) for at, one in enumerate(group)] for group in groups]


def _lagging(one: Drawn, by: float) -> Drawn:
    return dataclasses.replace(one, logp=tuple(value + by * (at + 1) for at, value in enumerate(one.logp)))


def _responses(miniature: Miniature, recipe: LanguageRecipe) -> Seen:
    """Return the responses of one step, with their log-probabilities."""
    made = bench(miniature, recipe)
    count = recipe.rl.problems_per_step
    made.recipe = with_rl(recipe, problems_per_step=count)
    rollouts: list[Any] = []
    work = dataclasses.replace(made.work, recipe=made.recipe, on_rollout=rollouts.append)
    rl_step(made.state, work)
    return Seen(tokens=tuple((one.tokens, one.logp) for one in rollouts[0].drawn))


def _optimized(miniature: Miniature, recipe: LanguageRecipe) -> Seen:
    """Return the weights after two steps of the recipe's own optimizer on prescribed responses."""
    from assay.training.language.state import adamw

    rate = recipe.rl.learning_rate / miniature.recipe.rl.learning_rate * FAST
    made = bench(miniature, with_rl(recipe, learning_rate=rate), script=True)
    lag = 0.0 if recipe.rl.max_sampler_gap == miniature.recipe.rl.max_sampler_gap else 1e-6
    groups = _everything(made, recipe)
    made.work.engine.groups = [[_lagging(one, lag) for one in group] for group in groups]  # type: ignore[attr-defined]
    made.state.optimizer = adamw(made.state.policy, made.recipe.rl)
    for _ in range(2):
        made.work.engine.groups = [  # type: ignore[attr-defined]
            [_rescored(made, one, number, lag) for one in group] for number, group in enumerate(groups)
        ]
        rl_step(made.state, made.work)
    return Seen(tensors=tuple(value.detach().clone() for _, value in made.state.policy.trained()))
