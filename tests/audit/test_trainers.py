"""Whole trainers: a plain loop over a tiny transformer, right and wrong, run on every batch that could be drawn."""

import itertools

import pytest
import torch

from assay.audit.gradients import by_name, next_logits, objective_field, prompted
from assay.audit.trainers import trainer
from assay.core.advantages import leave_one_out
from assay.core.logprobs import response_logp, shifted_input
from assay.errors import InputError
from assay.policies.transformer import TinyTransformer
from assay.tree.prefix import Grammar, prefix_tree
from assay.verdicts import Verdict

TREE = prefix_tree(Grammar(tokens=3, max_length=2, end=0))
SMALL = prefix_tree(Grammar(tokens=2, max_length=2, end=0))
REWARDS = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0], dtype=torch.float64)
BETA = 0.1


def tiny(seed=0, responses=3):
    return TinyTransformer(
        vocabulary=4,
        responses=responses,
        context=6,
        width=8,
        heads=2,
        feedforward=8,
        seed=seed,
        dtype=torch.float64,
    )


def places(policy, prompts=1, tree=TREE):
    """Problems with one and the same tree, prompts of different lengths and different rewards."""
    every = [torch.tensor([3]), torch.tensor([3, 1])][:prompts]
    reference = tiny(seed=1, responses=tree.tokens_in_vocabulary)
    return [
        prompted(policy, reference, f"prompt {number}", prompt, tree, REWARDS.roll(number)[: len(tree.path)])
        for number, prompt in enumerate(every)
    ]


def rows_of(place, members):
    """Prompts, responses, mask, rewards and reference log-probabilities of a group."""
    tree, prompt = place.problem.tree, place.prompt.expand(len(members), -1)
    logp_ref = tree.token_logp(place.problem.logits_ref)[members]
    return prompt, tree.responses[members], tree.mask[members], place.problem.reward[members], logp_ref


def sequence_terms(policy, place, members, beta):
    """Log-probability of each response, and its advantage with the KL taken out of the reward."""
    prompt, response, mask, reward, logp_ref = rows_of(place, members)
    logp = response_logp(policy(shifted_input(prompt, response)), response).masked_fill(~mask, 0.0)
    shaped = reward - beta * (logp.detach() - logp_ref).sum(1)
    return logp, mask, leave_one_out(shaped, torch.zeros(len(members), dtype=torch.long))


def loop(policy, problems, *, reduce=None, beta=BETA, micro_batches=1):
    """A trainer: one forward and backward a group and micro-batch, ``.grad`` collected."""
    reduce = reduce or (lambda logp, mask, adv, rows: -(adv * logp.sum(1)).sum() / rows)

    def step(groups):
        policy.zero_grad()
        for number, members in groups:
            logp, mask, adv = sequence_terms(policy, problems[number], members, beta)
            for part in torch.arange(len(members)).chunk(micro_batches):
                value = reduce(logp[part], mask[part], adv[part], len(members)) / len(groups)
                value.backward(retain_graph=True)
        return {name: parameter.grad.clone() for name, parameter in policy.named_parameters()}

    return step


@pytest.mark.parametrize(
    ("prompts", "group_size", "tree", "batches"), [(1, 2, TREE, 28), (1, 3, TREE, 84), (2, 2, SMALL, 36)]
)
def test_a_right_trainer_holds(prompts, group_size, tree, batches):
    policy = tiny(responses=tree.tokens_in_vocabulary)
    problems = places(policy, prompts, tree)
    made = trainer(
        loop(policy, problems, micro_batches=2),
        policy,
        problems,
        objective=f"reward - {BETA}*kl",
        group_size=group_size,
    )
    assert made.check.verdict is Verdict.HOLDS, made.check
    assert made.check.error < 1e-12
    assert made.ascends.exact and made.ascends.coefficients == pytest.approx({"reward": 1.0, "kl": -BETA}, abs=1e-9)
    assert made.check.exactness.startswith(f"{batches} batches")


