import pytest

from assay.core.streams import Stream, uniforms
from assay.errors import ConfigError, InputError
from assay.tasks.chain import VOCABULARY, Problem, draw_splits, encode_answers, encode_prompts, tree_rewards
from assay.tree.trajectories import all_responses


def every_prompt() -> list[str]:
    digits = "0123456789"
    return [f"{a}{p}{b}{q}{c}=" for a in digits for p in "+×" for b in digits for q in "+×" for c in digits]


def test_answers_are_pythons_own_arithmetic_left_to_right_modulo_ten():
    for prompt in every_prompt():
        first = prompt[:3].replace("×", "*")
        second = f"({first}){prompt[3:5]}".replace("×", "*")
        assert Problem(prompt).answer() == (eval(first) % 10, eval(second) % 10)


def test_only_both_digits_right_score_one():
    """Over all 100 responses exactly one is right; half right is wrong."""
    problem = Problem("3+4×5=")
    outcomes = {(a, b): problem.verify((a, b)) for a in range(10) for b in range(10)}
    assert [r for r, outcome in outcomes.items() if outcome.score == 1.0] == [(7, 5)]
    assert {outcome.status for r, outcome in outcomes.items() if r != (7, 5)} == {"wrong"}
    assert outcomes[(7, 4)].score == outcomes[(6, 5)].score == 0.0


def test_a_response_of_another_length_is_wrong():
    assert Problem("3+4×5=").verify((7,)).score == 0.0
    assert Problem("3+4×5=").verify((7, 5, 0)).score == 0.0


@pytest.mark.parametrize("prompt", ["", "3+4*5=", "3+4×5", "3+4×5==", "a+4×5=", "٣+4×5=", "<script>"])
def test_other_prompts_are_refused(prompt):
    with pytest.raises(InputError, match="expected digit"):
        Problem(prompt)


def test_splits_are_disjoint_and_drawn_by_the_seeds_own_stream():
    """Sort all 4,000 problems by their own addressed number: the first are training, the next are test."""
    splits = draw_splits(29, train=20, test=20)
    prompts = every_prompt()
    number = uniforms(29, Stream.DATA, 1, problem=list(range(len(prompts))), sample=[0] * len(prompts))[:, 0]
    ordered = [prompt for _, prompt in sorted(zip(number.tolist(), prompts, strict=True))]
    assert len(prompts) == 4000
    assert [problem.prompt for problem in splits["train"] + splits["test"]] == ordered[:40]
    assert len({problem.prompt for problem in splits["train"] + splits["test"]}) == 40
    assert draw_splits(30, train=20, test=20) != splits


def test_more_problems_than_exist_are_refused():
    with pytest.raises(ConfigError, match="only 4000 different problems exist"):
        draw_splits(0, train=3000, test=1001)


def test_encoding_round_trips():
    problems = draw_splits(1, train=5, test=1)["train"]
    assert ["".join(VOCABULARY[t] for t in row) for row in encode_prompts(problems)] == [p.prompt for p in problems]
    assert [tuple(row) for row in encode_answers(problems).tolist()] == [p.answer() for p in problems]


def test_rewards_over_the_tree_are_the_verifiers_in_the_trees_order():
    problems = draw_splits(1, train=5, test=1)["train"]
    for problem, row in zip(problems, tree_rewards(problems).tolist(), strict=True):
        assert row == [problem.verify(tuple(response)).score == 1.0 for response in all_responses(10, 2).tolist()]
