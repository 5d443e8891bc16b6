"""How long the audit of a loss takes on the seed's problem of 100 trajectories, and what its shortcuts save.

    python benchmarks/audit.py

Prints, in one run on one thread: an audit with groups of 2 (5,050 multisets), one with groups of 8 by classes, two with
groups of 4 in the default world; the expectation alone, and what joint calls would save of it; and brute force over all
ordered groups, differentiating through the policy.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable

import torch

from assay import audit
from assay.audit.gradients import next_logits
from assay.audit.slopes import LossSlopes, atoms_of
from assay.tasks.chain import DIGITS, RESPONSE_LENGTH, draw_splits, encode_prompts, tree_rewards
from assay.threads import one_thread
from assay.training.config import Recipe
from assay.training.state import initial_policy
from assay.tree.groups import batch_moments
from assay.tree.prefix import Grammar, prefix_tree
from assay.tree.world import TreeProblem, World, default_world

ROUNDS = 3


def seed_world() -> World:
    """Return the first training problem of the seed experiment as a world: the policy's distribution at each prefix."""
    problem = draw_splits(29, train=1, test=1)["train"][0]
    tree = prefix_tree(Grammar(DIGITS, RESPONSE_LENGTH))
    prompt = encode_prompts((problem,))[0]
    with torch.no_grad():
        logits, reference = (next_logits(initial_policy(Recipe(seed=seed)).double(), prompt, tree) for seed in (29, 30))
    return (TreeProblem(problem.prompt, tree, logits, reference, logits, tree_rewards((problem,))[0].double()),)


def rloo(logp, adv, mask):
    """Leave-one-out, meaned over responses."""
    return -(adv * torch.where(mask > 0, logp, 0.0).sum(1)).mean()


def token_mean(logp, adv, mask):
    """Leave-one-out, meaned over the batch's tokens: it couples the groups of a batch."""
    return -(adv[:, None] * torch.where(mask > 0, logp, 0.0)).sum() / mask.sum()


def brute_force(world: World, size: int) -> torch.Tensor:
    """Return the expected gradient over every ordered group, each differentiated through the policy's logits."""
    (problem,), total = world, 0.0
    leaf = problem.logits.clone().requires_grad_()
    token_logp = problem.tree.token_logp(leaf)
    chance = token_logp.detach().sum(1).exp()
    for members in itertools.product(range(len(chance)), repeat=size):
        group = torch.tensor(members)
        reward = problem.reward[group]
        adv = reward - (reward.sum() - reward) / (size - 1)
        loss = -(adv * token_logp[group].sum(1)).mean()
        gradient = torch.autograd.grad(loss, leaf, retain_graph=True)[0]
        total = total + float(chance[group].prod()) * gradient.flatten()
    return total


def timed(work: Callable[[], object]) -> tuple[float, object]:
    """Return the median seconds of a few rounds, and the result."""
    seconds, made = [], None
    for _ in range(ROUNDS):
        start = time.perf_counter()
        made = work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), made


def main() -> None:
    world = seed_world()
    with one_thread():
        for name, work in {
            "audit, seed's problem, G = 2": lambda: audit.loss(rloo, group_size=2, world=world),
            "audit, seed's problem, G = 8": lambda: audit.loss(rloo, group_size=8, world=world),
            "audit, default world, G = 4": lambda: audit.loss(rloo, group_size=4, world=default_world()),
            "audit, default world, G = 4, token mean": lambda: audit.loss(token_mean, group_size=4),
        }.items():
            seconds, report = timed(work)
            print(f"{name:45} {seconds:8.2f} s   {report.exactness}")
        atoms = atoms_of(world, 0, logits=False)

        def expectation(joint: bool) -> Callable[[], object]:
            return lambda: batch_moments(LossSlopes(rloo, world, [0], [2], joint=joint), [atoms], [2])

        single, made = timed(expectation(joint=False))
        print(f"{'expectation alone, G = 2, one group a call':45} {single:8.3f} s")
        joint, _ = timed(expectation(joint=True))
        print(f"{'the same in joint calls, checked':45} {joint:8.3f} s   {single / joint:.1f} times faster")
        start = time.perf_counter()
        expected = brute_force(world, 2)
        seconds = time.perf_counter() - start
        gap = float((made.mean - expected).norm() / expected.norm())
        print(
            f"{'brute force, 10,000 ordered groups':45} {seconds:8.3f} s   {seconds / single:.1f} times, gap {gap:.0e}"
        )


if __name__ == "__main__":
    main()
