"""A world to audit a loss in: problems small enough to enumerate, a policy over them, its reference and its sampler.

The policy is tabular: one row of logits for each prefix of each problem. That is the most telling choice,
because the gradient of any other policy with the same next-token distributions is a linear image of this one;
nothing can cancel that is wrong here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.core.streams import Stream, normals, uniforms
from assay.tree.prefix import Grammar, PrefixTree, prefix_tree


@dataclass(frozen=True)
class TreeProblem:
    """One problem of a world; float64 throughout.

    Attributes:
        name: for messages.
        tree: all M responses.
        logits: of the policy that is trained, ``[I, V]``.
        logits_ref: of the frozen reference.
        logits_old: of the policy at the start of the update; the same tensor on-policy.
        reward: of each response, ``[M]``.
        logits_sampler: of what draws the responses, -inf where it never goes; None when that is ``logits_old``.
        observed: prefixes after which the environment speaks, ``[I]``: the next token is given, not sampled, and
            not trained on. None when there are none. The grammar must allow a single token there.
        critic: what a critic says of each prefix; None takes fixed numbers in (0, 1) that are right about nothing.
    """

    name: str
    tree: PrefixTree
    logits: Float[Tensor, "I V"]
    logits_ref: Float[Tensor, "I V"]
    logits_old: Float[Tensor, "I V"]
    reward: Float[Tensor, " M"]
    logits_sampler: Float[Tensor, "I V"] | None = None
    observed: Bool[Tensor, " I"] | None = None
    critic: Float[Tensor, " I"] | None = None

    @property
    def draws(self) -> Float[Tensor, "I V"]:
        """Return the logits of what draws the responses."""
        return self.logits_old if self.logits_sampler is None else self.logits_sampler

    @property
    def sampler_logp(self) -> Float[Tensor, " M"]:
        """Return the log-probability with which each response is drawn."""
        return self.tree.token_logp(self.draws).sum(1)

    @property
    def drawn(self) -> Int[Tensor, " D"]:
        """Return the responses that can be drawn, by number."""
        return (self.sampler_logp > float("-inf")).nonzero()[:, 0]

    @property
    def mask(self) -> Bool[Tensor, "M T"]:
        """Return which positions hold a token that the policy chose."""
        if self.observed is None:
            return self.tree.mask
        return self.tree.mask & ~self.observed[self.tree.states]

    @property
    def scored(self) -> Bool[Tensor, "I V"]:
        """Return the tokens that log-probabilities are normalised over: all of them where the environment speaks,
        as a policy that does not know better scores there."""
        return self.tree.allowed if self.observed is None else self.tree.allowed | self.observed[:, None]

    @property
    def value(self) -> Float[Tensor, " I"]:
        """Return what the critic says of each prefix."""
        if self.critic is not None:
            return self.critic
        return uniforms(1, Stream.DATA, len(self.logits), problem=[0], sample=[1])[0]

    @property
    def logits_jacobian(self) -> Float[Tensor, "M TV IV"]:
        """Return the derivative of the logits along each response by the policy's own, flattened: zeros and ones."""
        inner, vocabulary = self.logits.shape
        rows = torch.nn.functional.one_hot(self.tree.states, inner).to(self.logits.dtype)
        rows = rows * self.tree.mask[..., None]
        identity = torch.eye(vocabulary, dtype=self.logits.dtype)
        return torch.einsum("mti,vw->mtviw", rows, identity).reshape(len(rows), -1, inner * vocabulary)

    @property
    def logp_jacobian(self) -> Float[Tensor, "M T IV"]:
        """Return the derivative of each token's log-probability by the policy's logits, flattened."""
        chance = self.logits.masked_fill(~self.scored, float("-inf")).softmax(-1)[self.tree.states]
        chosen = torch.nn.functional.one_hot(self.tree.responses, self.logits.shape[1]).to(chance.dtype)
        along = self.logits_jacobian.view(*self.tree.path.shape, -1, self.logits.numel())
        return torch.einsum("mtv,mtvd->mtd", chosen - chance, along)


World = tuple[TreeProblem, ...]


def by_problem(flat: Float[Tensor, " D"], world: World) -> tuple[Float[Tensor, " _"], ...]:
    """Return the parts of a vector over the logits of all problems, one problem after another."""
    return torch.split(flat, [problem.logits.numel() for problem in world])


def default_world(*, seed: int = 0, off_policy: bool = False) -> World:
    """Return the world in which what real settings hide is visible.

    Two problems with the same 15 responses of one to three tokens, some truncated: an easy one with binary rewards and
    a hard one with graded rewards, some below 0 and some above 1; a reference that differs from the policy; and,
    off-policy, a sampler that differs too.

    Args:
        seed: names the weights and rewards.
        off_policy: whether the responses are drawn from an older policy.
    """
    tree = prefix_tree(Grammar(tokens=3, max_length=3, end=0))
    shape = (len(tree.inner), 3)

    def draw(address: int) -> Float[Tensor, "I V"]:
        return normals(seed, Stream.INIT, shape[0] * shape[1], problem=address).view(shape)

    def rewards(address: int) -> Float[Tensor, " M"]:
        return uniforms(seed, Stream.DATA, len(tree.path), problem=[address], sample=[0])[0]

    problems = []
    for number, name in enumerate(("easy, binary rewards", "hard, graded rewards")):
        logits, reward = draw(4 * number), rewards(number)
        reward = (reward < 0.6).double() if number == 0 else 3 * reward.square() - 0.3
        moved = logits + 0.4 * draw(4 * number + 2) if off_policy else logits
        problems.append(TreeProblem(name, tree, logits, logits + 0.8 * draw(4 * number + 1), moved, reward))
    return tuple(problems)
