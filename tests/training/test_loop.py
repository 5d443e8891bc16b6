import copy
import dataclasses

import pytest
import torch

from assay.core.digest import weights_digest
from assay.errors import Interrupted, UpdateError
from assay.policies.transformer import TinyTransformer
from assay.tasks.chain import draw_splits
from assay.training import checkpoint, loop
from assay.training.config import Recipe, build_recipe
from assay.training.state import State, begin_rl, start

PROBLEMS = draw_splits(29, train=20, test=20)["train"]


class Recorder:
    """Hooks that keep what they are given."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.records: list[dict] = []
        self.saved: list[bytes] = []
        self.hooks = loop.Hooks(
            emit=lambda record, seconds: self.records.append(record),
            save=lambda state: self.saved.append(checkpoint.to_bytes(state)),
            monitor=lambda policy, reference: {},
            stopping=lambda: stop_after is not None and len(self.records) >= stop_after,
        )


def recipe(**rl) -> Recipe:
    return build_recipe({"warmup": {"steps": 5}, "rl": {"steps": 6, **rl}, "save_steps": 3}, place="test")


def run(settings: Recipe, state: State | None = None) -> tuple[State, Recorder]:
    state, recorder = state or start(settings), Recorder()
    loop.run(state, settings, PROBLEMS, recorder.hooks)
    return state, recorder


def warmed(settings: Recipe) -> State:
    """A state at the first RL step."""
    state, _ = run(settings.model_copy(update={"rl": settings.rl.model_copy(update={"steps": 0})}))
    state.phase, state.step = "rl", 0
    return state


def test_reference_is_the_snapshot_after_warmup_and_keeps_its_digest():
    settings = recipe()
    state, _ = run(settings)
    alone = start(settings)
    for _ in range(5):
        loop._warmup_step(alone, settings, PROBLEMS)()
    assert set(state.reference_digests) == {"rl 0", "rl 3", "end"}
    expected = weights_digest(alone.policy.named_parameters())
    assert set(state.reference_digests.values()) == {expected}
    assert expected != weights_digest(state.policy.named_parameters())


def test_no_gradient_ever_reaches_the_reference():
    state, _ = run(recipe())
    assert all(p.grad is None and not p.requires_grad for p in state.reference.parameters())


def test_a_reference_synchronised_to_the_policy_is_caught_by_its_digest():
    """A faulty loop copies the policy into the reference after a step; the next checkpoint refuses."""
    settings = recipe()
    state = start(settings)
    recorder = Recorder()

    def synchronise(record: dict, seconds: float) -> None:
        if record["phase"] == "rl":
            state.reference.load_state_dict(state.policy.state_dict())

    with pytest.raises(UpdateError, match="rl step 3: the frozen reference changed"):
        loop.run(state, settings, PROBLEMS, dataclasses.replace(recorder.hooks, emit=synchronise))


def test_warmup_follows_the_full_responses_likelihood():
    """First step against torch's cross-entropy, summed over the two tokens and averaged over the problems."""
    settings = recipe()
    state = start(settings)
    fresh = copy.deepcopy(state.policy)
    record = loop._warmup_step(state, settings, PROBLEMS)()
    from assay.tasks.chain import encode_answers, encode_prompts

    prompts, answers = encode_prompts(PROBLEMS), encode_answers(PROBLEMS)
    logits = fresh(torch.cat([prompts, answers[:, :1]], 1))[:, 5:]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), answers.flatten(), reduction="sum") / 20
    assert record["negative_log_likelihood"] == pytest.approx(float(loss.detach()), rel=1e-6)
    gradient = torch.autograd.grad(loss, tuple(fresh.parameters()))
    norm = float(torch.cat([g.flatten() for g in gradient]).norm())
    assert record["grad_norm"] == pytest.approx(norm, rel=1e-5)


def all_wrong(problem, response):
    from assay.types import Outcome

    return Outcome(0.0, "wrong")


def test_a_batch_without_signal_leaves_weights_and_adams_moments_untouched(monkeypatch):
    """Two ordinary steps give Adam momentum; then, at beta 0, rejecting everything leaves no advantage."""
    settings = build_recipe({"rl": {"beta": 0.0}}, place="test")
    state = warmed(settings)
    step = loop._rl_step(state, settings, PROBLEMS, lambda p, r: {})
    assert step()["stepped"] and step()["stepped"]
    weights = weights_digest(state.policy.named_parameters())
    moments = copy.deepcopy(state.optimizer.state_dict())
    monkeypatch.setattr("assay.tasks.chain.Problem.verify", all_wrong)
    record = step()
    assert record["zero_signal_groups"] == 5 and not record["stepped"]
    assert record["grad_norm"] == record["clipped_grad_norm"] == 0.0
    assert weights_digest(state.policy.named_parameters()) == weights
    after = state.optimizer.state_dict()
    for index, entry in moments["state"].items():
        for name, value in entry.items():
            assert torch.equal(value, after["state"][index][name])
    assert all(p.grad is None for p in state.policy.parameters())


