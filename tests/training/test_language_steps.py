"""One step: its expected update against enumeration, and what it counts, skips and refuses."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from policies.tiny_policies import distance, gradient_of, naive_logp, taken, twins
from tiny_work import EOS, Replay, Watched, rl_state, tiny_recipe, workplace

from assay.core.streams import Stream
from assay.errors import UpdateError
from assay.training.language.recipe import estimator_of
from assay.training.language.steps import rl_step, scheduled, warmup_step

RESPONSES = [(1,), *itertools.product((0, 2), (0, 1, 2))]
"""All responses of at most two of three tokens, of which 1 ends one."""
REWARDS = dict(zip(RESPONSES, (0.0, 1.0, 0.25, -0.5, 2.0, 0.0, 1.5), strict=True))
BETA, TEMPERATURE = 0.3, 0.7


def exact(rl: dict[str, Any], **seeds: Any) -> tuple[Any, Any, Any]:
    """Return recipe, policy and plain model, and reference and plain reference, of a world that can be enumerated."""
    recipe = tiny_recipe(
        rl={
            "steps": 1, "problems_per_step": 1, "num_generations": 2, "max_completion_length": 2,
            "temperature": TEMPERATURE, "max_grad_norm": 1e12, **rl,
        }
    )  # fmt: skip
    return recipe, twins(vocabulary=3), twins(vocabulary=3, seed=5)


def probabilities(model: Any, prompt: tuple[int, ...], **cut: Any) -> dict[tuple[int, ...], torch.Tensor]:
    """Return the log-probabilities of the tokens of every response that can be drawn."""
    made = {said: taken(naive_logp(model, prompt, said, temperature=TEMPERATURE, **cut), said) for said in RESPONSES}
    return {said: logp for said, logp in made.items() if bool(logp.isfinite().all())}


def expected_update(recipe: Any, policy: Any, model: Any, reference: Any, **cut: Any) -> dict[str, torch.Tensor]:
    """Return the mean, over all groups that can be drawn, of the gradient that one step leaves."""
    engine = Replay(model, [])
    work = workplace(policy, recipe, score=lambda _, response: REWARDS[response.tokens], engine=engine, problems=1)
    with torch.no_grad():
        law = {said: float(logp.sum().exp()) for said, logp in probabilities(model, work.prompts[0], **cut).items()}
    assert sum(law.values()) == pytest.approx(1.0)
    total = {name: torch.zeros_like(value) for name, value in policy.trained()}
    for group in itertools.combinations_with_replacement(law, 2):  # in either order
        chance = law[group[0]] * law[group[1]] * (1 if group[0] == group[1] else 2)
        engine.groups = [group]
        state = rl_state(policy, recipe, reference=reference)
        state.optimizer = watched = Watched(policy)
        rl_step(state, work)
        for gradient in watched.gradients:
            for name, value in gradient.items():
                total[name] += chance * value
    return total


def states(model: Any, prompt: tuple[int, ...]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return each state that a response goes through: its detached visits, and the log-law of the next token."""
    first = naive_logp(model, prompt, (0,), temperature=TEMPERATURE)[0]
    later = [naive_logp(model, prompt, (said, 0), temperature=TEMPERATURE)[1] for said in (0, 2)]
    visits = [torch.ones((), dtype=torch.float64), *first.detach().exp()[[0, 2]]]
    return list(zip(visits, [first, *later], strict=True))


def ascent(model: Any, plain: Any, prompt: tuple[int, ...], *, kl: str, entropy: float = 0.0, **cut: Any) -> Any:
    """Return the negative of what is to be ascended, by enumeration."""

    def value() -> torch.Tensor:
        law = probabilities(model, prompt, **cut)
        made = sum(logp.sum().exp() * REWARDS[said] for said, logp in law.items())
        if kl == "sequence":
            with torch.no_grad():
                ref = probabilities(plain, prompt)
            made = made - BETA * sum(own.sum().exp() * (own.sum() - ref[said].sum()) for said, own in law.items())
        if kl == "frozen":
            with torch.no_grad():
                ref_states = [law for _, law in states(plain, prompt)]
            for (visits, logp), ref_logp in zip(states(model, prompt), ref_states, strict=True):
                made = made - BETA * visits * (logp.exp() * (logp - ref_logp)).sum()
        for visits, logp in states(model, prompt) if entropy else []:
            made = made - entropy * visits * (logp.exp() * logp).sum()
        return -made

    return value


