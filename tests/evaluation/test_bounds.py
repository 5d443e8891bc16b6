import json
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import InputError
from assay.evaluation import bounds as module
from assay.evaluation.bounds import bounds_record, certified_bounds
from assay.evaluation.exact import evaluate_exactly
from assay.tasks.chain import DIGITS, RESPONSE_LENGTH, draw_splits, encode_prompts
from assay.training.config import Recipe
from assay.training.state import initial_policy
from assay.types import Outcome

OUTCOMES = [Outcome(1.0, "right"), Outcome(0.0, "wrong"), Outcome(None, "unparseable"), Outcome(None, "timeout")]


class Tabular:
    """A policy by table: one distribution for each prefix, the end token 0, longest length ``depth``."""

    def __init__(self, *, seed, tokens=3, depth=3, scale=2.0, cut=0.0, dtype=torch.float64):
        self.seed, self.tokens, self.depth, self.scale, self.cut, self.dtype = seed, tokens, depth, scale, cut, dtype
        self.read = []

    def row(self, prefix):
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + hash(prefix) % 1_000_003)
        logits = self.scale * torch.randn(self.tokens, generator=generator, dtype=torch.float64)
        off = torch.rand(self.tokens, generator=generator) < self.cut
        off[int(logits.argmax())] = False
        return logits.masked_fill(off, -math.inf).to(self.dtype).log_softmax(-1)

    def next_logp(self, prefixes):
        self.read.append(list(prefixes))
        return torch.stack([self.row(prefix) for prefix in prefixes])

    def ends(self, prefix):
        return prefix[-1] == 0 or len(prefix) == self.depth

    def grade(self, responses):
        return [OUTCOMES[hash((self.seed, response)) % 4] for response in responses]

    def bounds(self, **options):
        return certified_bounds(self.next_logp, self.ends, self.grade, **options)

    def finished(self, prefix=()):
        """Return every response that the policy gives any chance."""
        children = [(*prefix, t) for t, value in enumerate(self.row(prefix).tolist()) if value > -math.inf]
        return [r for child in children for r in ([child] if self.ends(child) else self.finished(child))]

    def truth(self):
        """Return the masses of each outcome with 50 digits, from the log-probabilities as they are given."""
        masses = {"right": Decimal(0), "wrong": Decimal(0), "unscorable": Decimal(0)}

        def walk(prefix, mass):
            weights = [Decimal(value).exp() if value > -math.inf else Decimal(0) for value in self.row(prefix).tolist()]
            for token, weight in enumerate(weights):
                child, chance = (*prefix, token), mass * weight / sum(weights)
                if chance and self.ends(child):
                    status = self.grade([child])[0].status
                    masses[status if status in masses else "unscorable"] += chance
                elif chance:
                    walk(child, chance)

        with localcontext(prec=50):
            walk((), Decimal(1))
            assert abs(sum(masses.values()) - 1) < Decimal("1e-45")
            return masses


POLICIES = st.builds(
    Tabular,
    seed=st.integers(0, 10_000),
    tokens=st.integers(2, 4),
    depth=st.integers(1, 4),
    scale=st.sampled_from([0.0, 0.3, 2.0, 20.0, 400.0]),
    cut=st.sampled_from([0.0, 0.5]),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)


@settings(max_examples=60, deadline=None)
@given(POLICIES, st.integers(1, 40), st.integers(1, 5), st.integers(1, 4))
def test_the_truth_is_never_excluded(policy, passes, batch, children):
    made, truth = policy.bounds(passes=passes, batch=batch, children=children), policy.truth()
    for kind, mass in truth.items():
        assert Decimal(getattr(made, kind)) <= mass
    assert Decimal(made.low) <= truth["right"] <= Decimal(made.high)
    assert truth["right"] + truth["unscorable"] <= Decimal(made.high_if_unscorable_right)
    assert 1 <= sum(map(Fraction, (made.right, made.wrong, made.unscorable, made.unseen))) <= 1 + Fraction(1, 10**15)
    assert made.passes == sum(map(len, policy.read)) <= passes


def test_rounding_never_lifts_a_mass_above_the_truth():
    """Whole trees, where nothing but rounding is left: unwidened sums would be too large in about every second one."""
    for seed in range(40):
        policy = Tabular(seed=seed, tokens=4, depth=4)
        made = policy.bounds(passes=100)
        assert made.complete
        assert all(Decimal(getattr(made, kind)) <= mass for kind, mass in policy.truth().items())


@settings(max_examples=30, deadline=None)
@given(POLICIES, st.integers(1, 5), st.integers(1, 4))
def test_more_passes_never_widen_the_bounds(policy, batch, children):
    low, high, unseen = 0.0, 1.0, 1.0
    for passes in range(1, 30):
        made = policy.bounds(passes=passes, batch=batch, children=children)
        assert made.low >= low and made.high <= high and made.unseen <= unseen
        low, high, unseen = made.low, made.high, made.unseen


@settings(max_examples=30, deadline=None)
@given(POLICIES)
def test_a_tree_that_is_seen_whole_is_exact(policy):
    made, truth = policy.bounds(passes=100), policy.truth()
    assert made.unseen < 1e-13
    assert made.low == pytest.approx(float(truth["right"]), abs=1e-13)
    if policy.scale <= 20:
        assert made.complete
        assert made.graded == len(policy.finished())


