"""Which objective does a cyclic batch estimate without bias? Three exact cases.

    python recipes/cyclic_sampling.py

Step k of the seed experiment estimates the gradient of the mean objective over *its own* problems at *its own*
weights. That is on-policy, and it is not the gradient over all problems. Only accumulating all batches at one
frozen weight vector, or drawing each step's problems uniformly, gives the full gradient. First with two
problems and one weight, in fractions; then with the seed experiment's 20 problems and its 17 tensors.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import nn

from assay.evaluation.gradient import exact_gradient
from assay.tasks.chain import draw_splits
from assay.training import loop
from assay.training.config import Recipe, RLConfig
from assay.training.state import start


@dataclass(frozen=True)
class TwoProblems:
    """Two problems whose gradients are opposite: J1 = p and J2 = 1 - p with p = sigmoid(w), at w = 0.

    Attributes:
        full: gradient of (J1 + J2) / 2.
        first_step: what the first cyclic step, on problem 1 alone, estimates without bias.
        accumulated: both batches at the same weight, averaged.
        uniform: expectation over a problem drawn uniformly.
    """

    full: Fraction
    first_step: Fraction
    accumulated: Fraction
    uniform: Fraction


def two_problems() -> TwoProblems:
    """Return the three cases, each differentiated on its own; at w = 0 float64 holds every number exactly."""
    weight = torch.zeros((), dtype=torch.float64, requires_grad=True)

    def gradient(objective: Callable[[torch.Tensor], torch.Tensor]) -> Fraction:
        return Fraction(float(torch.autograd.grad(objective(weight.sigmoid()), weight)[0]))

    problems: list[Callable[[torch.Tensor], torch.Tensor]] = [lambda p: p, lambda p: 1 - p]
    each = [gradient(problem) for problem in problems]
    return TwoProblems(
        full=gradient(lambda p: torch.stack([problem(p) for problem in problems]).mean()),
        first_step=each[0],
        accumulated=sum(each, Fraction(0)) / len(each),
        uniform=sum((Fraction(1, len(each)) * drawn for drawn in each), Fraction(0)),
    )


@dataclass(frozen=True)
class SeedExperiment:
    """The same cases over 20 problems, after warm-up; distances are Euclidean, relative to the full gradient's norm.

    Attributes:
        first_step: distance of the first cyclic step's expected gradient from the full gradient.
        cycle: distance of the mean of four consecutive cyclic steps, the weights moving in between.
        accumulated: distance of the mean of the four batches at frozen weights.
        uniform: distance of the expectation over all C(20, 5) equally likely batches.
    """

    first_step: float
    cycle: float
    accumulated: float
    uniform: float


def seed_experiment(rate: float = 0.1) -> SeedExperiment:
    """Compute the cases exactly, over all 100 trajectories of each problem.

    Args:
        rate: of the plain gradient steps that move the weights within a cycle.
    """
    recipe = Recipe(rl=RLConfig(steps=0))
    problems = draw_splits(recipe.seed, train=recipe.task.train_problems, test=recipe.task.test_problems)["train"]
    state = start(recipe)
    silent = loop.Hooks(emit=lambda record, seconds: None, save=lambda state: None, monitor=lambda p, r: {})
    loop.run(state, recipe, problems, silent)
    policy, beta = state.policy, recipe.rl.beta
    reference = copy.deepcopy(policy)

    each = torch.stack([exact_gradient(policy, reference, (problem,), beta=beta) for problem in problems])
    full = exact_gradient(policy, reference, problems, beta=beta)
    batches = [recipe.batch(step) for step in range(4)]
    frozen = torch.stack([each[batch].mean(0) for batch in batches])

    moving, taken = copy.deepcopy(policy).double(), []
    for batch in batches:
        gradient = exact_gradient(moving, reference, tuple(problems[i] for i in batch), beta=beta)
        _move(moving, rate * gradient)
        taken.append(gradient)

    chosen = torch.zeros(len(problems), dtype=torch.float64)
    subsets = list(itertools.combinations(range(len(problems)), recipe.rl.problems_per_step))
    for subset in subsets:
        chosen[list(subset)] += 1 / recipe.rl.problems_per_step
    uniform = (chosen / len(subsets)) @ each

    def distance(gradient: torch.Tensor) -> float:
        return float((gradient - full).norm() / full.norm())

    return SeedExperiment(
        first_step=distance(frozen[0]),
        cycle=distance(torch.stack(taken).mean(0)),
        accumulated=distance(frozen.mean(0)),
        uniform=distance(uniform),
    )


@torch.no_grad()
def _move(policy: nn.Module, step: torch.Tensor) -> None:
    """Add a flat step to the weights."""
    parameters = list(policy.parameters())
    for parameter, part in zip(parameters, step.split([p.numel() for p in parameters]), strict=True):
        parameter += part.view_as(parameter)


if __name__ == "__main__":
    two, seed = two_problems(), seed_experiment()
    print("two problems, gradients +1/4 and -1/4")
    print(f"  full gradient                            {two.full}")
    print(f"  1. first cyclic step (problem 1 alone)   {two.first_step}")
    print(f"  2. both batches at one frozen weight     {two.accumulated}")
    print(f"  3. a problem drawn uniformly, expected   {two.uniform}")
    print("seed experiment after warm-up, relative distance from the full gradient")
    print(f"  1. first cyclic step (problems 0 to 4)   {seed.first_step:.3f}")
    print(f"     mean of one cycle, weights moving     {seed.cycle:.3f}")
    print(f"  2. four batches at frozen weights        {seed.accumulated:.1e}")
    print(f"  3. five problems drawn uniformly         {seed.uniform:.1e}")
    print("Every one of these is on-policy; they differ in whose gradient is estimated.")
