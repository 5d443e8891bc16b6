"""Credit over time: rewards, values and masks in a recursion that runs backwards over a response."""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.audit.invariants.expected import expected_gradient
from assay.tree.worlds import small_world, tool_world
from specimens.bench import Specimen
from specimens.sums import summed

Tokens = Float[Tensor, "B T"]
Rows = Float[Tensor, " B"]
Loss = Float[Tensor, ""]
BETA, TRACE = 0.1, 0.5


def at_the_last_action(reward: Rows, mask: Tokens) -> Tokens:
    """Return the reward of each response at its last action, zero elsewhere."""
    places = torch.arange(mask.shape[1]).expand_as(mask)
    last = torch.where(mask > 0, places, -1).amax(1, keepdim=True)
    return torch.where(places == last, reward[:, None], 0.0)


def backwards(rewards: Tokens) -> Tokens:
    """Return the sum of rewards from each position on."""
    return rewards.flip(1).cumsum(1).flip(1)


def score_function(credit: Tokens, logp: Tokens, mask: Tokens) -> Loss:
    return -summed(credit.detach() * logp, mask).mean()


def return_reset_at_observations(logp: Tokens, reward: Rows, mask: Tokens) -> Loss:
    rewards, running, returns = at_the_last_action(reward, mask), torch.zeros_like(reward), []
    for t in reversed(range(mask.shape[1])):
        running = (rewards[:, t] + running) * mask[:, t]
        returns.append(running)
    return score_function(torch.stack(returns[::-1], 1), logp, mask)


def return_carried_over_observations(logp: Tokens, reward: Rows, mask: Tokens) -> Loss:
    rewards, running, returns = at_the_last_action(reward, mask), torch.zeros_like(reward), []
    for t in reversed(range(mask.shape[1])):
        running = torch.where(mask[:, t] > 0, rewards[:, t] + running, running)
        returns.append(running)
    return score_function(torch.stack(returns[::-1], 1), logp, mask)


def gae_over_every_position(logp: Tokens, value: Tokens, reward: Rows, mask: Tokens) -> Loss:
    """Take an observation for an action: bootstrap from the critic's word on it, and let the trace decay there."""
    rewards, trace, following, made = at_the_last_action(reward, mask), torch.zeros_like(reward), 0.0, []
    for t in reversed(range(mask.shape[1])):
        trace = rewards[:, t] + following - value[:, t] + TRACE * trace
        following = value[:, t]
        made.append(trace)
    return score_function(torch.stack(made[::-1], 1), logp, mask)


def gae_over_actions(logp: Tokens, value: Tokens, reward: Rows, mask: Tokens) -> Loss:
    rewards, trace, following, made = at_the_last_action(reward, mask), 0 * reward, 0 * reward, []
    for t in reversed(range(mask.shape[1])):
        acted = mask[:, t] > 0
        trace = torch.where(acted, rewards[:, t] + following - value[:, t] + TRACE * trace, trace)
        following = torch.where(acted, value[:, t], following)
        made.append(trace)
    return score_function(torch.stack(made[::-1], 1), logp, mask)


def reward_minus_value(logp: Tokens, value: Tokens, reward: Rows, mask: Tokens) -> Loss:
    return score_function(at_the_last_action(reward, mask) - value, logp, mask)


def return_minus_value(logp: Tokens, value: Tokens, reward: Rows, mask: Tokens) -> Loss:
    return score_function(backwards(at_the_last_action(reward, mask)) - value, logp, mask)


def token_logp(logits: Float[Tensor, "B T V"], tokens: Int[Tensor, "B T"]) -> Tokens:
    """Score every position, padding included, as a forward pass over a padded batch does."""
    return logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]


def kl_on_padding_in_returns(
    logits: Float[Tensor, "B T V"],
    logits_ref: Float[Tensor, "B T V"],
    tokens: Int[Tensor, "B T"],
    reward: Rows,
    mask: Tokens,
) -> Loss:
    logp, logp_ref = token_logp(logits, tokens), token_logp(logits_ref, tokens)
    returns = backwards(at_the_last_action(reward, mask) - BETA * (logp - logp_ref))
    return score_function(returns, logp, mask)


def kl_on_actions_in_returns(
    logits: Float[Tensor, "B T V"],
    logits_ref: Float[Tensor, "B T V"],
    tokens: Int[Tensor, "B T"],
    reward: Rows,
    mask: Tokens,
) -> Loss:
    logp, logp_ref = token_logp(logits, tokens), token_logp(logits_ref, tokens)
    returns = backwards(at_the_last_action(reward, mask) - BETA * (logp - logp_ref) * mask)
    return score_function(returns, logp, mask)


with_tool = partial(expected_gradient, world=tool_world())
SPECIMENS = (
    Specimen("ADV-13", with_tool, return_reset_at_observations, return_carried_over_observations),
    Specimen("ADV-14", with_tool, gae_over_every_position, gae_over_actions),
    Specimen("ADV-20", partial(expected_gradient, world=small_world(tokens=2)), reward_minus_value, return_minus_value),
    Specimen(
        "MASK-20",
        partial(expected_gradient, objective=f"reward - {BETA}*kl", world=small_world(tokens=2)),
        kl_on_padding_in_returns,
        kl_on_actions_in_returns,
    ),
)