def test_it_is_the_exact_evaluation_of_a_transformer():
    """Two-digit answers: eleven passes see all hundred responses, and the mean is that of the enumeration."""
    problems = draw_splits(29, train=4, test=1)["train"]
    policy = initial_policy(Recipe()).double()
    exact = evaluate_exactly(policy, policy, problems)
    made = []
    for problem, prompt in zip(problems, encode_prompts(problems), strict=True):

        @torch.no_grad()
        def next_logp(prefixes, prompt=prompt):
            rows = [torch.cat([prompt, torch.tensor(prefix, dtype=torch.long)]) for prefix in prefixes]
            return policy(torch.stack(rows))[:, -1].log_softmax(-1)

        def grade(responses, problem=problem):
            return [problem.verify(response) for response in responses]

        made.append(certified_bounds(next_logp, lambda p: len(p) == RESPONSE_LENGTH, grade, passes=1 + DIGITS))
        assert made[-1].complete and made[-1].graded == DIGITS**RESPONSE_LENGTH
    assert [each.low for each in made] == pytest.approx(exact.success, abs=1e-12)
    record = bounds_record(list(range(4)), made)
    assert record["complete"]
    assert record["low"] <= exact.mean_success <= record["high"] < record["low"] + 1e-12


def test_the_likeliest_prefixes_are_read_first():
    policy = Tabular(seed=5, tokens=4, depth=4)
    policy.bounds(passes=30, batch=1)
    order = [batch[0] for batch in policy.read]

    def mass(prefix):
        return sum(float(policy.row(prefix[:at])[token]) for at, token in enumerate(prefix))

    assert order[0] == () and len(set(order)) == len(order)
    for at, prefix in enumerate(order):
        waiting = [
            (*read, t) for read in order[:at] for t in range(1, 4) if len(read) < 3 and (*read, t) not in order[:at]
        ]
        assert mass(prefix) >= max(map(mass, waiting), default=-math.inf) - 1e-12


def test_a_flat_policy_is_admitted_to_be_unknown():
    """Fifty tokens, ten long, all alike: a hundred passes see next to nothing, and say so."""
    flat = torch.full((50,), 1 / 50).log()
    made = certified_bounds(
        lambda prefixes: flat.expand(len(prefixes), -1),
        lambda prefix: len(prefix) == 10,
        lambda responses: [OUTCOMES[0]] * len(responses),
        passes=100,
        children=50,
    )
    assert (made.low, made.high, made.graded, made.complete) == (0.0, 1.0, 0, False)
    assert made.unseen == 1.0


def test_a_peaked_policy_is_known_after_as_many_passes_as_tokens():
    peaked = torch.tensor([1e-4, 1 - 1e-4], dtype=torch.float64).log()
    made = certified_bounds(
        lambda prefixes: peaked.expand(len(prefixes), -1),
        lambda prefix: len(prefix) == 8,
        lambda responses: [OUTCOMES[0 if sum(r) == 8 else 1] for r in responses],
        passes=8,
        batch=1,
    )
    assert made.low == pytest.approx((1 - 1e-4) ** 8, abs=1e-12)
    assert made.high - made.low < 1e-3


def test_what_is_cut_from_the_children_stays_unseen():
    made = Tabular(seed=1, tokens=4, depth=2, scale=0.5).bounds(passes=100, children=2)
    assert not made.complete
    assert made.unseen > 0.1


def test_what_does_not_fit_the_frontier_stays_unseen(monkeypatch):
    monkeypatch.setattr(module, "FRONTIER", 2)
    policy = Tabular(seed=1, tokens=4, depth=4, scale=0.5)
    made, truth = policy.bounds(passes=100, batch=1), policy.truth()
    assert not made.complete and made.unseen > 0.01
    assert Decimal(made.low) <= truth["right"] <= Decimal(made.high)


def test_unscorable_is_not_right_and_kept_apart():
    half = torch.tensor([0.5, 0.25, 0.25]).double().log()
    made = certified_bounds(
        lambda prefixes: half.expand(len(prefixes), -1),
        lambda prefix: True,
        lambda responses: [OUTCOMES[response[0]] for response in responses],
        passes=1,
    )
    assert (made.right, made.wrong, made.unscorable) == pytest.approx((0.5, 0.25, 0.25), abs=1e-13)
    assert made.high == pytest.approx(0.5, abs=1e-13)
    assert made.high_if_unscorable_right == pytest.approx(0.75, abs=1e-13)


def test_the_record_is_plain_json_and_its_mean_is_of_the_problems():
    made = [Tabular(seed=seed).bounds(passes=3, batch=1) for seed in range(3)]
    record = bounds_record([4, 5, 9], made)
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["low"] == pytest.approx(sum(each.low for each in made) / 3)
    assert record["high"] == pytest.approx(sum(each.high for each in made) / 3)
    assert [row["problem"] for row in record["per_problem"]] == [4, 5, 9]
    assert record["per_problem"][0]["unseen"] == made[0].unseen


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ([1.0, 2.0, 0.5], "total probability 11.7"),
        ([math.nan, -0.1, -0.2], "total probability nan"),
        ([-math.inf] * 3, "total probability 0.0"),
    ],
)
def test_what_is_no_distribution_is_refused(row, said):
    with pytest.raises(InputError, match=said):
        certified_bounds(lambda p: torch.tensor([row] * len(p)), lambda p: True, lambda r: [], passes=1)


def test_missing_rows_outcomes_or_budget_are_refused():
    policy = Tabular(seed=0)
    with pytest.raises(InputError, match="2 rows of next-token log-probabilities for 1 prefixes"):
        certified_bounds(lambda p: policy.next_logp([*p, *p]), policy.ends, policy.grade, passes=1)
    with pytest.raises(InputError, match="2 outcomes of 3 responses"):
        certified_bounds(policy.next_logp, lambda p: True, lambda r: policy.grade(r)[1:], passes=1)
    with pytest.raises(InputError, match="passes = 0"):
        policy.bounds(passes=0)
    with pytest.raises(InputError, match="1 bounds of 2 problems"):
        bounds_record([0, 1], [policy.bounds(passes=1)])
