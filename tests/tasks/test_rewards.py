"""Reward functions of TRL and verl, called as those call them; and what is no reward."""

import asyncio
import inspect
import re
import subprocess
import sys
import warnings
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from assay.errors import ConfigError, InputError
from assay.tasks.grading import WorkerGrader
from assay.tasks.rewards import RewardError, wrap_reward
from assay.tasks.submission import Submission
from assay.types import Outcome, Response, TextProblem

CHAT = [{"role": "user", "content": "2+2?"}]
BATCH = [
    Submission("2+2=", "4", {"level": 1, "solution": 4}, "4", (11, 12)),
    Submission("3+3=", "6", {"level": 2, "solution": 6}, "7", (13,)),
]


def recorder(seen, returned=(1.0, 0.0)):
    def reward(prompts, completions, completion_ids, **kwargs):
        seen.update(prompts=prompts, completions=completions, completion_ids=completion_ids, **kwargs)
        return list(returned)[: len(prompts)]

    return reward


def test_trl_functions_get_every_column_row_by_row_and_by_its_own_name():
    seen = {}
    scorer = wrap_reward(recorder(seen), "auto")
    assert scorer.whole and scorer.score(BATCH) == [(1.0, "right"), (0.0, "wrong")]
    seen.pop("log_extra")("column", ["a", "b"])
    seen.pop("log_metric")("name", 1.0)
    assert seen == {
        "prompts": ["2+2=", "3+3="],
        "completions": ["4", "7"],
        "completion_ids": [[11, 12], [13]],
        "answer": ["4", "6"],
        "level": [1, 2],
        "solution": [4, 6],
        "trainer_state": None,
    }


def test_a_conversation_is_answered_by_a_turn_of_the_assistant():
    seen = {}
    wrap_reward(recorder(seen), "trl").score([Submission(CHAT, "4", {}, "4", (1,))])
    assert seen["prompts"] == [CHAT] and seen["completions"] == [[{"role": "assistant", "content": "4"}]]


def test_a_column_keeps_its_own_value_and_rows_without_it_hold_none():
    """TRL hands on the data's own answer, a number too; the text of it is for the built-in graders."""
    seen = {}
    batch = [Submission("p", "4", {"answer": 4}, "4", ()), Submission("p", "5", {"prompt": "x", "hint": "y"}, "5", ())]
    wrap_reward(recorder(seen), "trl").score(batch)
    assert seen["answer"] == [4, "5"] and seen["hint"] == [None, "y"] and seen["prompts"] == ["p", "p"]


def test_trl_itself_calls_its_functions_with_the_same_arguments(monkeypatch):
    """The trainer's own method on the same rows, where TRL is installed."""
    pytest.importorskip("trl")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from trl.trainer import rloo_trainer
    theirs, ours = {}, {}

    class Trainer:
        accelerator = type("A", (), {"device": "cpu"})
        reward_funcs, reward_processing_classes, reward_func_names = [recorder(theirs)], [None], ["r"]
        state, _log_completion_extra, _log_metric = None, None, None

    inputs = [{"prompt": s.prompt, "answer": s.answer, **s.columns} for s in BATCH]
    arguments = [[getattr(s, name) for s in BATCH] for name in ("prompt", "text")]
    with monkeypatch.context() as patch:
        patch.setattr(rloo_trainer, "gather", lambda rewards: rewards)
        patch.setattr(rloo_trainer, "profiling_context", lambda *_: nullcontext())
        calculate = inspect.unwrap(rloo_trainer.RLOOTrainer._calculate_rewards)
        calculate(Trainer(), inputs, *arguments, [list(s.tokens) for s in BATCH])
    wrap_reward(recorder(ours), "trl").score(BATCH)
    logs = ("log_extra", "log_metric")
    assert {k: v for k, v in ours.items() if k not in logs} == {k: v for k, v in theirs.items() if k not in logs}


def test_functions_are_given_what_they_name_and_may_be_async():
    def short(completions, answer):
        return [float(c == a) for c, a in zip(completions, answer, strict=True)]

    async def later(completions, answer, **kwargs):
        await asyncio.sleep(0)
        return short(completions, answer)

    for function in (short, later):
        assert wrap_reward(function, "auto").score(BATCH) == [(1.0, "right"), (0.0, "wrong")]


def test_verl_functions_get_the_answer_or_verls_own_ground_truth():
    seen = []

    def compute_score(data_source, solution_str, ground_truth, extra_info=None):
        seen.append((data_source, solution_str, ground_truth, extra_info))
        return {"score": 1.0, "acc": True} if solution_str == ground_truth else 0

    rows = [
        Submission("p", "4", {"data_source": "gsm8k", "extra_info": {"index": 3}}, "4", ()),
        Submission("p", None, {"reward_model": {"style": "rule", "ground_truth": "6"}}, "7", ()),
    ]
    scorer = wrap_reward(compute_score, "auto")
    assert not scorer.whole and scorer.score(rows) == [(1.0, "right"), (0.0, "wrong")]
    assert seen == [("gsm8k", "4", "4", {"index": 3}), (None, "7", "6", None)]


