"""TRL 1.16 as a whole: a real ``GRPOTrainer`` or ``RLOOTrainer`` that trains a tiny GPT-2 on prescribed responses.

Only ``_generate_single_turn`` is replaced: it answers with the responses that the audit wants next. Rewards,
advantages, masks, buffering, shuffling, micro-batches, loss, accumulation and backward are TRL's, Accelerate's and
Transformers' own. The learning rate is zero; what the optimizer would have been given is read before its step.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.audit.adapters.installed import quiet
from assay.audit.adapters.tiny_gpt2 import WORDS, CausalLM, tiny_models, tiny_tokenizer, word_ids
from assay.audit.adapters.trl_settings import in_force, objective, trl_class, trl_config, trl_versions
from assay.audit.call import Group
from assay.audit.check import SubjectError
from assay.audit.gradients import Prompted, prompted
from assay.audit.trainers import Step, TrainerSubject
from assay.tree.prefix import Grammar, PrefixTree, prefix_tree

TOLERANCE = 2e-6
WHY = "TRL's model head returns float32 log-probabilities and its rewards and advantages are float32"
REACHES = (
    "the whole path of {}: rewards, advantages, masks, buffer, shuffle, micro-batches, loss, accumulation, backward"
)
MISSES = (
    "generation, which is prescribed; what comes after the gradient: clipping its norm, the optimizer; other models"
)


def grpo_trainer(
    pairs: Mapping[str, str], *, group_size: int = 2, prompts: tuple[str, ...] = ("a",), length: int = 3
) -> TrainerSubject:
    """Make the subject ``trl.grpo_trainer``; see :func:`_subject`."""
    return _subject("GRPO", pairs, group_size, prompts, length)


def rloo_trainer(
    pairs: Mapping[str, str], *, group_size: int = 2, prompts: tuple[str, ...] = ("a",), length: int = 3
) -> TrainerSubject:
    """Make the subject ``trl.rloo_trainer``; see :func:`_subject`."""
    return _subject("RLOO", pairs, group_size, prompts, length)


TRAINERS = {"trl.grpo_trainer": grpo_trainer, "trl.rloo_trainer": rloo_trainer}


def _subject(
    trainer: str, pairs: Mapping[str, str], group_size: int, prompts: tuple[str, ...], length: int
) -> TrainerSubject:
    """Build a tiny policy, its reference and a trainer of them.

    Args:
        trainer: ``"GRPO"`` or ``"RLOO"``.
        pairs: TRL's own settings.
        group_size: responses to each prompt.
        prompts: of a batch, each of a few words of :data:`WORDS`. A response to the first is right when it has an odd
            number of a; to the others, each b is worth a quarter. Both are exact in float32.
        length: longest response in tokens.
    """
    versions = trl_versions()
    with tempfile.TemporaryDirectory() as directory, _quiet():
        model, reference = tiny_models(Path(directory))
        config = trl_config(trainer, pairs, **_fixed(trainer, pairs, group_size * len(prompts), group_size, directory))
        tree = prefix_tree(Grammar(tokens=len(WORDS), max_length=length, end=0))
        policy, frozen = CausalLM(model), CausalLM(reference)
        problems = [
            prompted(policy, frozen, prompt, torch.tensor(word_ids(prompt)), tree, _rewards(number, tree))
            for number, prompt in enumerate(prompts)
        ]
        step = _step(trainer, config, model, problems)
    return TrainerSubject(
        f"trl.{trainer.lower()}_trainer",
        step,
        policy,
        problems,
        group_size,
        objective=objective(trainer, config),
        settings=in_force(trainer, config),
        versions=versions,
        reaches=REACHES.format(f"{trainer}Trainer"),
        misses=MISSES,
        tolerance=TOLERANCE,
        why=WHY,
    )


def _rewards(number: int, tree: PrefixTree) -> Float[Tensor, " M"]:
    """Return the reward of each response to a prompt by its number."""
    if number == 0:
        return ((tree.responses == WORDS.index("a")).sum(1) % 2).double()
    return (tree.responses == WORDS.index("b")).sum(1).double() / 4


def _fixed(trainer: str, pairs: Mapping[str, str], rows: int, group_size: int, directory: str) -> dict[str, object]:
    """Return the fields that make one generation hold every prompt, and that keep the weights where they are."""
    asked = trl_config(trainer, pairs)
    if rows % asked.steps_per_generation:
        raise SubjectError(
            f"{rows} responses cannot be split into steps_per_generation = {asked.steps_per_generation} micro-batches"
        )
    passes, accumulated = asked.steps_per_generation * asked.num_iterations, asked.gradient_accumulation_steps
    if passes % accumulated and accumulated % passes:
        raise SubjectError(
            f"steps_per_generation x num_iterations = {passes} and gradient_accumulation_steps = {accumulated}: one "
            "must divide the other, or a step mixes what two calls prescribed"
        )
    return {
        "output_dir": directory,
        "num_generations": group_size,
        "per_device_train_batch_size": rows // asked.steps_per_generation,
        "max_steps": max(1, passes // accumulated),
        "learning_rate": 0.0,
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "shuffle_dataset": False,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
    }


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings, log lines and progress bars of the libraries."""
    bars = importlib.import_module("transformers.utils.logging")
    bars.disable_progress_bar()
    try:
        with quiet():
            yield
    finally:
        bars.enable_progress_bar()


