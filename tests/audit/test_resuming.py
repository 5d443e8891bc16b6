"""Is a resumed run the run that nobody interrupted? Our own loop, and runs that forget something."""

import io
import json
import math

import numpy as np
import pytest
import torch

from assay.audit.invariants.resume import Leg, resume, same_state
from assay.tasks.chain import draw_splits
from assay.training.checkpoint import from_bytes, to_bytes
from assay.training.config import Recipe
from assay.training.loop import Hooks, run
from assay.training.state import adamw, start
from assay.verdicts import Verdict

FIRST = torch.zeros(2, dtype=torch.float64)


class Noisy:
    """A run of six steps in two epochs: momentum, noise and a shuffled order, each of which can be forgotten."""

    def __init__(self, forget=(), steps=6, skip=None):
        self.forget, self.steps, self.skip = forget, steps, skip

    def __call__(self, checkpoint):
        state = {"weights": FIRST.clone(), "momentum": FIRST.clone(), "step": 0, "noise": None}
        generator = torch.Generator().manual_seed(3)
        if checkpoint is not None:
            read = torch.load(io.BytesIO(checkpoint), weights_only=True)
            state |= {name: value for name, value in read.items() if name not in self.forget}
            if "noise" not in self.forget:
                generator.set_state(state["noise"])
        records, checkpoints = [], []
        while state["step"] < self.steps:
            noise = torch.randn(2, generator=generator, dtype=torch.float64)
            state["momentum"] = 0.9 * state["momentum"] + noise
            state["weights"] = state["weights"] + 0.1 * state["momentum"]
            state["step"] += 1
            state["noise"] = generator.get_state()
            records.append({"noise": noise, "step": state["step"]})
            buffer = io.BytesIO()
            torch.save(state, buffer)
            checkpoints.append(None if state["step"] == self.skip else buffer.getvalue())
        return Leg(records, checkpoints, {name: value for name, value in state.items()})


def test_a_run_that_restores_everything_holds():
    check = resume(Noisy)
    assert check.verdict is Verdict.HOLDS and check.invariant == "I11"
    assert check.exactness == "interrupted after 5 of 6 steps"
    assert resume(Noisy, restart=False).verdict is Verdict.HOLDS
    assert resume(lambda: Noisy(skip=3)).exactness == "interrupted after 4 of 6 steps"
    assert resume(Noisy, at=[2, 4]).exactness == "interrupted after 2 of 6 steps"


@pytest.mark.parametrize(
    ("forgotten", "finding"),
    [
        ("momentum", "resumed after step 1 of 6: at the end, momentum[0] is"),
        ("weights", "resumed after step 1 of 6: at the end, weights[0] is"),
        ("noise", "resumed after step 1 of 6: in step 2, noise[0] is"),
        ("step", "resumed after step 1 of 6: in step 2, step is 1, not 2"),
    ],
)
def test_what_is_forgotten_is_named_where_it_first_shows(forgotten, finding):
    check = resume(lambda: Noisy(forget=(forgotten,)))
    assert check.verdict is Verdict.DISAGREES and check.findings[0].startswith(finding), check
    assert len(check.findings) == 5


def test_the_witness_has_both_values():
    check = resume(lambda: Noisy(forget=("noise",)))
    generator = torch.Generator().manual_seed(3)
    first, second = (torch.randn(2, generator=generator, dtype=torch.float64) for _ in range(2))
    assert f"noise[0] is {first[0].item()!r}, not {second[0].item()!r} (and 1 more of 2)" in check.findings[0]


@pytest.mark.parametrize(
    ("change", "finding"),
    [(-1, "it makes 3 steps, 4 were left"), (1, "it makes 5 steps, 4 were left")],
)
def test_too_few_and_too_many_steps_are_counted(change, finding):
    def train(checkpoint):
        return Noisy(steps=6 + (change if checkpoint is not None else 0))(checkpoint)

    check = resume(lambda: train, at=[2])
    assert check.findings == (f"resumed after step 2 of 6: {finding}",)


def test_no_step_at_all_is_no_clean_exit():
    def train(checkpoint):
        return Noisy()(None) if checkpoint is None else Leg([], [], Noisy()(None).state)

    assert "it makes 0 steps, 5 were left" in resume(lambda: train).findings[0]


class Remembering(Noisy):
    """Counts its calls: harmless in a new process, not in the same one."""

    calls = 0

    def __call__(self, checkpoint):
        self.calls += 1
        leg = super().__call__(checkpoint)
        return Leg(leg.records, leg.checkpoints, {**leg.state, "calls": self.calls})


def test_what_one_process_keeps_shows_in_that_process_alone():
    assert resume(Remembering).verdict is Verdict.HOLDS
    check = resume(Remembering, restart=False)
    assert check.findings[0] == "resumed after step 1 of 6: at the end, calls is 2, not 1"


