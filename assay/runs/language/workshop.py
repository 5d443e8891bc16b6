"""What a language run is made of, put together from its recipe: problems, model, grader, sampler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from assay.errors import ConfigError
from assay.policies.causal.engine import OwnEngine
from assay.policies.causal.loading import Loaded, load
from assay.policies.causal.model import CausalPolicy
from assay.policies.causal.tokens import Codec
from assay.policies.engines import Engine
from assay.tasks.grading import WorkerGrader
from assay.tasks.selftest import SelfTest, self_test
from assay.tasks.text import TextTask, build_task
from assay.training.language.recipe import LanguageRecipe, check_problems
from assay.training.language.rollout import encode
from assay.types import TextProblem

Record = dict[str, Any]
Problems = dict[str, tuple[TextProblem, ...]]


@dataclass(frozen=True)
class Workshop:
    """Everything that the phases of a run share.

    Attributes:
        recipe: the run's settings.
        problems: by split.
        prompts: their tokens, by split.
        loaded: the model and its tokenizer.
        codec: how the task uses the tokenizer.
        grader: what scores responses.
    """

    recipe: LanguageRecipe
    problems: Problems
    prompts: dict[str, list[tuple[int, ...]]]
    loaded: Loaded
    codec: Codec
    grader: WorkerGrader

    def engine(self, policy: CausalPolicy) -> Engine:
        """Return what draws responses from a policy by itself, for evaluation and, where asked for, for training."""
        options = self.recipe.policy
        ended = self.codec.ended if self.codec.stop else None
        return OwnEngine(policy, rows=options.decode_rows, prompt_tokens=options.token_budget, ended=ended)


def read_task(recipe: LanguageRecipe) -> TextTask:
    """Read and split the data that a recipe names.

    Raises:
        ConfigError: the data cannot be read, or there are fewer problems than the recipe asks for.
    """
    options = recipe.task
    task = build_task(
        recipe.data,
        seed=recipe.seed,
        train_problems=options.train_problems,
        test_problems=options.held_out,
        prompt_column=options.prompt_column,
        answer_column=options.answer_column,
        split_by=options.split_by,
        test_data=options.test_data,
        options=options.options,
    )
    check_problems(recipe, train=len(task.train), test=len(task.test))
    unanswered = [problem.number for problem in task.train if problem.answer is None]
    if recipe.warmup.steps and unanswered:
        raise ConfigError(
            f"warmup.steps = {recipe.warmup.steps}: problem {unanswered[0]} has no answer to learn; set 0"
        )
    return task


def load_model(recipe: LanguageRecipe, place: str | None = None) -> Loaded:
    """Load the model that a recipe names, as the recipe has it, or another of the same shape.

    Args:
        recipe: the run's settings.
        place: of the other; None for the recipe's own.
    """
    options = recipe.policy
    return load(
        place or recipe.model,
        dtype=options.dtype,
        lora=recipe.lora,
        lora_alpha=options.lora_alpha,
        checkpointing=options.gradient_checkpointing,
        seed=recipe.seed,
        device=options.device,
    )


def data_facts(task: TextTask, tested: SelfTest | None) -> Record:
    """Return what a run records of its data and of the test of its grader."""
    claims = [asdict(claim) for claim in tested.claims] if tested else []
    return {
        "source": task.name,
        "sources": [asdict(source) for source in task.sources],
        "overlap": asdict(task.contamination),
        "self_test": {"problems": tested.problems if tested else 0, "claims": claims},
    }


@contextmanager
def opened(recipe: LanguageRecipe, problems: Problems) -> Iterator[Workshop]:
    """Load the model, encode every prompt and start the grader; it is closed on the way out.

    Raises:
        ConfigError: the model cannot be loaded, a prompt does not fit its context, or the grader cannot be started.
        InputError: a prompt is empty.
    """
    options = recipe.policy
    loaded = load_model(recipe)
    codec = Codec(
        loaded.tokenizer,
        stop_tokens=loaded.stop_tokens,
        stop=recipe.task.stop,
        chat=options.chat_template,
        system=options.system_prompt,
    )
    longest = loaded.context - recipe.rl.max_completion_length
    if longest < 1:
        raise ConfigError(
            f"rl.max_completion_length = {recipe.rl.max_completion_length} leaves no room for a prompt in the model's "
            f"context of {loaded.context} tokens; use fewer"
        )
    longest = min(longest, options.max_prompt_length or longest)
    prompts = {split: encode(codec, group, longest=longest) for split, group in problems.items()}
    grading = recipe.grading
    with WorkerGrader(
        recipe.reward, timeout=grading.timeout, memory=grading.memory, convention=grading.convention
    ) as grader:
        yield Workshop(recipe, problems, prompts, loaded, codec, grader)


def tested(recipe: LanguageRecipe, problems: Sequence[TextProblem], workshop: Workshop) -> SelfTest | None:
    """Try the grader on answers that are known; None where the recipe asks for none."""
    if not recipe.grading.self_test:
        return None
    return self_test(
        workshop.grader,
        list(problems[: recipe.grading.self_test]),
        encode=lambda text: workshop.loaded.tokenizer(text, add_special_tokens=False).input_ids,
    )


def settings_of(recipe: LanguageRecipe) -> Record:
    """Return every setting that is given, as ``config.toml`` and the evidence hold it."""
    return recipe.model_dump(mode="json", exclude_none=True)
