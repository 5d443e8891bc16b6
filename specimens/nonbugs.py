"""Reports that were no bugs, about samplers, buffers and where a formula lives: the checks must stay quiet."""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.audit.invariants.buffering import buffered
from assay.audit.invariants.freshness import Pair, freshness
from assay.audit.invariants.groups import group_semantics
from specimens.bench import NonBug
from specimens.group_boundaries import centred_by_id
from specimens.stale_buffer import repeat_each_batch, reuse
from specimens.stale_sampler import Engine, Policy


class NamedServer(Engine):
    """Reports the name it was launched with, whatever weights were written over it since."""

    name = "the-model-before-training"


def overwritten_in_place(kind: type[Engine]) -> Pair:
    """Return a policy and a server whose weights are written over in place."""
    policy = Policy()
    server = kind(policy.base)
    return Pair(policy.trained(), lambda: server.load({"base": policy.merged()}), policy.logp, server.logp)


def scaled_by_the_buffer(centred: Float[Tensor, " B"], group: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """What the buffer does to advantages on their way to the actor."""
    scaled = torch.zeros_like(centred)
    for name in group.unique():
        members = centred[group == name]
        if len(members) > 1 and members.std() > 1e-6:
            scaled[group == name] = members / members.std()
    return scaled


def whole_data_path(reward: Float[Tensor, " B"], group: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Centre in the function in which normalisation was missed, and divide in the buffer behind it."""
    return scaled_by_the_buffer(centred_by_id(reward, group), group)


NONBUGS = (
    NonBug("huggingface/trl#3189", lambda kind: freshness(overwritten_in_place(kind)), NamedServer),
    NonBug("huggingface/trl#4271", partial(buffered, uses=3), reuse(repeat_each_batch, 3)),
    NonBug("OpenRLHF/OpenRLHF#843", partial(group_semantics, definition="standardised"), whole_data_path),
)
