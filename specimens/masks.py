"""Masks that hold tokens the policy did not sample, or miss tokens that it did.

A toy chat template stands in for a real one: a turn is a start token, the role's token, the content and an end token,
and tool results that follow one another share one user turn.
"""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from assay.audit.invariants.mask_truth import Record, mask_is_truth
from assay.audit.invariants.masking import masked_inert
from specimens.bench import Specimen

PAD, STOP, END_OF_TURN = 0, 2, 3
START, END, USER, POLICY, RESULT = 20, 21, 22, 23, 24
ASSUMED_LINE_END, LINE_END = 10, 11
Tokens = Int[Tensor, "B T"]
Mask = Bool[Tensor, "B T"]
Message = tuple[int, tuple[int, ...]]
"""A role's token and the content."""


def up_to(stops: Bool[Tensor, "B T"]) -> Mask:
    """Return the positions up to the first stop, that one included."""
    return stops.cumsum(1) - stops.int() == 0


def up_to_the_tokenizers_stop(tokens: Tokens, tokenizer_stop: int, declared: tuple[int, ...]) -> Mask:
    return up_to(tokens == tokenizer_stop)


def up_to_any_declared_stop(tokens: Tokens, tokenizer_stop: int, declared: tuple[int, ...]) -> Mask:
    return up_to(torch.isin(tokens, torch.tensor(declared)))


def length_of_what_is_trained(completion: Mask, truncated: Bool[Tensor, " B"]) -> Int[Tensor, " B"]:
    return (completion & ~truncated[:, None]).sum(1)


def length_of_what_was_sampled(completion: Mask, truncated: Bool[Tensor, " B"]) -> Int[Tensor, " B"]:
    return completion.sum(1)


def all_after_the_prompt(tokens: Tokens, prompt: int, by_policy: Mask) -> Mask:
    return (torch.arange(tokens.shape[1]) >= prompt).expand_as(tokens)


def what_the_policy_wrote(tokens: Tokens, prompt: int, by_policy: Mask) -> Mask:
    return by_policy & all_after_the_prompt(tokens, prompt, by_policy)


def render(messages: list[Message]) -> tuple[list[int], list[bool]]:
    """Return the tokens of a conversation, and which of them the policy samples: its content and the end token."""
    tokens: list[int] = []
    sampled: list[bool] = []
    for number, (role, content) in enumerate(messages):
        follows = role == RESULT and number > 0 and messages[number - 1][0] == RESULT
        if follows:
            del tokens[-1:], sampled[-1:]
        head = [RESULT] if follows else [START, USER, RESULT] if role == RESULT else [START, role]
        body = [*content, END]
        tokens, sampled = [*tokens, *head, *body], [*sampled, *[False] * len(head), *[role == POLICY] * len(body)]
    return tokens, sampled


def each_message_alone(messages: list[Message]) -> tuple[Tokens, Mask]:
    parts = [render([message]) for message in messages]
    return torch.tensor([sum((tokens for tokens, _ in parts), [])]), torch.tensor([sum((own for _, own in parts), [])])


def whole_conversation(messages: list[Message]) -> tuple[Tokens, Mask]:
    tokens, sampled = render(messages)
    return torch.tensor([tokens]), torch.tensor([sampled])


def closed_by_numbers(prompt: list[int], sampled: list[int], closing: list[int]) -> tuple[Tokens, Mask]:
    """End the turn with one tokenizer's numbers, and train on them."""
    ended = sampled if sampled[-1] == END_OF_TURN else [*sampled, END_OF_TURN, ASSUMED_LINE_END]
    return torch.tensor([prompt + ended]), torch.tensor([[False] * len(prompt) + [True] * len(ended)])


def closed_by_the_template(prompt: list[int], sampled: list[int], closing: list[int]) -> tuple[Tokens, Mask]:
    end = [] if sampled[-1] == closing[0] else closing
    tokens = torch.tensor([prompt + sampled + end])
    return tokens, torch.tensor([[False] * len(prompt) + [True] * len(sampled) + [False] * len(end)])


def one_width_for_all_rows(tokens: Tokens, prompt: Int[Tensor, " B"], total: Int[Tensor, " B"]) -> Mask:
    """Keep as many last positions of each row as the longest completion has."""
    keep = int((total - prompt).max())
    place = torch.arange(tokens.shape[1])
    return (place >= tokens.shape[1] - keep) & (place < total[:, None])