@contextlib.contextmanager
def _short_collections() -> Iterator[None]:
    """Keep what exists already out of the garbage collection that starts every run."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _step(trainer: str, config: Any, model: nn.Module, problems: Sequence[Prompted]) -> Step:
    """Return what runs the trainer from a rollout to the optimizer, once for every call."""
    script: dict[int, list[list[int]]] = {}
    prompts = [place.problem.name for place in problems]
    rewards = {
        place.problem.name: dict(zip(map(tuple, _responses(place)), place.problem.reward.tolist(), strict=True))
        for place in problems
    }

    def reward(prompts: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [rewards[prompt][tuple(ids)] for prompt, ids in zip(prompts, completion_ids, strict=True)]

    gradients: list[dict[str, Tensor]] = []
    made = _build(trainer, config, model, reward, prompts, gradients)

    def prescribed(prompt_ids: list[list[int]], *_: Any, **__: Any) -> Any:
        asked = [prompts.index(" ".join(WORDS[word] for word in ids)) for ids in prompt_ids]
        left = {number: iter(rows) for number, rows in script.items()}
        responses = [list(next(left[number])) for number in asked]
        return (responses, None) if trainer == "GRPO" else responses

    made._generate_single_turn = prescribed

    def step(groups: Sequence[Group]) -> dict[str, Tensor]:
        script.update({number: [_responses(problems[number])[row] for row in members] for number, members in groups})
        gradients.clear()
        with _quiet(), torch.random.fork_rng(), _short_collections():
            made.train()
        return {name: torch.stack([each[name] for each in gradients]).mean(0) for name in gradients[0]}

    return step


def _build(
    trainer: str, config: Any, model: nn.Module, reward: Any, prompts: list[str], gradients: list[dict[str, Tensor]]
) -> Any:
    """Return TRL's trainer, with a callback that keeps the gradients of each optimizer step."""
    transformers, datasets = importlib.import_module("transformers"), importlib.import_module("datasets")

    class Keep(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})

    with torch.random.fork_rng():
        made = trl_class(trainer, "Trainer")(
            model=model,
            reward_funcs=reward,
            args=config,
            train_dataset=datasets.Dataset.from_dict({"prompt": prompts}),
            processing_class=tiny_tokenizer(),
            callbacks=[Keep()],
        )
    made.remove_callback(transformers.PrinterCallback)
    return made


def _responses(place: Prompted) -> list[list[int]]:
    tree = place.problem.tree
    return [row[:length] for row, length in zip(tree.responses.tolist(), tree.lengths.tolist(), strict=True)]