def test_our_own_loop_resumes_bit_for_bit_through_warm_up_and_rl():
    recipe = Recipe.model_validate(
        {
            "save_steps": 1,
            "warmup": {"steps": 3},
            "rl": {"steps": 4},
            "evaluation": {"samples": 100, "every": 4},
        }
    )
    check = resume(own_loop(recipe))
    assert check.verdict is Verdict.HOLDS, check
    assert check.exactness == "interrupted after 6 of 7 steps"


def test_our_own_loop_without_its_moments_is_found():
    recipe = Recipe.model_validate({"save_steps": 1, "warmup": {"steps": 2}, "rl": {"steps": 3}})
    check = resume(own_loop(recipe, forget_moments=True))
    assert check.verdict is Verdict.DISAGREES
    assert check.findings[0].startswith("resumed after step 1 of 5: in step 3"), "step 2 moves the weights otherwise"
    assert not any(finding.startswith("resumed after step 2") for finding in check.findings), "RL begins without any"


def own_loop(recipe, *, forget_moments=False):
    task = recipe.task
    problems = draw_splits(recipe.seed, train=task.train_problems, test=task.test_problems)["train"]

    def train(checkpoint):
        state = start(recipe) if checkpoint is None else from_bytes(checkpoint, recipe, place="a checkpoint")
        if checkpoint is not None and forget_moments:
            state.optimizer = adamw(state.policy, recipe.warmup if state.phase == "warmup" else recipe.rl)
        records, saved = [], []
        hooks = Hooks(
            emit=lambda record, seconds: records.append(json.loads(json.dumps(record))),
            save=lambda state: saved.append(to_bytes(state)),
            monitor=lambda policy, reference: {},
        )
        run(state, recipe, problems, hooks)
        weights = {name: weight.detach().clone() for name, weight in state.policy.named_parameters()}
        return Leg(records, saved, {"weights": weights, "checkpoint": saved[-1]})

    return lambda: train


@pytest.mark.parametrize(
    ("a", "b", "finding"),
    [
        ({"w": FIRST}, {"w": FIRST.clone()}, None),
        ({"w": torch.tensor([float("nan")])}, {"w": torch.tensor([float("nan")])}, None),
        ({"n": np.arange(3)}, {"n": np.arange(3)}, None),
        ({"x": float("nan"), "l": [1, "a", None]}, {"x": float("nan"), "l": [1, "a", None]}, None),
        ({"w": torch.zeros(0)}, {"w": torch.zeros(0)}, None),
        ({"w": FIRST}, {"w": FIRST + 2.0**-60}, "w[0] is 0.0, not 8.673617379884035e-19 (and 1 more of 2)"),
        ({"w": -FIRST}, {"w": FIRST}, "w[0] is -0.0, not 0.0 (and 1 more of 2)"),
        ({"w": FIRST.float()}, {"w": FIRST}, "w is torch.float32 (2,), not torch.float64 (2,)"),
        ({"w": FIRST}, {"w": FIRST[:1]}, "w is torch.float64 (2,), not torch.float64 (1,)"),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, "a.b is 1, not 2"),
        ({"a": 1}, {"a": 1, "b": 2}, "b is missing"),
        ({"a": 1, "b": 2}, {"a": 1}, "b is unexpected"),
        ({"a": 1}, {"a": 1.0}, "a is 1, not 1.0"),
        ({"a": [1, 2]}, {"a": [1]}, "a is [1, 2], not [1]"),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, "a[1].b is 2, not 3"),
        ({"w": FIRST}, {"w": None}, "w is a tensor (2,), not None"),
        ({"n": np.arange(3)}, {"n": np.arange(3) * 2}, "n[1] is 1, not 2 (and 1 more of 3)"),
        ({"s": torch.tensor(3)}, {"s": torch.tensor(4)}, "s is 3, not 4"),
        ({"c": torch.tensor([1j])}, {"c": torch.tensor([1j])}, None),
        ({"c": torch.tensor([1j, 2.0])}, {"c": torch.tensor([1j, 2.5])}, "c[1] is (2+0j), not (2.5+0j)"),
        ({"t": np.array(["a", "b"])}, {"t": np.array(["a", "c"])}, "t[1] is 'b', not 'c'"),
        ({"t": np.array([{"a": 1}])}, {"t": np.array([{"a": 1}])}, None),
        (
            {"f": torch.float32, "n": None, "k": Verdict.HOLDS},
            {"f": torch.float32, "n": None, "k": Verdict.HOLDS},
            None,
        ),
    ],
)
def test_states_are_compared_entry_by_entry(a, b, finding):
    check = same_state(a, b)
    assert check.findings == (() if finding is None else (finding,))
    assert check.verdict is (Verdict.HOLDS if finding is None else Verdict.DISAGREES)