@pytest.mark.parametrize(
    ("reward", "mark"),
    [
        (1.0, (1.0, "right")),
        (1, (1.0, "right")),
        (True, (1.0, "right")),
        (2.5, (2.5, "right")),
        (0.999, (0.999, "wrong")),
        (0, (0.0, "wrong")),
        (-1.0, (-1.0, "wrong")),
        (None, (None, "unparseable")),
        (np.float32(1), (1.0, "right")),
        (torch.tensor(0.5), (0.5, "wrong")),
        (np.array([1.0])[0], (1.0, "right")),
    ],
)
def test_what_a_score_says(reward, mark):
    assert wrap_reward(lambda completions: [reward], "trl").score(BATCH[:1]) == [mark]
    assert wrap_reward(lambda solution_str: reward, "verl").score(BATCH[:1]) == [mark]


def test_a_tensor_or_an_array_is_a_list_of_rewards():
    for made in (torch.tensor([1.0, 0.0]), np.array([1.0, 0.0]), (1.0, 0.0)):
        assert wrap_reward(lambda completions, made=made: made, "trl").score(BATCH) == [(1.0, "right"), (0.0, "wrong")]


@pytest.mark.parametrize(
    "bad", [float("nan"), float("inf"), -float("inf"), "1.0", b"1", [1.0], {"score": 1}, 10**400, object, 1j]
)
def test_what_is_no_reward_names_its_row_and_value(bad):
    with pytest.raises(RewardError, match="expected a finite number") as caught:
        wrap_reward(lambda completions: [1.0, bad], "trl").score(BATCH)
    assert caught.value.row == 1 and repr(bad)[:20] in str(caught.value)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ([1.0], "returned 1 rewards for 2 responses"),
        ([1.0] * 3, "returned 3 rewards for 2 responses"),
        (1.0, "returned 1.0; expected a list"),
        (None, "returned None; expected a list"),
        ("11", "returned '11'; expected a list"),
        ({0: 1.0, 1: 1.0}, "expected a list"),
    ],
)
def test_one_reward_a_response(bad, words):
    """One too many would shift every later row by one."""
    with pytest.raises(RewardError, match=re.escape(words)):
        wrap_reward(lambda completions: bad, "trl").score(BATCH)


def test_a_mapping_of_verl_needs_a_score():
    with pytest.raises(RewardError, match="a mapping with 'score'"):
        wrap_reward(lambda solution_str: {"acc": 1.0}, "verl").score(BATCH[:1])


def test_the_convention_is_told_by_the_parameters_or_asked_for():
    def ground_truth_of_trl(completions, ground_truth, **kwargs):
        return [1.0]

    def both(completions, solution_str):
        return 1.0

    def neither(prompts, responses):
        return 1.0

    assert wrap_reward(ground_truth_of_trl, "auto").whole
    for function in (both, neither, lambda **kwargs: 1.0):
        with pytest.raises(ConfigError, match="set grading.convention to trl or verl"):
            wrap_reward(function, "auto")
    assert not wrap_reward(lambda **kwargs: float(kwargs["solution_str"] == "4"), "verl").whole


def test_across_the_process_what_is_no_reward_is_an_error_and_none_is_no_score():
    def rows(*values, column="value"):
        if column == "value":
            return [TextProblem(40 + at, "p", None, {"value": value}) for at, value in enumerate(values)]
        return [TextProblem(40 + at, "p", None, {"extra_info": {"value": v}}) for at, v in enumerate(values)]

    answers = [Response((), "x")] * 3
    with WorkerGrader("hostile_rewards:returned") as grader:
        with pytest.raises(InputError, match="reward hostile_rewards:returned: row 2: nan is no reward"):
            grader(rows(1.0, None, float("nan")), answers)
        outcomes = grader(rows(1.0, None, 0.25), answers)
        assert outcomes == [Outcome(1.0, "right"), Outcome(None, "unparseable"), Outcome(0.25, "wrong")]
        assert grader.counts["fallbacks"] == 0
    with WorkerGrader("hostile_rewards:verl_returned") as grader:
        with pytest.raises(InputError, match="problem 41: 'high' is no reward"):
            grader(rows(1.0, "high", 0.0, column="extra_info"), answers)
        assert [o.score for o in grader(rows(1.0, {"score": 0.5}, None, column="extra_info"), answers)] == [
            1,
            0.5,
            None,
        ]
    for name, words in (("one_short", "returned 2 rewards for 3"), ("bare", "expected a list")):
        with WorkerGrader(f"hostile_rewards:{name}") as grader, pytest.raises(InputError, match=words):
            grader(rows(0, 0, 0), answers)


def test_a_convention_for_a_built_in_grader_does_nothing_and_is_refused():
    with pytest.raises(ConfigError, match="grading.convention = 'trl' does nothing"):
        WorkerGrader("exact", convention="trl")


def test_wrapping_a_reward_loads_no_torch():
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; "
        "import assay.tasks.worker; assert not {'torch', 'numpy', 'math_verify'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