@pytest.mark.parametrize(
    ("rl", "field"),
    [
        ({"kl": "reward", "beta": BETA}, "sequence"),
        ({"kl": "reward_to_go", "beta": BETA}, "sequence"),
        ({"kl": "exact_sequence_loss", "beta": BETA}, "sequence"),
        ({"kl": "k2_sequence_loss", "beta": BETA}, "sequence"),
        ({"kl": "exact_token_loss", "beta": BETA}, "frozen"),
        ({"kl": "k2_loss", "beta": BETA}, "frozen"),
        ({"beta": 0.0, "entropy": 0.2}, "none"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.get("kl", "entropy"),
)
def test_the_expected_update_is_the_gradient_of_reward_less_kl(rl, field):
    recipe, (policy, model), (reference, plain) = exact(rl)
    found = expected_update(recipe, policy, model, reference)
    value = ascent(model, plain, (0,), kl=field, entropy=rl.get("entropy", 0.0))
    assert distance(found, gradient_of(model, lambda: value().backward())) < 1e-10


@pytest.mark.parametrize(
    ("algorithm", "factor"),
    [("mean_centred", 0.5), ("dr_grpo", 0.5 / 2), ("ppo", 1.0), ("sequence_is", 1.0), ("reinforce", 1.0)],
)
def test_other_algorithms_ascend_the_multiple_that_they_should(algorithm, factor):
    recipe, (policy, model), (reference, plain) = exact({"algorithm": algorithm, "kl": "reward", "beta": BETA})
    found = expected_update(recipe, policy, model, reference)
    value = ascent(model, plain, (0,), kl="sequence")
    assert distance(found, gradient_of(model, lambda: (factor * value()).backward())) < 1e-10


@pytest.mark.parametrize("cut", [{"top_k": 2}, {"top_p": 0.6}], ids=["k", "p"])
@pytest.mark.parametrize("beta", [0.0, BETA])
def test_under_a_cut_the_expected_update_is_that_of_the_policy_that_draws(cut, beta):
    recipe, (policy, model), (reference, plain) = exact({"beta": beta, **cut})
    assert len(probabilities(model, (0,), **cut)) < len(RESPONSES)
    found = expected_update(recipe, policy, model, reference, **cut)
    value = ascent(model, plain, (0,), kl="sequence" if beta else "none", **cut)
    assert distance(found, gradient_of(model, lambda: value().backward())) < 1e-10


def settled(**rl: Any) -> Any:
    given = {"steps": 3, "problems_per_step": 2, "num_generations": 3, "max_completion_length": 4, **rl}
    return tiny_recipe(rl={"learning_rate": 1e-2, "beta": 0.0, "max_grad_norm": 1e12, **given})


def leave_one_out(rewards: list[float | None]) -> list[float]:
    """Return each reward less the mean of the others that there are; 0 where it or all of those are missing."""
    there = [reward for reward in rewards if reward is not None]
    return [
        0.0 if reward is None or len(there) < 2 else reward - (sum(there) - reward) / (len(there) - 1)
        for reward in rewards
    ]


def score_sum(model: Any, work: Any, groups: Any, rewards: list[list[float | None]], *, among: int) -> Any:
    """Return a function that differentiates the leave-one-out loss over so many responses."""

    def backward() -> None:
        for prompt, group, given in zip(work.prompts, groups, rewards, strict=False):
            for said, adv in zip(group, leave_one_out(given), strict=True):
                (-adv / among * taken(naive_logp(model, prompt, said), said).sum()).backward()

    return backward


GROUPS = [[(4, 1), (5, 6, 1), (7, 1)], [(8, 1), (9, 9, 9, 9), (2, 3, 1)]]


def stepped(recipe: Any, rewards: list[list[float | None]], **given: Any) -> tuple[dict[str, Any], Any, Any, Any]:
    """Take one step on fixed responses, and return the record, the gradients, the plain model and the workplace."""
    policy, model = twins()
    queue = iter([value for group in rewards for value in group])
    work = workplace(policy, recipe, score=lambda *_: next(queue), engine=Replay(model, GROUPS, **given))
    state = rl_state(policy, recipe)
    state.optimizer = watched = Watched(policy)
    return rl_step(state, work), watched.gradients, model, work


def test_responses_without_advantage_are_not_computed_and_are_counted():
    rewards = [[1.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
    record, (gradient,), model, work = stepped(settled(), rewards)
    expected = gradient_of(model, score_sum(model, work, GROUPS, rewards, among=6))
    assert distance(gradient, expected) < 1e-10
    assert record["groups"] == {"informative": 1, "all_right": 1, "all_wrong": 0, "all_equal": 0, "unscorable": 0}
    assert record["frac_reward_zero_std"] == 0.5 and record["stepped"]


def test_a_silent_group_is_not_read(monkeypatch):
    policy, model = twins()
    read: list[int] = []
    policy.model.get_input_embeddings().register_forward_hook(lambda _, given, made: read.append(given[0].numel()))
    queue = iter([1.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    work = workplace(policy, settled(), score=lambda *_: next(queue), engine=Replay(model, GROUPS))
    state = rl_state(policy, settled())
    rl_step(state, work)
    assert read == [len(work.prompts[0]) + sum(len(said) - 1 for said in GROUPS[0])]


def test_unscorable_responses_leave_their_group_and_every_count():
    rewards: list[list[float | None]] = [[1.0, None, 0.5], [0.0, 1.0, 1.0]]
    record, (gradient,), model, work = stepped(settled(), rewards)
    expected = gradient_of(model, score_sum(model, work, GROUPS, rewards, among=5))
    assert distance(gradient, expected) < 1e-10
    assert record["outcomes"] == {"right": 4, "wrong": 1, "unparseable": 0, "timeout": 0, "error": 1}
    assert record["reward"] == pytest.approx(3.5 / 5)


def test_a_group_with_one_score_leaves_the_batch():
    rewards: list[list[float | None]] = [[1.0, None, None], [0.0, 1.0, 1.0]]
    record, (gradient,), model, work = stepped(settled(), rewards)
    assert record["groups"]["unscorable"] == 1
    assert distance(gradient, gradient_of(model, score_sum(model, work, GROUPS, rewards, among=3))) < 1e-10


def test_truncated_responses_leave_where_the_recipe_says_so():
    rewards: list[list[float | None]] = [[1.0, 0.0, 0.5], [0.0, 5.0, 1.0]]
    left: list[list[float | None]] = [[1.0, 0.0, 0.5], [0.0, None, 1.0]]  # (9, 9, 9, 9) does not end
    for masked, given, among in ((False, rewards, 6), (True, left, 5)):
        recipe = settled(mask_truncated_completions=masked)
        record, (gradient,), model, work = stepped(recipe, rewards)
        assert distance(gradient, gradient_of(model, score_sum(model, work, GROUPS, given, among=among))) < 1e-10
        lengths = [len(said) for group in GROUPS for said in group]
        assert record["completions/max_length"] == 4  # lengths are those that were drawn, whatever is masked
        assert record["completions/mean_length"] == pytest.approx(sum(lengths) / 6)
        assert record["completions/clipped_ratio"] == pytest.approx(1 / 6)
        assert record["completions/mean_terminated_length"] == pytest.approx((sum(lengths) - 4) / 5)


@pytest.mark.parametrize("score", [0.0, 1.0, None])
def test_where_nothing_teaches_neither_weights_nor_optimizer_move(score):
    """Adam's momentum would move the weights on a gradient of zero."""
    policy, _ = twins()
    recipe = settled()
    state = rl_state(policy, recipe)
    rl_step(state, workplace(policy, recipe))
    assert state.optimizer.state and state.version == 1
    weights = copy.deepcopy(policy.model.state_dict())
    moments = copy.deepcopy(state.optimizer.state_dict()["state"])
    record = rl_step(state, workplace(policy, recipe, score=lambda *_: score))
    assert not record["stepped"] and record["loss"] == 0.0 and record["grad_norm"] == 0.0
    assert (state.step, state.version) == (2, 1)
    assert all(torch.equal(weights[name], value) for name, value in policy.model.state_dict().items())
    assert moments.keys() == state.optimizer.state_dict()["state"].keys()
    for number, held in state.optimizer.state_dict()["state"].items():
        assert all(torch.equal(moments[number][name], value) for name, value in held.items())


def test_two_iterations_are_two_clipped_updates_on_one_batch():
    """Every number by hand: leave-one-out, AdamW, and from the second pass on the ratio to where the update began."""
    epsilon = 0.002
    recipe = settled(algorithm="ppo", num_iterations=2, epsilon=epsilon, steps=1, max_grad_norm=0.05)
    policy, model = twins()
    rewards = [[1.0, 0.0, 0.5], [0.0, 3.0, 1.0]]
    queue = iter([value for group in rewards for value in group])
    work = workplace(policy, recipe, score=lambda *_: next(queue), engine=Replay(copy.deepcopy(model), GROUPS))
    state = rl_state(policy, recipe)
    record = rl_step(state, work)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    rows = [
        (prompt, said, adv)
        for prompt, group, given in zip(work.prompts, GROUPS, rewards, strict=False)
        for said, adv in zip(group, leave_one_out(given), strict=True)
    ]
    old = [taken(naive_logp(model, prompt, said), said).detach() for prompt, said, _ in rows]
    clipped = 0
    for _ in range(2):
        optimizer.zero_grad()
        clipped = 0
        for (prompt, said, adv), before in zip(rows, old, strict=True):
            ratio = (taken(naive_logp(model, prompt, said), said) - before).exp()
            kept = torch.minimum(ratio * adv, ratio.clamp(1 - epsilon, 1 + epsilon) * adv)
            clipped += int((ratio * adv > kept).sum())
            (-kept.sum() / 6).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    assert clipped
    assert record["clip_ratio/region_mean"] == pytest.approx(clipped / sum(len(said) for _, said, _ in rows))
    for name, value in model.state_dict().items():
        assert torch.allclose(policy.model.state_dict()[name], value, rtol=1e-9, atol=1e-11), name
    assert state.version == 2 and state.step == 1


def test_a_sampler_with_other_weights_is_refused():
    class Stale(Replay):
        def load(self, named_weights: Any, version: int) -> None:
            self._version = version - 1

    policy, model = twins()
    state = rl_state(policy, settled())
    with pytest.raises(UpdateError, match="the sampler holds weights -1 and the trainer 0"):
        rl_step(state, workplace(policy, settled(), engine=Stale(model, GROUPS)))
    assert state.step == 0


@pytest.mark.parametrize("algorithm", ["rloo", "ppo"])
def test_a_sampler_that_is_too_far_off_is_refused_and_nothing_moves(algorithm):
    policy, model = twins()
    recipe = settled(algorithm=algorithm)
    before = copy.deepcopy(policy.model.state_dict())
    state = rl_state(policy, recipe)
    with pytest.raises(UpdateError, match="differ by 0.1 nats"):
        rl_step(state, workplace(policy, recipe, engine=Replay(model, GROUPS, shift=0.1)))
    assert all(torch.equal(before[name], value) for name, value in policy.model.state_dict().items())
    assert not state.optimizer.state and (state.step, state.version) == (0, 0)


def test_a_sampler_far_off_is_corrected_where_the_algorithm_weighs_by_it():
    """The weight of a response of n tokens that were drawn at a shift of s nats is exp(-n s)."""
    rewards = [[1.0, 0.0, 0.5], [0.0, 3.0, 1.0]]
    record, (gradient,), model, work = stepped(settled(algorithm="sequence_is"), rewards, shift=0.1)

    def expected() -> None:
        for prompt, group, given in zip(work.prompts, GROUPS, rewards, strict=False):
            for said, adv in zip(group, leave_one_out(given), strict=True):
                weight = adv * math.exp(-0.1 * len(said)) / 6
                (-weight * taken(naive_logp(model, prompt, said), said).sum()).backward()

    assert distance(gradient, gradient_of(model, expected)) < 1e-10
    assert record["sampling/sampling_logp_difference/max"] == pytest.approx(0.1)
    assert record["sampling/importance_sampling_ratio/mean"] == pytest.approx(math.exp(-0.1))


def test_a_token_without_a_sampling_probability_is_refused_whatever_the_algorithm():
    policy, model = twins()
    recipe = settled(algorithm="tis")
    state = rl_state(policy, recipe)
    with pytest.raises(UpdateError, match="no log-probability for"):
        rl_step(state, workplace(policy, recipe, engine=Replay(model, GROUPS, shift=float("nan"))))
    assert (state.step, state.version) == (0, 0)


def test_steps_go_through_the_problems_in_a_cycle_with_numbers_of_their_own():
    policy, _ = twins()
    recipe = settled(problems_per_step=3)
    seen: list[Any] = []
    work = workplace(policy, recipe, on_rollout=lambda rollout: seen.append(rollout))
    state = rl_state(policy, recipe)
    records = [rl_step(state, work) for _ in range(3)]
    assert [record["problems"] for record in records] == [[10, 11, 12], [13, 10, 11], [12, 13, 10]]
    for record, rollout in zip(records, seen, strict=True):
        assert [problem.number for problem in rollout.problems] == record["problems"]
        assert rollout.batch.group == (0, 0, 0, 1, 1, 1, 2, 2, 2)
        assert [rollout.batch.prompts[g] for g in range(3)] == [work.prompts[n - 10] for n in record["problems"]]
        assert len({rollout.batch.responses[row] for row in range(3)}) > 1
    read = [
        sum(len(r.batch.prompts[g]) + len(t) for g, t in zip(r.batch.group, r.batch.responses, strict=True))
        for r in seen
    ]
    assert [record["num_tokens"] for record in records] == list(itertools.accumulate(read))


def test_random_numbers_are_addressed_by_seed_step_problem_and_sample():
    told: list[Any] = []

    class Told(Replay):
        def generate(self, requests: Any, decoding: Any, *, seed: int, stream: Stream, step: int) -> Any:
            told.append((seed, stream, step, [(request.problem, request.samples) for request in requests]))
            return super().generate(requests, decoding, seed=seed, stream=stream, step=step)

    policy, model = twins()
    recipe = settled(max_sampler_gap=1e9)
    state = rl_state(policy, recipe)
    for _ in range(2):
        rl_step(state, workplace(policy, recipe, engine=Told(model, GROUPS)))
    members = (0, 1, 2)
    assert told == [
        (recipe.seed, Stream.ROLLOUT, 0, [(10, members), (11, members)]),
        (recipe.seed, Stream.ROLLOUT, 1, [(12, members), (13, members)]),
    ]


def test_learning_rates_by_arithmetic():
    assert [scheduled("constant", 2.0, step=step, steps=4) for step in range(4)] == [2.0] * 4
    assert [scheduled("linear", 2.0, step=step, steps=4) for step in range(4)] == [2.0, 1.5, 1.0, 0.5]
    root = math.sqrt(0.5)
    assert [scheduled("cosine", 2.0, step=step, steps=4) for step in range(4)] == pytest.approx(
        [2.0, 1 + root, 1.0, 1 - root]
    )


def test_a_step_uses_the_scheduled_rate():
    """The first step of Adam moves every weight by the rate, whatever the size of its gradient."""
    policy, _ = twins()
    recipe = settled(lr_scheduler_type="linear", steps=4)
    state = rl_state(policy, recipe)
    state.step = 3
    before = copy.deepcopy(policy.model.state_dict())
    record = rl_step(state, workplace(policy, recipe))
    moved = max(float((before[name] - value).abs().max()) for name, value in policy.model.state_dict().items())
    assert record["learning_rate"] == pytest.approx(1e-2 / 4)
    assert moved == pytest.approx(1e-2 / 4, rel=1e-3)


def test_warmup_ascends_the_likelihood_of_whole_answers():
    policy, model = twins()
    recipe = tiny_recipe(warmup={"steps": 2, "problems_per_step": 3, "max_grad_norm": 1e12})
    work = workplace(policy, recipe)
    state = rl_state(policy, recipe)
    state.phase, state.step, state.optimizer = "warmup", 1, Watched(policy)
    record = warmup_step(state, work)
    chosen = [3, 0, 1]  # the second three of a cycle of four
    value = 0.0

    def expected() -> None:
        nonlocal value
        for number in chosen:
            said = (2 + number % 2, EOS)
            loss = -taken(naive_logp(model, work.prompts[number], said), said).sum() / 3
            loss.backward()
            value += float(loss.detach())

    assert distance(state.optimizer.gradients[0], gradient_of(model, expected)) < 1e-10
    assert record["negative_log_likelihood"] == pytest.approx(value)
    assert record["problems"] == [10 + number for number in chosen]
    assert (state.step, state.version) == (2, 1)


def test_records_have_the_names_of_trl():
    policy, _ = twins()
    recipe = tiny_recipe(rl={"steps": 2, "problems_per_step": 2, "num_generations": 3, "max_completion_length": 4})
    state = rl_state(policy, recipe)
    record = rl_step(state, workplace(policy, recipe))
    rewards = {"reward", "reward_std", "frac_reward_zero_std", "kl", "entropy", "loss", "grad_norm", "learning_rate"}
    assert rewards | {"num_tokens", "completions/mean_length", "sampling/sampling_logp_difference/max"} <= record.keys()
    assert record["kl"] == pytest.approx(0.0, abs=1e-12)  # the reference is where RL began
    assert estimator_of(recipe)[1].kl == "reward"
