"""The sections of a language recipe. What contradicts within one section is refused here, the rest in ``recipe``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, Strict, StringConstraints, field_validator, model_validator

from assay.training.sections import Count, NonNegative, Positive, Rate, Section

HELD_OUT = 100
"""Test problems where the recipe names neither a number nor a file."""

Words = Annotated[tuple[Annotated[str, StringConstraints(min_length=1)], ...], Field(strict=False)]
Tries = Annotated[tuple[Annotated[Positive, Strict()], ...], Field(strict=False)]
Mirrors = Annotated[tuple[Literal["trackio", "tensorboard", "wandb"], ...], Field(strict=False)]
Controls = Annotated[tuple[Literal["rejection", "random_reward", "format_only"], ...], Field(strict=False)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Named = Annotated[str, StringConstraints(min_length=1)]


class PolicyOptions(Section):
    """How the model is held, prompted and run."""

    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Type of the weights and of what is computed from them."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the weights are, and everything that is computed from them."""
    chat_template: bool = False
    """Whether a plain prompt is put into the tokenizer's chat template as a user's turn."""
    system_prompt: str = ""
    """A system turn before it; needs chat_template."""
    lora_alpha: NonNegative = 0.0
    """The adapters' output is multiplied by this over their rank; 0: twice the rank. Needs lora. TRL's."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass in place of keeping them. TRL's, which has it on."""
    token_budget: Positive = 8192
    """Tokens that one forward and backward reads at once. It sets memory and speed; results change by rounding."""
    decode_rows: Positive = 64
    """Responses decoded at once; likewise."""
    max_prompt_length: Count = 0
    """Longest prompt; a longer one is an error. 0: what the context leaves beside the longest response."""
    engine: Literal["own", "vllm"] = "own"
    """What draws the responses of training."""

    @model_validator(mode="after")
    def _no_contradiction(self) -> PolicyOptions:
        if self.system_prompt and not self.chat_template:
            raise ValueError(
                f"system_prompt = {self.system_prompt!r} can do nothing without a chat; set policy.chat_template = true"
            )
        if self.engine == "vllm" and self.dtype == "float64":
            raise ValueError(
                "dtype = 'float64': vllm has no such precision; use float32 or bfloat16, or engine = 'own'"
            )
        return self


class TaskOptions(Section):
    """Which rows of the data are problems, and which of them are held out."""

    prompt_column: Named = "prompt"
    """Column of the prompts: text, or the turns of a chat."""
    answer_column: Named = "answer"
    """Column of the right answers."""
    train_problems: Count = 0
    """Training problems, drawn by the seed. 0: all rows that are left; reasoning-gym makes as many as are asked for."""
    test_problems: Positive | None = None
    """Test problems held out from the data, drawn by the seed; where absent, 100, or all rows of test_data."""
    split_by: str = ""
    """Rows with the same value of this column stay on one side of the split."""
    test_data: str = ""
    """Test problems from here, in place of held-out rows; written as data is."""
    stop: Words = ()
    """Strings that end a response, besides the tokens that end one for the model."""
    options: dict[str, Any] = {}
    """What the reasoning-gym dataset is made with."""

    @property
    def held_out(self) -> int:
        """Return how many rows of the data are test problems; 0 where they come from a file of their own."""
        return 0 if self.test_data else self.test_problems or HELD_OUT

    @model_validator(mode="after")
    def _one_source_of_test_problems(self) -> TaskOptions:
        if self.test_data and self.test_problems:
            raise ValueError(
                f"test_problems = {self.test_problems} can do nothing beside task.test_data, all of whose rows are "
                "test problems; leave one of them out"
            )
        if self.test_data and self.split_by:
            raise ValueError(
                f"split_by = {self.split_by!r} can do nothing beside task.test_data: the files are the split; leave "
                "one of them out"
            )
        return self

    @field_validator("stop")
    @classmethod
    def _once_each(cls, stop: tuple[str, ...]) -> tuple[str, ...]:
        return _distinct(stop)