def test_the_expectation_is_that_over_all_ordered_groups():
    policy = tiny()
    problems = places(policy)
    step = loop(policy, problems)
    total = {name: torch.zeros_like(parameter) for name, parameter in policy.named_parameters()}
    chance = TREE.token_logp(problems[0].problem.logits).sum(1).exp()
    for pair in itertools.product(range(len(REWARDS)), repeat=2):
        weight = float(chance[list(pair)].prod())
        for name, gradient in step([(0, torch.tensor(pair))]).items():
            total[name] -= weight * gradient.detach()
    made = trainer(step, policy, problems)
    for name, expected in total.items():
        torch.testing.assert_close(made.ascent[name], expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("wrong", "coefficients"),
    [
        pytest.param(
            {"reduce": lambda logp, mask, adv, rows: -(adv * logp.sum(1)).sum() / (rows + 1)},
            {"reward": 2 / 3, "kl": -2 / 3 * BETA},
            id="wrong denominator",
        ),
        pytest.param({"beta": 0.0}, {"reward": 1.0}, id="missing term"),
        pytest.param(
            {"reduce": lambda logp, mask, adv, rows: -(adv * logp.sum(1)).mean(), "micro_batches": 2},
            {"reward": 2.0, "kl": -2.0 * BETA},
            id="accumulation that forgets to divide",
        ),
        pytest.param(
            {"reduce": lambda logp, mask, adv, rows: -((adv - adv.mean()) / 2 * logp.sum(1)).mean()},
            {"reward": 0.5, "kl": -0.5 * BETA},
            id="a baseline that contains its own sample",
        ),
    ],
)
def test_a_wrong_trainer_is_caught_and_named(wrong, coefficients):
    policy = tiny()
    problems = places(policy)
    made = trainer(loop(policy, problems, **wrong), policy, problems, objective=f"reward - {BETA}*kl")
    assert made.check.verdict is Verdict.DISAGREES and made.check.invariant == "I1"
    assert made.ascends.exact and made.ascends.coefficients == pytest.approx(coefficients, abs=1e-9)
    assert "worst weight" in made.check.findings[0] and "with reward" in made.check.findings[1]


def test_a_token_mean_is_caught_and_depends_on_its_micro_batches():
    def token_mean(logp, mask, adv, rows):
        return -(adv[:, None] * logp).sum() / mask.sum()

    policy = tiny()
    problems = places(policy)
    whole, split = (
        trainer(loop(policy, problems, reduce=token_mean, micro_batches=parts, beta=0.0), policy, problems)
        for parts in (1, 2)
    )
    for made in (whole, split):
        assert made.check.verdict is Verdict.DISAGREES
        assert made.ascends.coefficients.keys() != {"reward"} or not made.ascends.exact
    assert float((whole.ascent["head.weight"] - split.ascent["head.weight"]).abs().max()) > 1e-3


def test_the_worst_weight_is_where_the_error_was_put():
    policy = tiny()
    problems = places(policy)
    honest = loop(policy, problems, beta=0.0)

    def shifted(groups):
        made = honest(groups)
        made["head.weight"][2, 5] += 1.0
        return made

    check = trainer(shifted, policy, problems).check
    assert check.verdict is Verdict.DISAGREES
    assert check.findings[0].startswith("worst weight head.weight[2, 5]: expected update -")


def test_a_parameter_that_is_not_trained_is_a_disagreement_at_that_parameter():
    policy = tiny()
    problems = places(policy)
    honest = loop(policy, problems, beta=0.0)

    def partial(groups):
        return {name: made for name, made in honest(groups).items() if name != "feedforward_in.weight"}

    check = trainer(partial, policy, problems).check
    assert check.verdict is Verdict.DISAGREES
    assert "worst weight feedforward_in.weight[" in check.findings[0] and "expected update 0, " in check.findings[0]


