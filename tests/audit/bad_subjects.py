"""Hand every check of its own subjects what they must not be or return, and print each answer that is no Check.

Run as a program, without the type checks that tests put into every call: users have none either.
"""

import sys

import numpy as np
import torch

from assay.audit.check import Check
from assay.audit.invariants.alignment import row_alignment
from assay.audit.invariants.buffering import Trained, buffered
from assay.audit.invariants.fixed_points import fixed_points, reference_after_restart
from assay.audit.invariants.freshness import Pair, freshness
from assay.audit.invariants.groups import group_semantics
from assay.audit.invariants.liveness import liveness
from assay.audit.invariants.metrics import best_checkpoint, evaluation, majority
from assay.audit.invariants.probes import Case
from assay.audit.invariants.resume import Leg, resume, same_state
from assay.audit.invariants.scoring import scorer_agrees, statistic_agrees
from assay.audit.invariants.seeds import seeds
from assay.audit.invariants.verifiers import verifier


class Hostile:
    """Raises whatever is asked of it."""

    def __getattr__(self, name):
        raise KeyError(name)

    def __float__(self):
        raise KeyError("float")

    def __eq__(self, other):
        raise KeyError("eq")

    __hash__ = None


def no_parameters():
    raise KeyError("boom")


BAD = {
    "None": None,
    "a text": "x",
    "a mapping": {},
    "a list": [],
    "an integer": 1,
    "a number": 1.5,
    "a truth": True,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "a complex number": 1j,
    "a tensor of one": torch.tensor(1.0),
    "a tensor of NaN": torch.tensor(float("nan")),
    "a tensor of nothing": torch.zeros(0),
    "a tensor of three": torch.zeros(3),
    "a tensor of integers": torch.tensor([1, 2]),
    "a complex tensor": torch.zeros(3, dtype=torch.complex64),
    "a truth tensor": torch.tensor(True),
    "a tensor without data": torch.zeros(3, device="meta"),
    "a pair": (1, 2),
    "an array": np.zeros(3),
    "an array of objects": np.array([None, "x"], dtype=object),
    "a set": {1},
    "bytes": b"x",
    "an object": object(),
    "a hostile object": Hostile(),
    "a builtin": max,
    "a function": no_parameters,
}


def raising(*_):
    raise KeyError("boom")


def leaving(*_):
    sys.exit(3)


def deep(*_):
    raise RecursionError("deep")


CASES = [Case("One?", "42"), Case("Another?", "1379")]
WEIGHTS = {"w": torch.zeros(3, dtype=torch.float64)}


def live(tokens):
    return WEIGHTS["w"].log_softmax(0)[tokens]


def right(logits, tokens):
    return logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]


def centred(reward, group):
    return reward - torch.stack([reward[group == name].mean() for name in group])


def softmax(logits):
    return logits.softmax(-1)


def rows_with(name):
    """Return a check of a loop whose rows hold the made value in one field."""

    def check(make):
        def loop(policy):
            prompt = torch.tensor([0, 1])
            response, logp = policy.draw(prompt)
            parts = {"prompt": prompt, "response": response, "logp_old": logp, "weight": None}
            yield Trained(**{**parts, name: make()})
            policy.update()

        return buffered(loop)

    return check