class GradingOptions(Section):
    """What a grader may spend, and how it is called."""

    timeout: Rate = 5.0
    """Seconds a response; beyond them the outcome is a timeout."""
    memory: Annotated[int, Field(ge=64, le=2**20)] = 2048
    """MiB of the grader's process; beyond them the outcome is an error."""
    convention: Literal["auto", "trl", "verl"] = "auto"
    """How a reward function is called: TRL's signature, verl's compute_score, or whichever its parameters name."""
    format: str = ""
    """Regular expression that a response in the right format is matched by as a whole, white space at its ends aside.
    Where absent, the grader's word: right or wrong is in format, unparseable is not. It changes no reward."""
    self_test: Count = 20
    """Problems on which the grader is tried before training: gold is right, spoilt gold and nothing are not."""

    @field_validator("format")
    @classmethod
    def _is_an_expression(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression ({error})") from error
        return pattern


class WarmupOptions(Section):
    """Supervised steps on prompt and answer, before RL."""

    steps: Count = 0
    """Steps. 0: RL starts from the model as it was loaded."""
    problems_per_step: Positive = 8
    """Problems a step."""
    learning_rate: Rate = 1e-5
    """AdamW learning rate, constant."""
    weight_decay: NonNegative = 0.0
    """AdamW weight decay."""
    max_grad_norm: Rate = 1.0
    """Gradients are clipped to this norm."""


class RLOptions(Section):
    """On-policy steps on the grader's reward. What is absent here is the algorithm's own."""

    algorithm: str = "rloo"
    """The estimator, by name."""
    steps: Count = 100
    """Batches of responses that are drawn and trained on. TRL's max_steps counts optimizer steps."""
    problems_per_step: Positive = 8
    """Problems a step."""
    num_generations: Positive = 8
    """Responses a problem: a group. TRL's."""
    num_iterations: Annotated[int, Field(ge=1, le=1000)] = 1
    """Optimizer steps on each batch. From the second on it is off-policy. TRL's."""
    learning_rate: Rate = 1e-5
    """AdamW learning rate; the optimizer is a fresh one. TRL's."""
    weight_decay: NonNegative = 0.0
    """AdamW weight decay. TRL's."""
    max_grad_norm: Rate = 1.0
    """Gradients are clipped to this norm. TRL's."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate goes over the run: as it is, or to 0 by a line or half a cosine. TRL's, with linear."""
    max_completion_length: Positive = 256
    """Longest response, the token that ends it included. TRL's."""
    temperature: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    """What logits are divided by, in sampling and in scoring alike. TRL's."""
    top_k: Count = 0
    """Tokens that may be drawn, the likeliest; 0: all. In scoring too, the cut held fixed. TRL's scores over all."""
    top_p: Fraction = 1.0
    """Mass of the likeliest tokens that may be drawn; 1: all. In scoring too, likewise."""
    beta: NonNegative | None = None
    """Weight of the KL penalty, in reward per nat. Where absent, 0.03, or 0 where the algorithm cannot have the KL in
    the reward. TRL's is in the reward for RLOO and in the loss for GRPO."""
    kl: str | None = None
    """Where the penalty enters: none, reward, reward_to_go, or one of the losses. Where absent, reward, or none where
    beta is 0."""
    epsilon: NonNegative | None = None
    """How far below 1 a ratio may fall before its gradient is cut. TRL's, but for the weights of cispo."""
    epsilon_high: NonNegative | None = None
    """How far above 1 it may rise; where absent, epsilon if that is given. TRL's, but for the weights of cispo."""
    delta: NonNegative | None = None
    """Largest ratio that still counts against a token of negative advantage, for dual_clip. TRL's."""
    mask_truncated_completions: bool = False
    """A response cut off at max_completion_length leaves its group. In TRL it leaves the loss and stays in the group's
    mean."""
    entropy: float | None = None
    """Weight of the entropy bonus, in reward per nat."""
    eps: NonNegative | None = None
    """Added to a standard deviation."""
    k: Positive | None = None
    """Tries of pass@k, for pass_at_k."""
    length: Positive | None = None
    """The constant that divides every sum over tokens, for dr_grpo; where absent, max_completion_length, as in TRL."""
    level: Literal["token", "sequence"] | None = None
    """Whether the weight that corrects for the sampler is a token's or a whole response's, for tis and mis."""
    weight_low: NonNegative | None = None
    """Smallest importance weight, an absolute number, for cispo and mis."""
    weight_high: NonNegative | None = None
    """Largest importance weight, an absolute number, for cispo, tis and mis."""
    dynamic_sampling: bool | None = None
    """Whether groups of one reward are dropped from every count."""
    overlong_length: Positive | None = None
    """Response length from which the overlong penalty is -1. Needs overlong_cache."""
    overlong_cache: Positive | None = None
    """Tokens below that over which it grows."""
    max_sampler_gap: Rate | None = None
    """Largest difference of sampler and trainer in a token's log-probability, in nats; beyond it the run stops. Where
    absent, 1e-6 for float64, 0.01 for float32, 1 for bfloat16 and for vllm."""

    @field_validator("temperature")
    @classmethod
    def _above_zero(cls, temperature: float) -> float:
        if temperature <= 0:
            raise ValueError(
                "at 0 every response of a group is the likeliest one, and there is nothing to learn from; use a value "
                "above 0 (evaluation.greedy measures the likeliest responses)"
            )
        return temperature


class EvaluationOptions(Section):
    """Evaluation under frozen weights, from a stream of random numbers of its own."""

    samples: Positive = 4
    """Responses a problem, on each split, at each point."""
    greedy: bool = True
    """Whether the likeliest response to each problem is graded as well."""
    pass_k: Tries = (1,)
    """The k of every pass@k, estimated without bias from the samples."""
    every: Count = 0
    """RL steps between greedy evaluations on the test problems; 0: none."""
    controls: Controls = ()
    """Runs of the same budget to compare with: supervised on its own right answers, a reward that is a coin, a reward
    for the format alone."""
    bounds: Count = 0
    """Forward passes a test problem that certify bounds on its success probability; 0: none."""

    @field_validator("pass_k", "controls")
    @classmethod
    def _once_each(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        return _distinct(values)

    @model_validator(mode="after")
    def _enough_samples(self) -> EvaluationOptions:
        if self.pass_k and max(self.pass_k) > self.samples:
            raise ValueError(
                f"pass_k = {list(self.pass_k)}: pass@{max(self.pass_k)} needs as many samples a problem, and "
                f"evaluation.samples = {self.samples}; use {max(self.pass_k)} samples or more"
            )
        return self


class TrackingOptions(Section):
    """Where the metrics go besides ``metrics.jsonl``, which is the record."""

    mirrors: Mirrors = ()
    """Trackers that are sent every step's metrics."""
    project: Named = "assay"
    """The project's name there."""

    @field_validator("mirrors")
    @classmethod
    def _once_each(cls, mirrors: tuple[str, ...]) -> tuple[str, ...]:
        return _distinct(mirrors)


def _distinct(values: Sequence[Any]) -> tuple[Any, ...]:
    twice = sorted({value for value in values if values.count(value) > 1})
    if twice:
        raise ValueError(f"{twice[0]!r} is there twice; name each once")
    return tuple(values)
