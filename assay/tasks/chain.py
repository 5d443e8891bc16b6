"""The seed task: two chained operations on digits, answered in exactly two digits.

``a op b op c =``, evaluated left to right modulo 10. The response is the value after the first operation,
then the final value: ``3+4×5=`` is answered ``75``. There are 10·2·10·2·10 = 4,000 problems and 100 possible
responses, so every expectation can be enumerated.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from assay.core.streams import Stream, uniforms
from assay.errors import ConfigError, InputError
from assay.types import Outcome

OPERATIONS = "+×"
VOCABULARY = "0123456789" + OPERATIONS + "="
DIGITS = 10
PROMPT_LENGTH = 6
RESPONSE_LENGTH = 2
PROBLEMS = DIGITS**3 * len(OPERATIONS) ** 2
SPLITS = ("train", "test")
_PROMPT = re.compile(f"[0-9][{OPERATIONS}][0-9][{OPERATIONS}][0-9]=")


@dataclass(frozen=True)
class Problem:
    """One problem, known by its prompt alone; the answer is always recomputed from it.

    Attributes:
        prompt: six characters such as ``"3+4×5="``.
    """

    prompt: str

    def __post_init__(self) -> None:
        if not _PROMPT.fullmatch(self.prompt):
            raise InputError(f"prompt {self.prompt!r}: expected digit, + or ×, digit, + or ×, digit, =")

    def answer(self) -> tuple[int, int]:
        """Return the value after the first operation, then the final value."""
        a, first, b, second, c = list(self.prompt)[:5]
        middle = _apply(first, int(a), int(b))
        return middle, _apply(second, middle, int(c))

    def verify(self, response: tuple[int, ...]) -> Outcome:
        """Score a response strictly: 1.0 only when both digits are right, else 0.0."""
        right = response == self.answer()
        return Outcome(1.0 if right else 0.0, "right" if right else "wrong")


def _apply(operation: str, left: int, right: int) -> int:
    return (left + right if operation == "+" else left * right) % DIGITS


def draw_splits(seed: int, *, train: int, test: int) -> dict[str, tuple[Problem, ...]]:
    """Draw disjoint training and test problems, uniformly without replacement from all 4,000.

    Args:
        seed: names the draw; training size does not change which order the problems come in.
        train: number of training problems, at least 1.
        test: number of test problems, at least 1.

    Raises:
        ConfigError: more problems are asked for than exist.
    """
    if train + test > PROBLEMS:
        raise ConfigError(
            f"{train} training and {test} test problems: only {PROBLEMS} different problems exist, ask for fewer"
        )
    digits = VOCABULARY[:DIGITS]
    every = ["".join(parts) for parts in itertools.product(digits, OPERATIONS, digits, OPERATIONS, digits, "=")]
    order = uniforms(seed, Stream.DATA, 1, problem=list(range(PROBLEMS)), sample=[0] * PROBLEMS)[:, 0].argsort()
    drawn = [Problem(every[i]) for i in order[: train + test].tolist()]
    return {"train": tuple(drawn[:train]), "test": tuple(drawn[train:])}


def encode_prompts(problems: tuple[Problem, ...]) -> Int[Tensor, "P S"]:
    """Return the prompt tokens of each problem; a digit's token is the digit itself."""
    return torch.tensor([[VOCABULARY.index(c) for c in problem.prompt] for problem in problems])


def encode_answers(problems: tuple[Problem, ...]) -> Int[Tensor, "P T"]:
    """Return the right response of each problem."""
    return torch.tensor([problem.answer() for problem in problems])


def right_responses(problems: tuple[Problem, ...]) -> Int[Tensor, " P"]:
    """Return the number of each problem's right response among all ``DIGITS ** RESPONSE_LENGTH``, in
    lexicographic order."""
    places = torch.tensor([DIGITS**place for place in reversed(range(RESPONSE_LENGTH))])
    return (encode_answers(problems) * places).sum(1)


def tree_rewards(problems: tuple[Problem, ...]) -> Bool[Tensor, "P M"]:
    """Return whether each response to each problem is right, over all responses in lexicographic order."""
    return torch.arange(DIGITS**RESPONSE_LENGTH) == right_responses(problems)[:, None]
