"""The adapter never reaches the sampler: rollouts keep coming from the initial policy."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.audit.check import Check
from assay.audit.invariants.freshness import Pair, freshness
from assay.core.streams import Stream, normals
from specimens.bench import Specimen

V, RANK = 3, 2


def logp_of(table: Float[Tensor, "V+1 V"], tokens: Int[Tensor, "M T"]) -> Float[Tensor, "M T"]:
    """Return the log-probability of each token given the one before it; row V of the table begins a response."""
    before = torch.cat([torch.full_like(tokens[:, :1], V), tokens[:, :-1]], dim=1)
    return table[before].log_softmax(-1).gather(-1, tokens[..., None])[..., 0]


class Policy:
    """A frozen table of logits and a trained low-rank adapter, whose second factor starts at zero."""

    def __init__(self) -> None:
        self.base = normals(0, Stream.INIT, (V + 1) * V).view(V + 1, V)
        self.lora_a = normals(0, Stream.INIT, (V + 1) * RANK, problem=1).view(V + 1, RANK)
        self.lora_b = torch.zeros(RANK, V, dtype=torch.float64)

    def merged(self) -> Float[Tensor, "V+1 V"]:
        return self.base + self.lora_a @ self.lora_b

    def trained(self) -> dict[str, Tensor]:
        return {"lora_a": self.lora_a, "lora_b": self.lora_b}

    def logp(self, tokens: Int[Tensor, "M T"]) -> Float[Tensor, "M T"]:
        return logp_of(self.merged(), tokens)


class Engine:
    """An inference engine with weights of its own; adapters come beside a request."""

    def __init__(self, table: Float[Tensor, "V+1 V"]) -> None:
        self.table = table.clone()

    def load(self, state: dict[str, Tensor]) -> None:
        """Overwrite in place whatever of the state has a place here."""
        if "base" in state:
            self.table.copy_(state["base"])

    def logp(self, tokens: Int[Tensor, "M T"], adapter: tuple[Tensor, Tensor] | None = None) -> Float[Tensor, "M T"]:
        return logp_of(self.table if adapter is None else self.table + adapter[0] @ adapter[1], tokens)


def of_sync(sync: Callable[[Policy, Engine], None]) -> Check:
    """Check a hand-over of weights."""
    policy = Policy()
    engine = Engine(policy.base)
    return freshness(Pair(policy.trained(), lambda: sync(policy, engine), policy.logp, engine.logp))


def unmerge_then_load(policy: Policy, engine: Engine) -> None:
    state = {"base": policy.base}  # the tensor itself, not its values
    policy.base += policy.lora_a @ policy.lora_b
    policy.base -= policy.lora_a @ policy.lora_b
    engine.load(state)


def load_then_unmerge(policy: Policy, engine: Engine) -> None:
    state = {"base": policy.base}
    policy.base += policy.lora_a @ policy.lora_b
    engine.load(state)
    policy.base -= policy.lora_a @ policy.lora_b


def send_what_the_engine_names(policy: Policy, engine: Engine) -> None:
    tensors = {"base": policy.base, **policy.trained()}
    engine.load({name: tensor for name, tensor in tensors.items() if "lora" not in name})


def send_merged(policy: Policy, engine: Engine) -> None:
    engine.load({"base": policy.merged()})


class Rollouts:
    """A trainer's rollouts; a release renamed ``generate`` to ``rollout``."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.engine = policy, Engine(policy.base)

    def rollout(self, tokens: Int[Tensor, "M T"]) -> Float[Tensor, "M T"]:
        return self.engine.logp(tokens)

    def with_adapter(self, tokens: Int[Tensor, "M T"]) -> Float[Tensor, "M T"]:
        return self.engine.logp(tokens, (self.policy.lora_a, self.policy.lora_b))


def patch_by_name(trainer: Rollouts) -> None:
    trainer.generate = trainer.with_adapter  # the name of an older release: nothing calls it, nothing complains


def patch_what_is_there(trainer: Rollouts) -> None:
    if not hasattr(trainer, "rollout"):
        raise AttributeError("no method to patch; this release is not supported")
    trainer.rollout = trainer.with_adapter


def of_patch(patch: Callable[[Rollouts], None]) -> Check:
    """Check rollouts after a patch that is to pass the adapter beside every request; nothing else delivers it."""
    policy = Policy()
    trainer = Rollouts(policy)
    patch(trainer)
    return freshness(Pair(policy.trained(), lambda: None, policy.logp, trainer.rollout))


class CountingWorker:
    """Counts every hand-over, whether or not anything carries it."""

    def __init__(self, engine: Engine, transfer: Callable[[dict[str, Tensor]], None] | None) -> None:
        self.engine, self.transfer, self.model_version = engine, transfer, 0

    def push(self, state: dict[str, Tensor]) -> None:
        if self.transfer is not None:
            self.transfer(state)
        self.model_version += 1


class AcknowledgedWorker(CountingWorker):
    """Has a transfer or takes the engine's own, and counts when it is done."""

    def push(self, state: dict[str, Tensor]) -> None:
        (self.transfer or self.engine.load)(state)
        self.model_version += 1


def of_worker(kind: type[CountingWorker]) -> Check:
    """Check a worker that was injected without a transfer for adapters."""
    policy = Policy()
    engine = Engine(policy.base)
    worker = kind(engine, None)

    def sync() -> None:
        worker.push({"base": policy.merged()})

    return freshness(Pair(policy.trained(), sync, policy.logp, engine.logp, lambda: worker.model_version))


SPECIMENS = (
    Specimen("OFF-01", of_sync, unmerge_then_load, load_then_unmerge),
    Specimen("OFF-02", of_patch, patch_by_name, patch_what_is_there),
    Specimen("OFF-03", of_sync, send_what_the_engine_names, send_merged),
    Specimen("OFF-05", of_worker, CountingWorker, AcknowledgedWorker),
)
UNDECIDABLE = {
    "OFF-04": "the report names a sleep level and a way to gather shards, and no mechanism: what the engine forgets "
    "while it sleeps is in its memory, not in a formula"
}
