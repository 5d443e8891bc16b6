"""Exact gradients of objectives through a neural policy, from its next-token logits over a tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from assay.errors import InputError
from assay.tree.fields import scalar_of
from assay.tree.prefix import PrefixTree
from assay.tree.world import TreeProblem
from assay.types import Policy


@dataclass(frozen=True)
class Prompted:
    """A problem as a neural policy meets it.

    Attributes:
        prompt: tokens that come before the response.
        problem: responses, rewards, and what policy and reference say after each prefix.
    """

    prompt: Int[Tensor, " S"]
    problem: TreeProblem


def next_logits(policy: Policy, prompt: Int[Tensor, " S"], tree: PrefixTree) -> Float[Tensor, "I V"]:
    """Return the policy's logits after the prompt and each prefix of the tree, with gradient.

    Args:
        policy: causal, so that what stands behind a position does not matter there.
        prompt: at least one token.
        tree: its V tokens are all that the policy can answer.

    Raises:
        InputError: the policy's vocabulary is another one.
    """
    every = tree.prefixes
    prefixes = [every[node] for node in tree.inner.tolist()]
    depth = max(len(prefix) for prefix in prefixes)
    rows = torch.tensor([prefix + [0] * (depth - len(prefix)) for prefix in prefixes], dtype=torch.long)
    logits = policy(torch.cat([prompt.expand(len(rows), -1), rows.view(len(prefixes), depth)], dim=1))
    if logits.shape[-1] != tree.tokens_in_vocabulary:
        raise InputError(
            f"the policy answers {logits.shape[-1]} tokens and the tree has {tree.tokens_in_vocabulary}: the tree's "
            "probabilities are the policy's only if both have one vocabulary"
        )
    last = torch.tensor([len(prompt) - 1 + len(prefix) for prefix in prefixes])
    return logits[torch.arange(len(rows)), last]


def prompted(
    policy: Policy, reference: Policy, name: str, prompt: Int[Tensor, " S"], tree: PrefixTree, reward: Tensor
) -> Prompted:
    """Return a problem of a policy that draws its own responses.

    Args:
        policy: what is trained.
        reference: frozen.
        name: for messages.
        prompt: tokens that come before the response.
        tree: all M responses.
        reward: of each response, ``[M]``.
    """
    with torch.no_grad():
        logits = next_logits(policy, prompt, tree).double()
        logits_ref = next_logits(reference, prompt, tree).double()
    return Prompted(prompt, TreeProblem(name, tree, logits, logits_ref, logits, reward.double()))


def trained(policy: Policy) -> dict[str, nn.Parameter]:
    """Return the parameters of a policy that a gradient can be taken of, by name."""
    return {name: parameter for name, parameter in policy.named_parameters() if parameter.requires_grad}


def objective_field(name: str, policy: Policy, problems: Sequence[Prompted]) -> Float[Tensor, " D"]:
    """Return the gradient of one objective, meaned over the problems, over all trained weights, flattened."""
    values = [scalar_of(name)(place.problem, _live(policy, place)) for place in problems]
    mean, parameters = torch.stack(values).mean(), list(trained(policy).values())
    parts = torch.autograd.grad(mean, parameters, allow_unused=True, materialize_grads=True)
    return torch.cat([part.double().flatten() for part in parts])


def weight_name(policy: Policy, number: int) -> str:
    """Return the name and the index of a weight by its number, such as ``"head.weight[2, 0]"``."""
    for name, parameter in trained(policy).items():
        if number < parameter.numel():
            return f"{name}{[int(i) for i in torch.unravel_index(torch.tensor(number), parameter.shape)]}"
        number -= parameter.numel()
    raise IndexError(number)


def by_name(policy: Policy, flat: Float[Tensor, " D"]) -> dict[str, Tensor]:
    """Return a flattened gradient by the name of its parameter."""
    named = trained(policy)
    parts = torch.split(flat, [parameter.numel() for parameter in named.values()])
    return {name: part.view(named[name].shape) for name, part in zip(named, parts, strict=True)}


def _live(policy: Policy, place: Prompted) -> Float[Tensor, "I V"]:
    return next_logits(policy, place.prompt, place.problem.tree).double()
