"""Further worlds: small ones that an audit goes through in a moment, and ones where a certain kind of mistake shows."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from assay.core.logprobs import processed_logp
from assay.core.streams import Stream, normals, uniforms
from assay.tree.fields import visits
from assay.tree.prefix import Grammar, PrefixTree, prefix_tree
from assay.tree.world import TreeProblem, World, default_world

_CALL, _OBSERVATION = (1, 2), 3
_TOWARDS_REFERENCE, _TOWARDS_OLD, _TOWARDS_SAMPLER = 1, 2, 3


def state_values(problem: TreeProblem) -> Float[Tensor, " I"]:
    """Return the expected reward of the policy from each prefix on."""
    mass = problem.tree.token_logp(problem.logits).sum(1).exp()
    states, present = problem.tree.states, problem.tree.mask
    earned = (mass * problem.reward)[:, None].expand_as(states)[present]
    total = torch.zeros(len(problem.logits), dtype=mass.dtype).index_add(0, states[present], earned)
    return total / visits(problem, problem.logits)


def small_world(
    *,
    seed: int = 0,
    tokens: int = 3,
    max_length: int = 2,
    end: int | None = 0,
    off_policy: bool = False,
    mismatch: bool = False,
) -> World:
    """Return two problems with a few responses: 7 of one or two tokens, unless it is said otherwise.

    The first has binary rewards, the second graded ones; the reference differs from the policy.

    Args:
        seed: names the weights and rewards.
        tokens: size of the vocabulary.
        max_length: longest response.
        end: the end token; None makes all responses ``max_length`` long.
        off_policy: whether the update began from an older policy.
        mismatch: whether what draws the responses differs from the policy that the update began from, as an
            inference engine does.
    """
    tree = prefix_tree(Grammar(tokens=tokens, max_length=max_length, end=end))
    problems = []
    for number, name in enumerate(("binary rewards", "graded rewards")):
        logits, reward = _normals(seed, number, tree), _rewards(seed, number, tree)
        reward = (reward >= reward.median()).double() if number == 0 else reward
        old = logits + 0.5 * _normals(seed, number, tree, _TOWARDS_OLD) if off_policy else logits
        sampler = old + 0.4 * _normals(seed, number, tree, _TOWARDS_SAMPLER) if mismatch else None
        reference = logits + 0.8 * _normals(seed, number, tree, _TOWARDS_REFERENCE)
        problems.append(TreeProblem(name, tree, logits, reference, old, reward, sampler))
    return tuple(problems)


def tool_world(*, seed: int = 0) -> World:
    """Return a problem in which the environment speaks in the middle of a response.

    The policy either stops at once (token 0), or calls a tool in one of two ways (1 or 2). Then the environment
    answers with token 3, which is not sampled and not trained on, and the policy goes on with one more token. That is
    7 responses; the call and what follows it both decide about the reward. The critic is exact where the policy acts,
    and says some other number where the environment speaks.

    Args:
        seed: names the weights and rewards.
    """

    def allowed(prefix: tuple[int, ...]) -> tuple[int, ...]:
        return (_OBSERVATION,) if prefix in {(call,) for call in _CALL} else (0, *_CALL)

    tree = prefix_tree(Grammar(tokens=4, max_length=3, end=0, allowed=allowed))
    logits = _normals(seed, 0, tree)
    reference = logits + 0.8 * _normals(seed, 0, tree, _TOWARDS_REFERENCE)
    observed = tree.allowed.sum(1) == 1
    reward = _rewards(seed, 0, tree)
    problem = TreeProblem("a tool's answer in between", tree, logits, reference, logits, reward, observed=observed)
    return (replace(problem, critic=torch.where(observed, problem.value, state_values(problem))),)


def far_world(*, seed: int = 0) -> World:
    """Return the default world with the policy far from where the update began and from what draws the responses.

    In each problem some token's ratio is above 4 and another's below 1/2, and responses are truncated: whatever clips,
    caps or masks has something to act on.

    Args:
        seed: names the weights and rewards.
    """
    problems = []
    for number, problem in enumerate(default_world(seed=seed)):
        old = problem.logits + 1.2 * _normals(seed, number + 8, problem.tree, _TOWARDS_OLD)
        sampler = old + 0.7 * _normals(seed, number + 8, problem.tree, _TOWARDS_SAMPLER)
        problems.append(replace(problem, logits_old=old, logits_sampler=sampler))
    return tuple(problems)


def decoded(world: World, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> World:
    """Return a world whose responses are drawn under a decoder's settings, while the policy is scored without them.

    Args:
        world: its policies stay.
        temperature: as :func:`assay.core.logprobs.processed_logp` takes it, like the rest.
        top_k: see there.
        top_p: see there.
        min_p: see there.
    """

    def drawn(problem: TreeProblem) -> Float[Tensor, "I V"]:
        allowed = problem.draws.masked_fill(~problem.tree.allowed, float("-inf"))
        return processed_logp(allowed, temperature, top_k, top_p, min_p)

    return tuple(replace(problem, logits_sampler=drawn(problem)) for problem in world)


def drifted_world(*, seed: int = 0, nats: float = 750.0) -> World:
    """Return a world of one-token responses in which the policy has all but given up one that the sampler still draws.

    Args:
        seed: names the weights and rewards.
        nats: how far the token's logit has fallen; beyond 709 the exponential of the gap overflows in float64, as
            beyond 88 it does in float32.
    """
    problems = []
    for problem in small_world(seed=seed, max_length=1, end=None, off_policy=True):
        fallen = problem.logits.clone()
        fallen[:, -1] -= nats
        problems.append(replace(problem, logits=fallen))
    return tuple(problems)


def _normals(seed: int, problem: int, tree: PrefixTree, what: int = 0) -> Float[Tensor, "I V"]:
    shape = (len(tree.inner), tree.tokens_in_vocabulary)
    return normals(seed, Stream.INIT, shape[0] * shape[1], problem=100 + 4 * problem + what).view(shape)


def _rewards(seed: int, problem: int, tree: PrefixTree) -> Float[Tensor, " M"]:
    return uniforms(seed, Stream.DATA, len(tree.path), problem=[100 + problem], sample=[0])[0]
