"""The exact variance of our estimators at equal samples, as ratios to leave-one-out.

    python benchmarks/variance.py [--json FILE]

Every figure is enumerated, none is sampled: the trace of the covariance of one group's gradient, by the logits of a
tabular policy, over all multisets of responses. The first table has the reward alone: ``rloo_distinct`` over ``rloo``,
which is never above 1. The second has the objective ``reward - beta KL``: the exact KL of the response in the loss over
k1 in the reward, with either baseline; the third has the penalty alone. Worlds differ in the number of responses, in
how sharp the policy is and in the rewards. A row is the geometric mean over all of them, with the smallest and the
largest ratio and where that is. Each estimator's bias is checked on the way.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor

from assay.audit.adapters.own import SUBJECTS
from assay.audit.call import make_batch, slope
from assay.core.streams import Stream, normals, uniforms
from assay.tree.fields import objective_gradient, parse_objective
from assay.tree.prefix import Grammar, prefix_tree
from assay.tree.world import TreeProblem

GRAMMARS = {4: Grammar(2, 3, end=0), 7: Grammar(3, 2, end=0), 15: Grammar(3, 3, end=0)}
SHARPNESS = (0.5, 1.0, 2.0)
REWARDS = ("binary", "rare", "graded")
SEEDS = (0, 1, 2)
SIZES = {4: (2, 4, 8), 7: (2, 4, 8), 15: (2, 4)}
BETAS = (0.03, 0.1, 0.5)
UNBIASED = 1e-12
CHUNK = 4096


@dataclass(frozen=True)
class Estimator:
    """One of ours, under settings."""

    name: str
    settings: dict[str, str]

    def variance(self, problem: TreeProblem, size: int, objective: str) -> float:
        """Return the trace of the covariance of one group's gradient; the mean must be the objective's gradient."""
        moments = [Moments.of(self, problem, groups) for groups in chunks(problem, size)]
        mean = sum(made.mean for made in moments)
        stated = objective_gradient(parse_objective(objective), (problem,))
        error = float((mean + stated).norm() / stated.norm())
        assert error <= UNBIASED, f"{self.name}: bias {error:.1e}"
        return sum(made.square for made in moments) - float(mean @ mean)


@dataclass(frozen=True)
class Moments:
    """Parts of a mean and of a mean square, over some groups."""

    mean: Tensor
    square: float

    @staticmethod
    def of(estimator: Estimator, problem: TreeProblem, groups: list[tuple[int, ...]]) -> Moments:
        size, rows = len(groups[0]), torch.tensor(groups).flatten()
        function = SUBJECTS[f"assay.{estimator.name}"](estimator.settings).loss
        made = len(groups) * slope(function, make_batch((problem,), [(0, torch.tensor(group)) for group in groups]))
        inner, vocabulary = problem.logits.shape
        mask = problem.tree.mask[rows]
        number = torch.arange(len(groups)).repeat_interleave(size)
        place = (number[:, None] * inner + problem.tree.states[rows])[mask]
        gradient = torch.zeros(len(groups) * inner, vocabulary, dtype=made.dtype)
        gradient = gradient.index_add(0, place, made[mask]).view(len(groups), -1)
        chance = problem.sampler_logp[torch.tensor(groups)].sum(1).exp()
        chance = chance * torch.tensor([orders(group) for group in groups], dtype=chance.dtype)
        return Moments(chance @ gradient, float(chance @ gradient.square().sum(1)))


def orders(group: tuple[int, ...]) -> int:
    """Return how many ordered groups a multiset stands for."""
    return math.factorial(len(group)) // math.prod(math.factorial(group.count(member)) for member in set(group))


def chunks(problem: TreeProblem, size: int) -> list[list[tuple[int, ...]]]:
    """Return all multisets of responses, some at a time."""
    every = itertools.combinations_with_replacement(range(len(problem.reward)), size)
    return list(iter(lambda: list(itertools.islice(every, CHUNK)), []))


def world(responses: int, sharpness: float, kind: str, seed: int) -> TreeProblem:
    """Return one problem; its rewards are not all equal, except for those of the kind ``"no"``."""
    tree = prefix_tree(GRAMMARS[responses])
    shape = (len(tree.inner), GRAMMARS[responses].tokens)
    logits, shift = (normals(seed, Stream.INIT, math.prod(shape), problem=n).view(shape) for n in (0, 1))
    reward = uniforms(seed, Stream.DATA, responses, problem=[0], sample=[0])[0]
    if kind == "no":
        reward = torch.zeros(responses, dtype=torch.float64)
    elif kind != "graded":
        order = reward.argsort()
        reward = torch.zeros(responses, dtype=torch.float64)
        reward[order[: max(1, responses // (2 if kind == "binary" else 7))]] = 1.0
    logits = sharpness * logits
    return TreeProblem(f"{responses} {sharpness} {kind} {seed}", tree, logits, logits + 0.8 * shift, logits, reward)


def ratios(
    new: Estimator, old: Estimator, objective: str, responses: int, size: int, kinds: tuple[str, ...] = REWARDS
) -> dict[str, list[float]]:
    """Return variance ratios by kind of reward and sharpness, one a seed."""
    out: dict[str, list[float]] = {}
    for kind, sharpness, seed in itertools.product(kinds, SHARPNESS, SEEDS):
        problem = world(responses, sharpness, kind, seed)
        made = new.variance(problem, size, objective) / old.variance(problem, size, objective)
        out.setdefault(f"{kind} rewards, logits x {sharpness:g}", []).append(made)
    return out


def summary(title: str, made: dict[str, list[float]]) -> dict[str, object]:
    """Return one row: the geometric mean, the smallest and the largest, and where it is largest."""
    every = [value for values in made.values() for value in values]
    mean = math.exp(sum(map(math.log, every)) / len(every))
    worst = max(made, key=lambda key: max(made[key]))
    row = {"case": title, "mean": mean, "smallest": min(every), "largest": max(every), "largest_at": worst}
    print(f"{title:48s} {mean:6.3f}   {min(every):6.3f} to {max(every):6.3f} ({worst})", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the rows here too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    print("reward alone: rloo_distinct over rloo")
    for responses, size in [(m, size) for m, sizes in SIZES.items() for size in sizes]:
        made = ratios(Estimator("rloo_distinct", {}), Estimator("rloo", {}), "reward", responses, size)
        rows.append(summary(f"{responses} responses, G = {size}", made))
    print("\nreward - beta KL: exact KL in the loss over k1 in the reward")
    for beta, size in itertools.product(BETAS, (2, 4)):
        settings = {"beta": str(beta), "kl": "reward"}
        exact, objective = settings | {"kl": "exact_sequence_loss"}, f"reward - {beta}*kl"
        for name in ("rloo", "rloo_distinct"):
            made = ratios(Estimator(name, exact), Estimator("rloo", settings), objective, 7, size)
            rows.append(summary(f"{name}, 7 responses, beta = {beta}, G = {size}", made))
    print("\nthe penalty alone, no reward: exact KL in the loss over k1 in the reward")
    for size in (2, 4):
        old, new = (Estimator("rloo", {"beta": "1", "kl": kl}) for kl in ("reward", "exact_sequence_loss"))
        rows.append(summary(f"rloo, 7 responses, G = {size}", ratios(new, old, "-1*kl", 7, size, ("no",))))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
