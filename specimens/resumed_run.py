"""A run that is resumed is another run: no steps, other prompts, or noise that was used before."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from assay.audit.invariants.resume import Leg, Train, resume
from specimens.bench import Specimen

PROMPTS, BATCH, EPOCHS = 6, 2, 2
PER_EPOCH = PROMPTS // BATCH


class Loader:
    """Goes once through the prompts of an epoch; its state is the position it has reached."""

    def __init__(self, epoch: int) -> None:
        generator = torch.Generator().manual_seed(epoch)
        self.order, self.position = torch.randperm(PROMPTS, generator=generator), 0

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> Tensor:
        if self.position >= PROMPTS:
            raise StopIteration
        self.position += BATCH
        return self.order[self.position - BATCH : self.position]


class Run:
    """Ascends a table of prompt scores along noise: enough of a trainer to be interrupted."""

    def __init__(self, *, restore_position: Callable[[int], bool], restore_noise: bool) -> None:
        self.restore_position, self.restore_noise = restore_position, restore_noise

    def train(self, checkpoint: dict[str, Any] | None) -> Leg:
        weights, step = torch.zeros(PROMPTS, dtype=torch.float64), 0
        noise = torch.Generator().manual_seed(7)
        records, checkpoints = [], []
        if checkpoint is not None:
            weights, step = checkpoint["weights"].clone(), checkpoint["step"]
            if self.restore_noise:
                noise.set_state(checkpoint["noise"])
        first = step // PER_EPOCH
        for epoch in range(first, EPOCHS):
            loader = Loader(epoch)
            if checkpoint is not None and epoch == first and self.restore_position(step):
                loader.position = checkpoint["position"]
            for prompt in loader:
                drawn = torch.randn(BATCH, generator=noise, dtype=torch.float64)
                weights[prompt] += 0.1 * drawn
                step += 1
                records.append({"step": step, "prompts": prompt, "noise": drawn})
                state = {"weights": weights, "step": step, "position": loader.position, "noise": noise.get_state()}
                checkpoints.append(copy.deepcopy(state))
        return Leg(records, checkpoints, {"weights": weights, "step": step, "noise": noise.get_state()})


def loop(*, restore_position: Callable[[int], bool] = lambda step: step % PER_EPOCH > 0, noise: bool = True) -> Any:
    """Return how to start a process that trains; the defaults restore all there is to restore."""
    return lambda: Run(restore_position=restore_position, restore_noise=noise).train


def always(step: int) -> bool:
    return True


class GroupRun:
    """Takes prompts in order, one group a step, and stops after as many groups as were asked for."""

    resets = True

    def __init__(self) -> None:
        self.trained: list[int] = []

    def train(self, checkpoint: list[int] | None) -> Leg:
        if self.resets:
            self.trained = []
        self.trained += checkpoint or []
        records, checkpoints = [], []
        while len(self.trained) < PROMPTS:
            prompt = len(self.trained)
            self.trained.append(prompt)
            records.append({"step": len(self.trained), "prompt": prompt})
            checkpoints.append(list(self.trained))
        return Leg(records, checkpoints, {"trained": list(self.trained)})


class KeepingGroupRun(GroupRun):
    """A second call of train keeps the group ids of the first."""

    resets = False


def process_of(kind: type[GroupRun]) -> Callable[[], Train]:
    return lambda: kind().train


SPECIMENS = (
    Specimen("CK-01", resume, loop(restore_position=always), loop()),
    Specimen("CK-02", partial(resume, restart=False), process_of(KeepingGroupRun), process_of(GroupRun)),
    Specimen("CK-04", resume, loop(noise=False), loop()),
)
UNDECIDABLE = {
    "CK-05": "users compared generations of a merged export and no cause was found; where logits can be had of both, "
    "same_state of merged and base plus adapter decides it"
}