def each_rows_own_start(tokens: Tokens, prompt: Int[Tensor, " B"], total: Int[Tensor, " B"]) -> Mask:
    place = torch.arange(tokens.shape[1])
    return (place >= prompt[:, None]) & (place < total[:, None])


def unshifted(tokens: Tokens, prompt: int) -> Mask:
    """Mask by input position, where log-probabilities stand at the position before the token they score."""
    return (torch.arange(tokens.shape[1]) >= prompt).expand_as(tokens)[:, :-1]


def shifted(tokens: Tokens, prompt: int) -> Mask:
    return (torch.arange(tokens.shape[1]) >= prompt).expand_as(tokens)[:, 1:]


def yes(*sampled: int) -> Mask:
    """Return one row of a mask."""
    return torch.tensor([sampled]) > 0


STOPPED = torch.tensor([[5, 7, PAD, PAD], [5, 6, STOP, PAD], [6, 5, 5, 6]])
STOPPED_TRUTH = torch.cat([yes(1, 1, 0, 0), yes(1, 1, 1, 0), yes(1, 1, 1, 1)])
TURNS, TURNS_TRUTH = torch.tensor([[9, 8, 5, 6, 14, 15, 7, 5]]), yes(0, 0, 1, 1, 0, 0, 1, 1)
TALK: list[Message] = [(USER, (9,)), (POLICY, (5, 6)), (RESULT, (14,)), (RESULT, (15,)), (POLICY, (7,))]
SEEN = [START, USER, 9, END, START, POLICY, 5, 6, END, START, USER, RESULT, 14, RESULT, 15, END, START, POLICY, 7, END]
SEEN_TRUTH = yes(0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1)
LOGGED = {"completion": STOPPED_TRUTH, "truncated": torch.tensor([False, False, True])}
CUT_OFF, NOT_CLOSED = {"prompt": [9, 8], "sampled": [5, 6]}, yes(0, 0, 1, 1, 0, 0)
RAGGED = torch.tensor([[9, 8, 5, 6, 7], [9, 8, 9, 5, PAD]])

completions = [Record({"tokens": STOPPED, "tokenizer_stop": STOP, "declared": (STOP, 7)}, STOPPED, STOPPED_TRUTH)]
turns = [Record({"tokens": TURNS, "prompt": 2, "by_policy": TURNS_TRUTH}, TURNS, TURNS_TRUTH)]
talk = [Record({"messages": TALK}, torch.tensor([SEEN]), SEEN_TRUTH)]
cut_off = [
    Record(
        CUT_OFF | {"closing": [END_OF_TURN, line_end]}, torch.tensor([[9, 8, 5, 6, END_OF_TURN, line_end]]), NOT_CLOSED
    )
    for line_end in (ASSUMED_LINE_END, LINE_END)
]
given = {"tokens": RAGGED, "prompt": torch.tensor([2, 3]), "total": torch.tensor([5, 4])}
ragged = [Record(given, RAGGED, torch.cat([yes(0, 0, 1, 1, 1), yes(0, 0, 0, 1, 0)]))]
predicted = [Record({"tokens": TURNS[:, :4], "prompt": 2}, TURNS[:, 1:4], yes(0, 1, 1))]

SPECIMENS = (
    Specimen(
        "MASK-02", partial(mask_is_truth, records=completions), up_to_the_tokenizers_stop, up_to_any_declared_stop
    ),
    Specimen(
        "MASK-08",
        partial(masked_inert, case=LOGGED, mask=STOPPED_TRUTH, declared=torch.tensor([2, 3, 4])),
        length_of_what_is_trained,
        length_of_what_was_sampled,
    ),
    Specimen("MASK-11", partial(mask_is_truth, records=talk), each_message_alone, whole_conversation),
    Specimen("MASK-12", partial(mask_is_truth, records=turns), all_after_the_prompt, what_the_policy_wrote),
    Specimen("MASK-13", partial(mask_is_truth, records=cut_off), closed_by_numbers, closed_by_the_template),
    Specimen("MASK-16", partial(mask_is_truth, records=ragged), one_width_for_all_rows, each_rows_own_start),
    Specimen("MASK-17", partial(mask_is_truth, records=predicted), unshifted, shifted),
)
