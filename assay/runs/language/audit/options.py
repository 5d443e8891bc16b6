"""I5: every setting of RL that a run has changes what its steps do, or is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.audit.check import Check, SubjectError, verdict_of
from assay.errors import AssayError
from assay.policies.engines import Drawn
from assay.runs.language.audit.bench import Bench, bench, drawn, noise, prompted
from assay.runs.language.audit.gradient import least
from assay.runs.language.audit.miniature import LENGTH, STEPS, Miniature, with_policy, with_rl
from assay.runs.language.audit.stand_ins import Script
from assay.training.language.algorithm import corrects_sampler
from assay.training.language.recipe import LanguageRecipe, estimator_of, sampler_gap
from assay.training.language.rollout import Rollout
from assay.training.language.state import adamw
from assay.training.language.steps import rl_step

FAST = 0.05
"""A learning rate at which a step or two can be seen."""
LAG = 0.2
"""How far the sampler is from the policy, in nats a token, where that is corrected for."""
MOVES = 4
"""Ways in which weights move between passes."""
Change = Callable[[Any], tuple[Any, ...]]
"""From a setting's value to others that should not do the same."""

_SCRIPTED: dict[str, Change] = {
    "algorithm": lambda was: ("mean_centred" if was != "mean_centred" else "rloo",),
    "beta": lambda was: (2 * was or 0.1,),
    "kl": lambda was: ("k2_loss" if was != "k2_loss" else "k3_loss",),
    "epsilon": lambda was: (was / 1000, 0.99),
    "epsilon_high": lambda was: (was / 1000, was + 2),
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
    "max_sampler_gap": lambda was: (was / 100,),
    "lora": lambda was: (1 if was > 1 else 2,),
    "lora_alpha": lambda was: (2 * was,),
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
}
"""The same by the weights that two steps of the optimizer leave."""


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


Watch = Callable[[Miniature, LanguageRecipe], Seen]


def liveness(miniature: Miniature) -> Check:
    """Change each setting that the run has, and see gradients, responses or weights change, or an error."""
    findings, asked, refused = [], [], []
    there = _given(miniature.original)
    for watch, table in ((_scripted, _SCRIPTED), (_responses, _DRAWN), (_optimized, _OPTIMIZED)):
        base = _watched(watch, miniature, miniature.recipe)
        if base.refused:
            raise SubjectError(f"the recipe itself is refused: {base.refused}")
        for name in (name for name in table if name in there):
            section, was = _place(miniature.recipe, name)
            seen = [_watched(watch, miniature, _changed(miniature.recipe, name, value)) for value in table[name](was)]
            asked.append(name)
            if all(one.same(base) for one in seen):
                findings.append(f"{section}{name} = {was}: changed to {table[name](was)[0]}, and nothing changes")
            elif all(one.refused for one in seen):
                refused.append(name)
    turned = f"; refused when changed here: {', '.join(refused)}" if refused else ""
    return verdict_of(
        "I5",
        f"each of {len(asked)} settings of the run, changed alone, changes gradients, responses or weights, or is "
        f"refused{turned}",
        findings,
        exactness=", ".join(asked),
        remedy="leave the setting out, for nothing reads it",
    )


def _given(recipe: LanguageRecipe) -> set[str]:
    """Return the settings that a run has, of those that act within a step."""
    adapters = {"lora": recipe.lora, "lora_alpha": recipe.policy.lora_alpha}
    return {"seed", *recipe.rl.model_dump(exclude_none=True), *(name for name, value in adapters.items() if value)}


def _place(recipe: LanguageRecipe, name: str) -> tuple[str, Any]:
    """Return the section that a setting is in, as a message begins, and its value."""
    if name in ("seed", "lora"):
        return "", getattr(recipe, name)
    return ("policy.", recipe.policy.lora_alpha) if name == "lora_alpha" else ("rl.", getattr(recipe.rl, name))


def _changed(recipe: LanguageRecipe, name: str, value: Any) -> LanguageRecipe:
    if name in ("seed", "lora"):
        return recipe.model_copy(update={name: value})
    return with_policy(recipe, lora_alpha=value) if name == "lora_alpha" else with_rl(recipe, **{name: value})


def _watched(watch: Watch, miniature: Miniature, recipe: LanguageRecipe) -> Seen:
    """Run a recipe, and say what came of it."""
    try:
        estimator_of(recipe)
        return watch(miniature, recipe)
    except AssayError as error:
        return Seen(refused=f"{type(error).__name__}: {error}")


def _scripted(miniature: Miniature, recipe: LanguageRecipe) -> Seen:
    """Return the gradients of all passes over a batch with everything in it that a setting may be about.

    One group is varied, one is a single response over and over; some are cut off, the sampler is on either side of the
    policy, and weights move between passes, one way and another.
    """
    made = bench(miniature, recipe, script=True)
    assert isinstance(made.work.engine, Script)
    seen: list[Tensor] = []
    for seed in range(MOVES if recipe.rl.num_iterations > 1 else 2):
        made.work.engine.groups = _everything(made, lag=(-1) ** seed)
        taken, _ = made.taken(moves=noise(made.state.policy, seed=2 + seed))
        seen += [value for gradient in taken for value in gradient.values()]
    return Seen(tensors=tuple(seen))


def _everything(made: Bench, *, lag: int) -> list[list[Drawn]]:
    first, second = (place.problem for place in prompted(made))
    size, there = max(4, least(made.recipe) + 1), first.drawn.tolist()
    corrected = corrects_sampler(estimator_of(made.recipe)[0])
    nats = lag * (LAG if corrected else sampler_gap(made.miniature.recipe) / 4)
    groups = [
        drawn(first, [there[member % len(there)] for member in range(size)]),
        drawn(second, [int(second.drawn[0])] * size),
    ]
    return [[_lagging(one, nats * (-1) ** sum(one.tokens)) for one in group] for group in groups]


def _lagging(one: Drawn, by: float) -> Drawn:
    """Return a response as a sampler would have drawn it that is so many nats a token away."""
    return dataclasses.replace(one, logp=tuple(value + by * (at + 1) for at, value in enumerate(one.logp)))


def _responses(miniature: Miniature, recipe: LanguageRecipe) -> Seen:
    """Return the responses of one step, with their log-probabilities."""
    made = bench(miniature, recipe)
    rollouts: list[Rollout] = []
    rl_step(made.state, dataclasses.replace(made.work, recipe=recipe, on_rollout=rollouts.append))
    return Seen(tokens=tuple((one.tokens, one.logp) for one in rollouts[0].drawn))


def _optimized(miniature: Miniature, recipe: LanguageRecipe) -> Seen:
    """Return the weights after two updates by the recipe's own optimizer, at a rate at which they show."""
    rate = recipe.rl.learning_rate / miniature.recipe.rl.learning_rate * FAST
    made = bench(miniature, with_rl(recipe, learning_rate=rate))
    made.state.optimizer = adamw(made.state.policy, made.recipe.rl)
    stepped = [rl_step(made.state, made.work)["stepped"]]
    while sum(stepped) < 2 and len(stepped) < STEPS:
        stepped.append(rl_step(made.state, made.work)["stepped"])
    return Seen(tensors=tuple(value.detach().clone() for _, value in made.state.policy.trained()))