def test_a_frozen_parameter_is_left_out_of_both_sides():
    policy = tiny()
    policy.feedforward_in.weight.requires_grad_(False)
    problems = places(policy)
    honest = tiny()

    def step(groups):
        return {
            name: made for name, made in loop(honest, problems, beta=0.0)(groups).items() if "in.weight" not in name
        }

    policy.attention_in.weight.requires_grad_(False)
    assert trainer(step, policy, problems).check.verdict is Verdict.HOLDS


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda made: {**made, "nowhere.weight": made["head.weight"]}, "nowhere.weight"),
        (lambda made: {**made, "head.weight": made["head.weight"][:1]}, "another shape"),
        (lambda made: {**made, "head.weight": made["head.weight"] * float("nan")}, "not finite"),
        (lambda made: {**made, "head.weight": torch.rand_like(made["head.weight"])}, "draws random numbers"),
        (lambda made: 1 / 0, "ZeroDivisionError"),
        (lambda made: made["head.weight"], "one tensor a parameter"),
    ],
)
def test_what_cannot_be_used_could_not_run(spoil, words):
    policy = tiny()
    problems = places(policy)
    honest = loop(policy, problems)
    made = trainer(lambda groups: spoil(honest(groups)), policy, problems)
    assert made.check.verdict is Verdict.COULD_NOT_RUN and words in made.check.detail
    assert made.ascends is None and made.ascent == {}


def test_a_trainer_that_favours_the_first_of_a_group_could_not_run():
    policy = tiny()
    problems = places(policy)

    def first(logp, mask, adv, rows):
        return -(adv * logp.sum(1))[0]

    made = trainer(loop(policy, problems, reduce=first), policy, problems)
    assert made.check.verdict is Verdict.COULD_NOT_RUN and "order" in made.check.detail


def test_too_many_batches_are_refused_before_the_first():
    policy = tiny()
    problems = places(policy)

    def never(groups):
        raise AssertionError("it was run")

    made = trainer(never, policy, problems, group_size=8, budget=100)
    assert made.check.verdict is Verdict.COULD_NOT_RUN and "3,003 batches" in made.check.detail


def test_an_unknown_objective_is_an_error():
    policy = tiny()
    with pytest.raises(InputError, match="no objective is called 'joy'"):
        trainer(loop(policy, []), policy, places(policy), objective="joy")


def test_next_logits_are_those_of_scoring_each_response_alone():
    policy = tiny()
    prompt = torch.tensor([3, 1])
    table = TREE.token_logp(next_logits(policy, prompt, TREE))
    for row, length in enumerate(TREE.lengths.tolist()):
        response = TREE.responses[row : row + 1, :length]
        alone = response_logp(policy(shifted_input(prompt[None], response)), response)[0]
        torch.testing.assert_close(table[row, :length], alone, rtol=1e-13, atol=1e-14)


def test_a_tree_of_another_vocabulary_is_an_error():
    with pytest.raises(InputError, match="answers 3 tokens and the tree has 2"):
        next_logits(tiny(), torch.tensor([3]), SMALL)


def test_an_objective_field_is_the_derivative_of_expected_reward():
    policy = tiny()
    problems = places(policy, 2)
    made = by_name(policy, objective_field("reward", policy, problems))

    def expected_reward():
        return sum(
            float((TREE.token_logp(next_logits(policy, place.prompt, TREE)).sum(1).exp() * place.problem.reward).sum())
            for place in problems
        ) / len(problems)

    with torch.no_grad():
        weight, step = policy.head.weight, 1e-6
        weight[1, 3] += step
        ahead = expected_reward()
        weight[1, 3] -= 2 * step
        behind = expected_reward()
    assert float(made["head.weight"][1, 3]) == pytest.approx((ahead - behind) / (2 * step), rel=1e-6)


@pytest.mark.parametrize("objective", ["log_reward", "arcsin_reward", "pass_at_2", "surrogate"])
def test_every_objective_that_can_be_written_can_be_asked(objective):
    """Each is a function of the expected reward: on one problem of rewards 0 and 1 a multiple of its gradient."""
    policy = tiny()
    problems = places(policy)
    made = trainer(loop(policy, problems, beta=0.0), policy, problems, objective=objective)
    p = float((problems[0].problem.sampler_logp.exp() * problems[0].problem.reward).sum())
    factor = {"log_reward": 1 / p, "arcsin_reward": (p * (1 - p)) ** -0.5, "pass_at_2": 2 * (1 - p), "surrogate": 1.0}
    assert made.check.error == pytest.approx(abs(1 / factor[objective] - 1), abs=1e-9)