def test_adams_momentum_would_have_moved_them():
    """The reason for not stepping: with a gradient of zero, AdamW still moves weights that have momentum."""
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.AdamW([weight], lr=0.1, weight_decay=0.0)
    weight.grad = torch.ones(1)
    optimizer.step()
    before = weight.detach().clone()
    weight.grad = torch.zeros(1)
    optimizer.step()
    assert float((weight.detach() - before).abs()) > 0.01


def test_equal_rewards_do_step_once_policy_and_reference_differ(monkeypatch):
    settings = recipe()
    state = warmed(settings)
    step = loop._rl_step(state, settings, PROBLEMS, lambda p, r: {})
    step()
    monkeypatch.setattr("assay.tasks.chain.Problem.verify", all_wrong)
    record = step()
    assert record["strict_reward"] == 0.0 and record["stepped"] and record["grad_norm"] > 0


@pytest.mark.parametrize("phase", ["warmup", "rl"])
def test_a_planted_nan_stops_the_run_naming_parameter_and_step(phase):
    """Poison one gradient of the second step of a phase; the run must stop there, and the weights stay as they were."""
    settings = recipe()
    state = warmed(settings) if phase == "rl" else start(settings)
    recorder = Recorder()
    steps = []

    def plant(record: dict, seconds: float) -> None:
        steps.append(record)
        if len(steps) == 1:
            state.policy.feedforward_in.bias.register_hook(lambda gradient: gradient * float("nan"))
            steps.append(weights_digest(state.policy.named_parameters()))

    with pytest.raises(UpdateError, match=f"{phase} step 2: the gradient of parameter feedforward_in.bias is not"):
        loop.run(state, settings, PROBLEMS, dataclasses.replace(recorder.hooks, emit=plant))
    assert weights_digest(state.policy.named_parameters()) == steps[1]


def test_a_missing_gradient_stops_the_run(monkeypatch):
    """A forward that detaches the position embedding: its gradient is missing, not zero."""
    settings = recipe()
    state = start(settings)

    def forward(self: TinyTransformer, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token_embedding(tokens) + self.position_embedding.weight[: tokens.shape[1]].detach()
        x = x + self._attention(self.attention_norm(x))
        x = x + self.feedforward_out(torch.tanh(self.feedforward_in(self.feedforward_norm(x))))
        return self.head(self.final_norm(x))

    monkeypatch.setattr(TinyTransformer, "forward", forward)
    with pytest.raises(UpdateError, match="warmup step 1: parameter position_embedding.weight has no gradient"):
        loop.run(state, settings, PROBLEMS, Recorder().hooks)


def test_every_response_comes_from_the_policy_that_is_updated(monkeypatch):
    """The rollout of step k must be drawn by the weights that step k's backward differentiates."""
    from assay.training import estimate as module

    drawn_by, settings = [], recipe()
    fresh = module.sample
    monkeypatch.setattr(
        module,
        "sample",
        lambda policy, *rest: (drawn_by.append(weights_digest(policy.named_parameters())), fresh(policy, *rest))[1],
    )
    state = warmed(settings)
    seen, step = [], loop._rl_step(state, settings, PROBLEMS, lambda p, r: {})
    for _ in range(4):
        seen.append(weights_digest(state.policy.named_parameters()))
        step()
    assert drawn_by == seen and len(set(seen)) == 4


def test_a_stopped_run_continues_to_the_same_bytes():
    settings = recipe()
    whole, recorder = run(settings)
    for stop_after in range(1, 11):
        state, first = start(settings), Recorder(stop_after)
        with pytest.raises(Interrupted):
            loop.run(state, settings, PROBLEMS, first.hooks)
        resumed, second = run(settings, checkpoint.from_bytes(first.saved[-1], settings, place="checkpoint.pt"))
        assert checkpoint.to_bytes(resumed) == checkpoint.to_bytes(whole)
        assert first.records + second.records == recorder.records


def test_rl_starts_with_a_fresh_optimizer():
    settings = recipe()
    state = start(settings)
    loop._warmup_step(state, settings, PROBLEMS)()
    before = state.optimizer
    begin_rl(state, settings)
    assert state.optimizer is not before and not state.optimizer.state
    assert state.optimizer.param_groups[0]["lr"] == 0.0015


def test_a_two_step_smoke_run_covers_the_whole_process_with_finite_values():
    settings = build_recipe({"warmup": {"steps": 2}, "rl": {"steps": 2}}, place="test")
    state, recorder = run(settings)
    assert state.phase == "done" and len(recorder.records) == 4
    numbers = [v for record in recorder.records for v in record.values() if isinstance(v, float)]
    assert torch.tensor(numbers).isfinite().all()


def test_an_empty_plan_is_a_run_too():
    state, recorder = run(build_recipe({"warmup": {"steps": 0}, "rl": {"steps": 0}}, place="test"))
    assert state.phase == "done" and not recorder.records
    assert weights_digest(state.policy.named_parameters()) == state.reference_digests["end"]
