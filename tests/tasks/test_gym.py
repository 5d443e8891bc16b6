"""reasoning-gym's own traps: shared items, partial credit, scorers that crash or pass anything."""

import json

import pytest

from assay.errors import ConfigError
from assay.tasks.contamination import prompt_key
from assay.tasks.grading import WorkerGrader
from assay.tasks.selftest import require, self_test
from assay.tasks.text import build_task
from assay.types import Response, TextProblem

rg = pytest.importorskip("reasoning_gym")


@pytest.fixture(scope="module")
def grader():
    with WorkerGrader("gym") as made:
        yield made


def draw(name, seed=29, train=20, test=10, **options):
    return build_task(f"gym:{name}", seed=seed, train_problems=train, test_problems=test, options=options)


def prompts(problems):
    return {prompt_key(problem) for problem in problems}


def test_neighbouring_seeds_share_nearly_all_items_upstream_and_none_here():
    upstream = [{item["question"] for item in rg.create_dataset("chain_sum", seed=s, size=50)} for s in (42, 43)]
    assert len(upstream[0] & upstream[1]) == 49
    ours = [draw("chain_sum", seed=seed, min_digits=4) for seed in (42, 43)]
    assert not prompts(ours[0].train + ours[0].test) & prompts(ours[1].train + ours[1].test)


def test_small_spaces_repeat_upstream_and_here_each_question_is_asked_once():
    """One-digit sums of two terms: few questions, asked over and over."""
    options = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    items = rg.create_dataset("chain_sum", seed=1, size=100, **options)
    assert len({item["question"] for item in items}) < 100
    task = draw("chain_sum", train=40, test=20, **options)
    assert len(prompts(task.train) | prompts(task.test)) == 60
    assert task.contamination.duplicates == task.sources[0].rows - 60 > 0
    with pytest.raises(ConfigError, match=r"only \d+ different questions among 5100 items, and 500 problems"):
        draw("chain_sum", train=400, test=100, **options)


def test_test_problems_do_not_depend_on_the_training_size_but_for_the_size_of_the_data_set():
    few, many = draw("chain_sum", train=5), draw("chain_sum", train=50)
    assert [(p.prompt, p.answer) for p in few.test] == [(p.prompt, p.answer) for p in many.test]
    assert draw("chain_sum") == draw("chain_sum") and draw("chain_sum", seed=3).test != few.test


def test_problems_hold_plain_values_and_are_scored_by_the_items_own_scorer(grader):
    """Countdown: any expression that reaches the target with the given numbers is right, not the stored one alone."""
    task = draw("countdown", min_numbers=2, max_numbers=2)
    problem = json.loads(json.dumps(task.test[0].columns))
    row = TextProblem(0, task.test[0].prompt, task.test[0].answer, problem)
    dataset = problem["reasoning_gym"]["dataset"]
    options = {**dataset["options"], "seed": dataset["seed"], "size": dataset["size"]}
    item = rg.create_dataset("countdown", **options)[problem["reasoning_gym"]["index"]]
    target = item["metadata"]["target"]
    texts = [row.answer, f"({row.answer})", f"<answer>{row.answer}</answer>", f" {row.answer}\n", str(target), "", "1+"]
    outcomes = grader([row] * len(texts), [Response((), text) for text in texts])
    assert [outcome.status for outcome in outcomes] == ["right"] * 4 + ["wrong", "unparseable", "wrong"]
    assert {outcome.score for outcome in outcomes} == {1.0, 0.0}


def test_partial_credit_is_wrong(grader):
    """Upstream a list of answers with the right one in it scores above zero."""
    task = draw("chain_sum")
    problem, answer = task.test[0], task.test[0].answer
    listing = " ".join([answer, *(str(number) for number in range(20))])
    upstream = rg.get_score_answer_fn("chain_sum")(listing, {"answer": answer, "metadata": {}})
    assert 0 < upstream < 1
    outcomes = grader([problem] * 2, [Response((), listing), Response((), answer)])
    assert [(outcome.score, outcome.status) for outcome in outcomes] == [(0.0, "wrong"), (1.0, "right")]


def test_a_scorer_that_crashes_costs_its_own_response(grader):
    task = draw("prime_factorization")
    item = task.test[0].columns["reasoning_gym"]
    entry = rg.create_dataset("prime_factorization", seed=item["dataset"]["seed"], size=999)[item["index"]]
    with pytest.raises(ValueError):
        rg.get_score_answer_fn("prime_factorization")("nonsense", entry)
    said = [task.test[0].answer, "nonsense", task.test[0].answer]
    outcomes = grader([task.test[0]] * 3, [Response((), text) for text in said])
    assert [outcome.status for outcome in outcomes] == ["right", "error", "right"] and outcomes[1].score is None
    assert "ValueError" in grader.notes[-1]


@pytest.mark.parametrize(
    ("name", "fails"), [("chain_sum", ()), ("game_of_life_halting", ("corrupted", "other")), ("graph_color", ())]
)
def test_the_self_test_catches_scorers_that_pass_anything(grader, name, fails):
    """game_of_life_halting gives 1.0 to any answer where the game does not halt."""
    task = draw(name)
    tested = self_test(grader, task.train)
    verdicts = {claim.name: str(claim.verdict) for claim in tested.claims}
    assert tuple(name for name, verdict in verdicts.items() if verdict == "disagrees") == fails
    if name == "graph_color":  # it stores no answer
        assert [verdicts[claim] for claim in ("gold", "corrupted", "other")] == ["could not run"] * 3
    if fails:
        with pytest.raises(ConfigError, match="corrupted answers: problem"):
            require(tested)
    else:
        require(tested)


def test_rows_of_other_data_or_of_another_version_are_errors_not_zeros(grader):
    task = draw("chain_sum")
    moved = TextProblem(0, "another question", "1", task.test[0].columns)
    outcomes = grader([TextProblem(0, "p", "1"), moved], [Response((), "1")] * 2)
    assert [(outcome.score, outcome.status) for outcome in outcomes] == [(None, "error")] * 2
    assert "no column 'reasoning_gym'" in grader.notes[-2] and "another question" in grader.notes[-1]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("chain_sums", {}, "no data set 'chain_sums'; did you mean chain_sum"),
        ("zzz", {}, "such as chain_sum"),
        ("chain_sum", {"min_term": 2}, "no option 'min_term'; it has min_terms"),
        ("chain_sum", {"size": 2}, "no option 'size'"),
        ("chain_sum", {"min_terms": 9, "max_terms": 2}, "gym:chain_sum with"),
        ("composite", {}, "gym:composite with"),
    ],
)
def test_names_and_options_that_do_not_exist_are_refused(name, options, words):
    with pytest.raises(ConfigError, match=words):
        draw(name, **options)


def test_settings_that_do_nothing_are_refused():
    with pytest.raises(ConfigError, match="has no end"):
        draw("chain_sum", train=0)
    with pytest.raises(ConfigError, match="do nothing"):
        build_task("gym:chain_sum", seed=0, train_problems=2, test_problems=2, split_by="level")