@pytest.mark.parametrize(
    ("a", "b", "finding"),
    [
        ([-math.inf, 1.0], [-math.inf, 1.0], None),
        ([-math.inf, 1.0 + 1e-8], [-math.inf, 1.0], None),
        ([5.0, 1.0], [-math.inf, 2.0], "w[0] is 5.0, not -inf (and 1 more of 2)"),
        ([math.inf, 1.0], [math.inf, 2.0], "w[1] is 1.0, not 2.0"),
        ([math.inf], [-math.inf], "w[0] is inf, not -inf"),
        ([math.nan, 1.0], [math.nan, 1.0], None),
        ([math.nan, 1.0], [0.0, 1.0], "w[0] is nan, not 0.0"),
        ([0.0, 1.0], [math.nan, 1.0], "w[0] is 0.0, not nan"),
        ([0.0, 0.0], [0.0, 0.0], None),
        ([1e-300, 0.0], [0.0, 0.0], "w[0] is 1e-300, not 0.0"),
        ([1j, 1.0], [1j, 1.0 + 1e-8], None),
        ([1j, 1.0], [1j, 1.1], "w[1] is (1+0j), not (1.1+0j)"),
    ],
)
def test_a_tolerance_is_of_what_is_finite(a, b, finding):
    made, expected = (
        torch.tensor(values, dtype=torch.complex128 if 1j in values else torch.float64) for values in (a, b)
    )
    check = same_state({"w": made}, {"w": expected}, tolerance=1e-6)
    assert check.findings == (() if finding is None else (finding,))
    assert check.verdict is (Verdict.HOLDS if finding is None else Verdict.DISAGREES)


class Opaque:
    """Says nothing of what it holds."""


class Incomparable:
    """Refuses to be compared."""

    def __eq__(self, other):
        raise RuntimeError("ask my owner")

    __hash__ = None


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (Opaque, "which says nothing of what it holds; save tensors, numbers and text"),
        (Incomparable, "the comparison of x raised RuntimeError: ask my owner"),
        (lambda: torch.zeros(2, device="meta"), "the comparison of x raised"),
    ],
)
def test_what_cannot_be_compared_is_no_verdict(value, reason):
    for tolerance in (0.0, 1e-6):
        check = same_state({"x": value()}, {"x": value()}, tolerance=tolerance)
        assert check.verdict is Verdict.COULD_NOT_RUN and reason in check.detail, check


def test_a_rounded_export_is_the_policy_and_not_its_base():
    generator = torch.Generator().manual_seed(0)
    base, a, b = (torch.randn(*shape, generator=generator) for shape in ((8, 8), (8, 2), (2, 8)))
    hidden = torch.randn(5, 8, generator=generator)
    adapted = {"logits": hidden @ (base + a @ b)}
    merged = {"logits": hidden @ (base + a @ b).half().float()}
    assert same_state(merged, adapted).verdict is Verdict.DISAGREES
    assert same_state(merged, adapted, tolerance=2e-3).verdict is Verdict.HOLDS
    assert same_state({"logits": hidden @ base}, adapted, tolerance=2e-3).verdict is Verdict.DISAGREES


def unchecked_leg(*parts):
    """Return a training whose leg holds what its fields must not."""

    def train(checkpoint):
        leg = Leg([], [], {})
        for name, made in zip(("records", "checkpoints", "state"), parts, strict=True):
            object.__setattr__(leg, name, made)
        return leg

    return train


def random_run(checkpoint):
    return Leg([{"noise": torch.rand(())}], [b""], {})


def broken(checkpoint):
    raise FileNotFoundError("no checkpoint-3")


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (lambda: random_run, "two runs that nobody interrupts differ: in step 1, noise is"),
        (lambda: broken, "the training raised FileNotFoundError: no checkpoint-3"),
        (lambda: lambda checkpoint: None, "must return a Leg"),
        (lambda: lambda checkpoint: Leg([{}], [], {}), "must return a Leg, with a checkpoint or None for each"),
        (lambda: lambda checkpoint: Leg([], [], {}), "made no step"),
        (lambda: lambda checkpoint: Leg([{}, {}], [None, None], {}), "left a checkpoint"),
        (lambda: lambda checkpoint: Leg([{}, {}], [b"", b""], {}), "the state at the end is empty"),
        (lambda: unchecked_leg(iter(()), [], {"w": 1}), "must return a Leg"),
        (lambda: unchecked_leg([{}], None, {"w": 1}), "must return a Leg"),
        (lambda: unchecked_leg([{}], [b""], [1]), "must return a Leg"),
    ],
)
def test_a_run_that_cannot_be_interrupted_is_no_verdict_on_it(start, message):
    check = resume(start)
    assert check.verdict is Verdict.COULD_NOT_RUN and message in check.detail, check


def test_nothing_is_not_the_same_as_nothing():
    assert same_state({}, {}).verdict is Verdict.COULD_NOT_RUN