RETURNS = {
    "an advantage function": lambda make: group_semantics(lambda reward, group: make()),
    "a definition": lambda make: group_semantics(centred, definition=lambda reward: make()),
    "a maker of losses": lambda make: liveness(lambda beta=0.1: make(), {"beta": 0.3}),
    "a loss": lambda make: liveness(lambda beta=0.1: lambda logp: make(), {"beta": 0.3}),
    "metrics": lambda make: fixed_points(lambda logp: make()),
    "a metric": lambda make: fixed_points(lambda logp: {"ratio": make()}),
    "an exact value": lambda make: fixed_points(lambda logp: {"kl": 0.0}, exact={"kl": lambda problem: make()}),
    "a start": lambda make: reference_after_restart(lambda initial, saved: make()),
    "both of a start": lambda make: reference_after_restart(lambda initial, saved: (make(), make())),
    "a trainer's score": lambda make: freshness(Pair(WEIGHTS, lambda: None, lambda tokens: make(), live)),
    "a sampler's score": lambda make: freshness(Pair(WEIGHTS, lambda: None, live, lambda tokens: make())),
    "a version": lambda make: freshness(Pair(WEIGHTS, lambda: None, live, live, lambda: make())),
    "a sync": lambda make: freshness(Pair(WEIGHTS, lambda: make(), live, live)),
    "a loop": lambda make: buffered(lambda policy: make()),
    "rows": lambda make: buffered(lambda policy: iter([make()])),
    **{f"rows' {name}": rows_with(name) for name in ("prompt", "response", "logp_old", "weight")},
    "a scorer": lambda make: scorer_agrees(softmax, lambda logits, tokens: make()),
    "a sampler": lambda make: scorer_agrees(lambda logits: make(), right),
    "an entropy": lambda make: statistic_agrees(softmax, lambda logits: make(), of="entropy"),
    "a grader": lambda make: verifier(lambda response, gold: make(), CASES[:1], seconds=2.0),
    "a way to write": lambda make: verifier(lambda response, gold: 1.0, CASES, write=lambda answer: make()),
    "an estimator": lambda make: evaluation(lambda outcomes, k: make(), n=2),
    "a closed form": lambda make: evaluation(lambda outcomes, k: 0.5, closed_form=lambda n, c, k: make(), n=2),
    "a vote": lambda make: majority(lambda answers: make(), n=2),
    "a choice": lambda make: best_checkpoint(lambda log: make()),
    "a start of a run": lambda make: resume(lambda: make()),
    "a run": lambda make: resume(lambda: lambda checkpoint: make()),
    "a record": lambda make: resume(lambda: lambda checkpoint: Leg([make()] * 2, [1, 2], {"w": 1})),
    "a final state": lambda make: resume(lambda: lambda checkpoint: Leg([{}, {}], [1, 2], make())),
    "records": lambda make: resume(lambda: lambda checkpoint: Leg(make(), make(), {"w": 1})),
    "a seed": lambda make: seeds(lambda seed: make()),
    "scores": lambda make: row_alignment(lambda rows: make(), ["1", "2"]),
    "a score": lambda make: row_alignment(lambda rows: [make() for _ in rows], ["1", "2"]),
    "a failing score": lambda make: row_alignment(lambda rows: [float(r) if r else make() for r in rows], ["1", "2"]),
}
ITSELF = {
    "group_semantics": group_semantics,
    "definition": lambda bad: group_semantics(centred, definition=bad),
    "liveness": lambda bad: liveness(bad, {"beta": 0.3}),
    "fixed_points": fixed_points,
    "exact": lambda bad: fixed_points(lambda logp: {"kl": 0.0}, exact={"kl": bad}),
    "reference_after_restart": reference_after_restart,
    "freshness": freshness,
    "sync": lambda bad: freshness(Pair(WEIGHTS, bad, live, live)),
    "weights": lambda bad: freshness(Pair(bad, lambda: None, live, live)),
    "a weight": lambda bad: freshness(Pair({"w": bad}, lambda: None, live, live)),
    "a value at the start": lambda bad: fixed_points(lambda logp: {"kl": 0.0}, at_start={"kl": bad}),
    "buffered": buffered,
    "scorer": lambda bad: scorer_agrees(softmax, bad),
    "sampler": lambda bad: scorer_agrees(bad, right),
    "statistic": lambda bad: statistic_agrees(softmax, bad, of="kl"),
    "verifier": lambda bad: verifier(bad, CASES),
    "a case": lambda bad: verifier(lambda response, gold: 1.0, [bad]),
    "a gold answer": lambda bad: verifier(lambda response, gold: 1.0, [Case("One?", bad)]),
    "evaluation": evaluation,
    "majority": majority,
    "best_checkpoint": best_checkpoint,
    "resume": resume,
    "a state": lambda bad: same_state(bad, {"a": 1.0}),
    "an entry": lambda bad: same_state({"a": bad}, {"a": bad}),
    "one entry": lambda bad: same_state({"a": bad}, {"a": torch.ones(3)}),
    "a near entry": lambda bad: same_state({"a": bad}, {"a": torch.ones(3)}, tolerance=0.1),
    "seeds": seeds,
    "row_alignment": lambda bad: row_alignment(bad, ["1", "2"]),
}


def complaint(what, call):
    """Return how a call did not end in a Check; nothing where it did."""
    try:
        made = call()
    except BaseException as error:
        return f"{what}: {type(error).__name__}: {str(error)[:80]}"
    return "" if made is None or isinstance(made, Check) else f"{what}: {type(made).__name__}"


def main():
    for name, check in RETURNS.items():
        makes = {**{bad: (lambda made=made: made) for bad, made in BAD.items()}, "an error": raising}
        for bad, make in {**makes, "an exit": leaving, "a recursion": deep}.items():
            if line := complaint(f"{name} returns {bad}", lambda check=check, make=make: check(make)):
                print(line)
    for name, check in ITSELF.items():
        for bad, made in BAD.items():
            if line := complaint(f"{name} is {bad}", lambda check=check, made=made: check(made)):
                print(line)


if __name__ == "__main__":
    main()
