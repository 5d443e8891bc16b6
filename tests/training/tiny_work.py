"""A run of a tiny language model in memory: problems, a grader of tokens, engines, and a state to carry on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from policies.tiny_policies import naive_logp, taken
from torch import Tensor

from assay.core.streams import Stream
from assay.policies.causal.engine import OwnEngine
from assay.policies.causal.model import CausalPolicy
from assay.policies.causal.tokens import Codec
from assay.policies.engines import Decoding, Drawn, Engine, Request
from assay.training.language.recipe import LanguageRecipe, build_language_recipe
from assay.training.language.state import LanguageState, begin, begin_rl
from assay.training.language.steps import Workplace, needs_reference
from assay.types import Outcome, Response, TextProblem

EOS = 1
"""What ends a response of the tiny models."""

Score = Callable[[TextProblem, Response], float | None]


def tiny_recipe(**sections: Any) -> LanguageRecipe:
    """Return a recipe in float64 whose model and data are never opened."""
    policy = {"dtype": "float64", **sections.pop("policy", {})}
    given = {"model": "package:none", "data": "rows.jsonl", "policy": policy, **sections}
    return build_language_recipe(given, place="test", base=Path("/base"))


def words(vocabulary: int) -> Any:
    """Return a tokenizer of one word a token: ``t0``, ``</s>``, ``t2``, ..."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = {("</s>" if number == EOS else f"t{number}"): number for number in range(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(names, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


def grader_of(score: Score) -> Callable[[Sequence[TextProblem], Sequence[Response]], list[Outcome]]:
    """Return a grader that asks a function; above zero is right, None an error."""

    def grade(problems: Sequence[TextProblem], responses: Sequence[Response]) -> list[Outcome]:
        made = [score(problem, response) for problem, response in zip(problems, responses, strict=True)]
        return [Outcome(value, "error" if value is None else "right" if value > 0 else "wrong") for value in made]

    return grade


def even(problem: TextProblem, response: Response) -> float:
    """Score a response by the parity of its tokens' sum and of its problem's number."""
    return float((sum(response.tokens) + problem.number) % 2)


def workplace(
    policy: CausalPolicy,
    recipe: LanguageRecipe,
    *,
    score: Score = even,
    engine: Engine | None = None,
    problems: int = 4,
    on_rollout: Callable[[Any], None] = lambda rollout: None,
) -> Workplace:
    """Return what a run works with; problem n has n + 1 prompt tokens, and its number's word for an answer."""
    prompts = [tuple((number + place) % policy.vocabulary for place in range(number + 1)) for number in range(problems)]
    tokenizer = words(policy.vocabulary)
    made = [
        TextProblem(10 + number, " ".join(tokenizer.convert_ids_to_tokens(prompt)), f" t{2 + number % 2}")
        for number, prompt in enumerate(prompts)
    ]
    drawing = engine or OwnEngine(policy, rows=8, prompt_tokens=64)
    codec = Codec(tokenizer, stop_tokens=[EOS])
    return Workplace(recipe, made, prompts, codec, drawing, grader_of(score), on_rollout)


def rl_state(policy: CausalPolicy, recipe: LanguageRecipe, *, reference: CausalPolicy | None = None) -> LanguageState:
    """Return the state at the beginning of RL, with another reference where one is given."""
    from assay.training.language.recipe import estimator_of

    state = begin(policy, recipe.warmup, base="base")
    begin_rl(state, recipe.rl, with_reference=needs_reference(estimator_of(recipe)[1]))
    if reference is not None and state.reference is not None:
        state.reference = reference
    return state


class Watched(torch.optim.Optimizer):
    """An optimizer that keeps the gradients it is given and moves nothing."""

    def __init__(self, policy: CausalPolicy) -> None:
        self.names = [name for name, _ in policy.trained()]
        super().__init__([value for _, value in policy.trained()], {"lr": 0.0})
        self.gradients: list[dict[str, Tensor]] = []

    def step(self, closure: Any = None) -> None:
        """Keep the gradients."""
        (group,) = self.param_groups
        self.gradients.append({n: p.grad.clone() for n, p in zip(self.names, group["params"], strict=True)})


class Replay:
    """An engine that says what it is told to, with the log-probabilities of a plain forward of the same weights."""

    def __init__(self, model: Any, groups: Sequence[Sequence[tuple[int, ...]]], *, shift: float = 0.0) -> None:
        self.model, self.groups, self.shift = model, groups, shift
        self._version = -1

    @property
    def version(self) -> int:
        """Return the version last told."""
        return self._version

    def load(self, named_weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take note of the version."""
        self._version = version

    @torch.no_grad()
    def generate(
        self, requests: Sequence[Request], decoding: Decoding, *, seed: int, stream: Stream, step: int
    ) -> list[list[Drawn]]:
        """Return the responses that were given."""
        return [
            [self._said(request.prompt, tokens, decoding) for tokens in group]
            for request, group in zip(requests, self.groups, strict=True)
        ]

    def _said(self, prompt: tuple[int, ...], tokens: tuple[int, ...], decoding: Decoding) -> Drawn:
        how = {"temperature": decoding.temperature, "top_k": decoding.top_k, "top_p": decoding.top_p}
        logp = taken(naive_logp(self.model, prompt, tokens, **how), tokens) + self.shift
        return Drawn(tokens, tuple(logp.tolist()), tokens[-1] not in decoding.stop_tokens)
