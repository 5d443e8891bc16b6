"""One table that every algorithm passes: its exact expected gradient against its stated estimand, on and off policy.

``ASCENT`` has, for each algorithm, the coefficients of its scores written out a second time in plain Python, from the
papers' formulas. Their expectation over all ordered groups is what the tensors of ``assay.core`` must give. Where
there is a closed form, that is a third way.
"""

import dataclasses
import functools
import itertools
import math
import statistics

import pytest
import torch

from assay.audit import losses as audit
from assay.audit.adapters.own import SUBJECTS, subject
from assay.audit.call import make_batch, slope
from assay.core._parts import CONSTANT_LENGTH, TOKEN_MEAN, TOKEN_SUM
from assay.core.algorithms import ALGORITHMS
from assay.core.estimands import estimand, objective
from assay.core.estimator import Rows, loss, prepare
from assay.core.settings import COMMON, PLACEMENTS, Settings
from assay.core.streams import Stream, normals, uniforms
from assay.errors import ConfigError
from assay.tree.fields import FIELDS, objective_gradient, parse_objective
from assay.tree.prefix import Grammar, prefix_tree
from assay.tree.world import TreeProblem, default_world

EXACT = 1e-12
NAMES = list(ALGORITHMS)


def small_world(*, off_policy=False, mismatch=False, tokens=3, length=2):
    """Two problems of 7 responses of one or two tokens; off-policy as in the default world; a sampler that differs
    from the old policy too under ``mismatch``."""
    tree = prefix_tree(Grammar(tokens=tokens, max_length=length, end=0))
    shape = (len(tree.inner), tokens)

    def draw(address):
        return normals(3, Stream.INIT, math.prod(shape), problem=address).view(shape)

    def problem(number, reward):
        logits = draw(5 * number)
        old = logits + 0.4 * draw(5 * number + 1) if off_policy else logits
        sampler = old + 0.5 * draw(5 * number + 2) if mismatch else None
        return TreeProblem(f"{number}", tree, logits, logits + 0.8 * draw(5 * number + 3), old, reward, sampler)

    graded = uniforms(3, Stream.DATA, len(tree.path), problem=[1], sample=[0])[0]
    return problem(0, (graded < 0.5).double()), problem(1, graded)


ON, OFF, MISMATCH = small_world(), small_world(off_policy=True), small_world(off_policy=True, mismatch=True)
WORLDS = {"on-policy": ON, "off-policy": OFF, "sampler differs": MISMATCH}


def expected_ascent(name, settings, problem, size):
    return ascent_of(ALGORITHMS[name], settings, problem, size)


def ascent_of(algorithm, settings, problem, size):
    """Minus the expected gradient of the loss by the logits, over all multisets of responses.

    A loss whose weights know no other group is the mean over groups, so that all go in one batch; the rest one by one.
    """
    function = subject(algorithm, settings).loss
    chance = problem.sampler_logp.tolist()
    every = make_batch((problem,), [(0, torch.arange(len(chance)))])
    groups = list(itertools.combinations_with_replacement(range(len(chance)), size))
    weight = [orders(members) * math.exp(sum(chance[m] for m in members)) for members in groups]
    mass = torch.tensor(weight, dtype=torch.float64)
    at_once = len(groups) if algorithm.weights in (TOKEN_SUM, TOKEN_MEAN, CONSTANT_LENGTH) else 1
    total = torch.zeros_like(problem.logits)
    for first in range(0, len(groups), at_once):
        rows = torch.tensor(groups[first : first + at_once]).flatten()
        number = torch.arange(at_once).repeat_interleave(size)
        made = at_once * slope(function, dataclasses.replace(every.take(rows), group=number))
        made = made * mass[first + number][:, None, None]
        mask = problem.tree.mask[rows]
        total.index_add_(0, problem.tree.states[rows][mask], -made[mask])
    return total.flatten()


def orders(members):
    """How many ordered groups a multiset stands for."""
    counts = [members.count(member) for member in set(members)]
    return math.factorial(len(members)) // math.prod(math.factorial(count) for count in counts)


class Drawn:
    """The responses of one group as plain numbers."""

    def __init__(self, problem, members):
        def tokens(logits):
            return [row[: int(n)] for row, n in zip(tables[id(logits)], problem.tree.lengths, strict=True)]

        tables = {
            id(logits): problem.tree.token_logp(logits).tolist()
            for logits in (problem.logits, problem.logits_old, problem.logits_ref, problem.draws)
        }
        parts = (problem.logits, problem.logits_old, problem.logits_ref, problem.draws)
        self.new, self.old, self.ref, self.sampler = ([tokens(part)[m] for m in members] for part in parts)
        self.members, self.reward = members, [float(problem.reward[m]) for m in members]
        self.length, self.size = [len(row) for row in self.new], len(members)
        self.drawn = problem.sampler_logp.exp().tolist()

    def ratio(self, i, t):
        return math.exp(self.new[i][t] - self.old[i][t])

    def whole(self, i):
        return math.exp(sum(self.new[i]) - sum(self.sampler[i]))

    def mismatch(self, i, t=None):
        steps = range(self.length[i]) if t is None else [t]
        return math.exp(sum(self.old[i][s] - self.sampler[i][s] for s in steps))

    def others(self, i):
        return statistics.fmean(r for j, r in enumerate(self.reward) if j != i)

    def loo(self, i):
        return self.reward[i] - self.others(i)

    def centred(self, i):
        return self.reward[i] - statistics.fmean(self.reward)

    def scaled(self, i):
        if max(self.reward) == min(self.reward):
            return 0.0
        return self.centred(i) / (statistics.stdev(self.reward) + 1e-6)

    def whitened(self, values):
        """Values of each token, whitened over all of them."""
        flat = [value for row in values for value in row]
        if max(flat) == min(flat):
            return [[0.0 for _ in row] for row in values]
        mean, spread = statistics.fmean(flat), statistics.stdev(flat) + 1e-6
        return [[(value - mean) / spread for value in row] for row in values]


def clipped(ratio, adv, low=0.2, high=0.2):
    """The coefficient of a token's score under the clipped surrogate."""
    cut = (adv > 0 and ratio > 1 + high) or (adv < 0 and ratio < 1 - low)
    return 0.0 if cut else ratio * adv


def of_tokens(weight):
    """Coefficients from a function of the group, a response and a position."""
    return lambda group: [[weight(group, i, t) for t in range(n)] for i, n in enumerate(group.length)]


def gspo(group, i, t):
    mean = math.exp(statistics.fmean(a - b for a, b in zip(group.new[i], group.old[i], strict=True)))
    return clipped(mean, group.scaled(i), 3e-4, 4e-4) / group.length[i] / group.size


def token_ratio_of_two_sums(adv, low=0.2, high=0.2):
    return of_tokens(lambda g, i, t: clipped(g.ratio(i, t), adv(g)[i][t], low, high) / sum(g.length))


def scaled_tokens(g):
    return [[g.scaled(i)] * n for i, n in enumerate(g.length)]


def whitened_to_go(g):
    return g.whitened([[g.reward[i]] * n for i, n in enumerate(g.length)])


def whitened_centred(g):
    return g.whitened([[g.centred(i)] * n for i, n in enumerate(g.length)])


def dual(group, i, t):
    adv, ratio = group.loo(i), group.ratio(i, t)
    return 0.0 if adv < 0 and ratio > 3.0 else clipped(ratio, adv) / group.size


def best_lead(group, i):
    """Over all pairs with i in it: the larger minus the other, G over the number of pairs."""
    pairs = [max(group.reward[i], group.reward[j]) - group.reward[j] for j in range(group.size) if j != i]
    return group.size * sum(pairs) / math.comb(group.size, 2)


def distinct(group):
    """Leave-one-out, averaged over all samples that give the same distinct responses."""
    kinds = sorted(set(group.members))
    reward = {m: group.reward[group.members.index(m)] for m in kinds}
    coefficient, total = dict.fromkeys(kinds, 0.0), 0.0
    for sample in itertools.product(kinds, repeat=group.size):
        if set(sample) == set(kinds):
            mass = math.prod(group.drawn[m] for m in sample)
            total += mass
            for i, own in enumerate(sample):
                others = statistics.fmean(reward[m] for j, m in enumerate(sample) if j != i)
                coefficient[own] += mass * (reward[own] - others) / group.size
    rows = [coefficient[m] / total / group.members.count(m) * group.whole(i) for i, m in enumerate(group.members)]
    return [[row] * n for row, n in zip(rows, group.length, strict=True)]


ASCENT = {
    "reinforce": of_tokens(lambda g, i, t: g.reward[i] / g.size),
    "rloo": of_tokens(lambda g, i, t: g.loo(i) / g.size),
    "mean_centred": of_tokens(lambda g, i, t: g.centred(i) / g.size),
    "grpo": of_tokens(lambda g, i, t: clipped(g.ratio(i, t), g.scaled(i)) / g.length[i] / g.size),
    "dr_grpo": of_tokens(lambda g, i, t: clipped(g.ratio(i, t), g.centred(i)) / g.size),
    "dapo": token_ratio_of_two_sums(scaled_tokens, high=0.28),
    "gspo": of_tokens(gspo),
    "cispo": of_tokens(lambda g, i, t: min(g.ratio(i, t), 5.0) * g.scaled(i) / sum(g.length)),
    "ppo": of_tokens(lambda g, i, t: clipped(g.ratio(i, t), g.loo(i)) / g.size),
    "dual_clip": of_tokens(dual),
    "reinforce_pp": token_ratio_of_two_sums(whitened_to_go),
    "reinforce_pp_baseline": token_ratio_of_two_sums(whitened_centred),
    "maxrl": of_tokens(lambda g, i, t: g.centred(i) / (statistics.fmean(g.reward) or 1.0) / g.size),
    "pass_at_k": of_tokens(lambda g, i, t: best_lead(g, i) / g.size),
    "tis": of_tokens(lambda g, i, t: min(g.mismatch(i, t), 2.0) * clipped(g.ratio(i, t), g.loo(i)) / g.size),
    "mis": of_tokens(
        lambda g, i, t: g.mismatch(i, t) * (0.5 <= g.mismatch(i, t) <= 5.0) * clipped(g.ratio(i, t), g.loo(i)) / g.size
    ),
    "sequence_is": of_tokens(lambda g, i, t: g.whole(i) * g.loo(i) / g.size),
    "rloo_distinct": distinct,
}


def stated(problem, size, coefficients):
    """The expectation of coefficients times scores over all ordered groups, differentiated once by autograd."""
    collected = torch.zeros(problem.tree.mask.shape, dtype=torch.float64)
    chance = problem.sampler_logp.exp().tolist()
    for members in itertools.product(range(len(chance)), repeat=size):
        mass = math.prod(chance[m] for m in members)
        for m, row in zip(members, coefficients(Drawn(problem, members)), strict=True):
            collected[m, : len(row)] += mass * torch.tensor(row, dtype=torch.float64)
    return score_field(problem, collected)


def score_field(problem, coefficients):
    leaf = problem.logits.clone().requires_grad_()
    return torch.autograd.grad((coefficients * problem.tree.token_logp(leaf)).sum(), leaf)[0].flatten()


def gradient_of(problem, objective_of_logp):
    """The derivative, by the logits, of a function of the responses' log-probabilities."""
    leaf = problem.logits.clone().requires_grad_()
    return torch.autograd.grad(objective_of_logp(problem.tree.token_logp(leaf).sum(1)), leaf)[0].flatten()


def close(made, expected, bound=EXACT):
    scale = float(expected.norm())
    assert scale > 1e-3, "the stated field must not be trivial"
    assert float((made - expected).norm()) <= bound * scale


def test_the_table_is_of_every_algorithm():
    assert list(ASCENT) == NAMES == [name.removeprefix("assay.") for name in SUBJECTS]


@pytest.mark.parametrize("where", WORLDS)
@pytest.mark.parametrize("name", NAMES)
def test_expected_gradient_is_that_of_the_formula_written_out(name, where):
    for problem in WORLDS[where]:
        close(expected_ascent(name, {}, problem, 2), stated(problem, 2, ASCENT[name]))


@pytest.mark.parametrize("name", NAMES)
def test_expected_gradient_in_groups_of_three_and_four(name):
    tiny = small_world(tokens=2, length=3, off_policy=True)
    for problem, size in itertools.product(tiny, (3, 4)):
        close(expected_ascent(name, {}, problem, size), stated(problem, size, ASCENT[name]))


@pytest.mark.parametrize("name", [name for name, made in ALGORITHMS.items() if made.factor])
def test_the_audit_finds_the_declared_objective_in_the_default_world(name):
    report = audit.loss(SUBJECTS[f"assay.{name}"]({}), group_size=2, world=default_world())
    assert report.holds, report


@pytest.mark.parametrize("name", ["sequence_is", "rloo_distinct"])
@pytest.mark.parametrize("settings", [{}, {"kl": "reward", "beta": "0.3"}])
def test_a_whole_sequence_ratio_is_unbiased_under_any_sampler(name, settings):
    stated_objective = "reward - 0.3*kl" if settings else "reward"
    for problem, size in itertools.product(MISMATCH, (2, 3)):
        made = expected_ascent(name, settings, problem, size)
        close(made, objective_gradient(parse_objective(stated_objective), (problem,)))


# Closed forms.


@pytest.mark.parametrize("size", [2, 3, 4])
def test_dividing_by_the_deviation_reweighs_problems_by_c_of_p(size):
    """c_G(p) = Σ_k C(G,k) p^k (1-p)^(G-k) k(G-k) / (G² p(1-p) (s_k + eps)), for token sums and 0/1 rewards."""
    problem = ON[0]
    by_sums = dataclasses.replace(ALGORITHMS["grpo"], weights=TOKEN_SUM)
    p = float((problem.sampler_logp.exp() * problem.reward).sum())
    factor = sum(
        math.comb(size, k)
        * p**k
        * (1 - p) ** (size - k)
        * (k * (size - k) / (size**2 * p * (1 - p) * (math.sqrt(k * (size - k) / (size * (size - 1))) + 1e-6)))
        for k in range(1, size)
    )
    close(ascent_of(by_sums, {}, problem, size), factor * objective_gradient({"reward": 1.0}, (problem,)))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_maxrl_expands_log_p_to_order_g_minus_one(size):
    problem = ON[0]
    p = float((problem.sampler_logp.exp() * problem.reward).sum())
    factor = sum((1 - p) ** k for k in range(size - 1))
    close(expected_ascent("maxrl", {}, problem, size), factor * objective_gradient({"reward": 1.0}, (problem,)))


@pytest.mark.parametrize(("size", "k"), [(2, 2), (3, 1), (3, 2), (3, 3), (4, 2), (4, 3)])
def test_pass_at_k_ascends_the_expected_best_of_k(size, k):
    """By enumeration of all k-tuples, and for 0/1 rewards k (1-p)^(k-1) ∇p."""
    for problem in ON:

        def best(logp, problem=problem):
            tries = itertools.product(range(len(logp)), repeat=k)
            return sum(logp[list(m)].sum().exp() * problem.reward[list(m)].max() for m in tries)

        close(expected_ascent("pass_at_k", {"k": str(k)}, problem, size), gradient_of(problem, best))
    p = float((ON[0].sampler_logp.exp() * ON[0].reward).sum())
    direct = k * (1 - p) ** (k - 1) * objective_gradient({"reward": 1.0}, ON[:1])
    close(expected_ascent("pass_at_k", {"k": str(k)}, ON[0], size), direct)


def test_the_unclipped_token_ratio_ascends_the_surrogate_at_the_samplers_visits():
    """Σ_s visits_q(s) Σ_a π(a|s) Q_q(s,a): written with the responses' mass under q and each token's ratio."""
    wide = {"clip_low": "1", "clip_high": "1000000"}
    for problem in OFF:
        q = problem.sampler_logp.exp()
        ratio = (problem.tree.token_logp(problem.logits) - problem.tree.token_logp(problem.logits_old)).exp()
        mean = (q * problem.reward).sum()
        surrogate = score_field(problem, (q * (problem.reward - mean))[:, None] * ratio)
        close(expected_ascent("ppo", wide, problem, 2), surrogate)
        reward = objective_gradient({"reward": 1.0}, (problem,))
        assert float((surrogate - reward).norm() / reward.norm()) > 0.01, "it is not the gradient of the reward"


def test_whole_sequence_weights_of_a_mismatched_sampler_are_exact_until_a_cap_cuts():
    """With the policy at its start, weights old/sampler of the whole sequence turn one into the other."""
    world = tuple(dataclasses.replace(p, logits_old=p.logits) for p in MISMATCH)
    for problem, name in itertools.product(world, ("tis", "mis")):
        settings = {"level": "sequence", "weight_high": "1000000"}
        made = expected_ascent(name, settings | ({"weight_low": "0"} if name == "mis" else {}), problem, 2)
        reward = objective_gradient({"reward": 1.0}, (problem,))
        close(made, reward)
        cut = expected_ascent(name, {"level": "sequence", "weight_high": "1"}, problem, 2)
        assert float((cut - reward).norm() / reward.norm()) > 0.01


# The KL and entropy, in every place, under every algorithm for which a sum of fields is declared.


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_declared_objective_is_ascended_on_policy(placement):
    settings = {"kl": placement, "beta": "0.3"}
    for name, algorithm in ALGORITHMS.items():
        if algorithm.factor is None or placement in algorithm.refuses:
            continue
        extra = {"length": "3"} if name == "dr_grpo" else {}
        declared = objective(algorithm, algorithm.settle(settings | extra), group_size=2)
        for problem in ON:
            expected = objective_gradient(parse_objective(declared), (problem,))
            close(expected_ascent(name, settings | extra, problem, 2), expected)


def test_an_entropy_bonus_ascends_the_frozen_state_entropy():
    for problem, name in itertools.product(ON, ("rloo", "dr_grpo")):
        extra = {"length": "2"} if name == "dr_grpo" else {}
        settings = {"entropy": "0.3"} | extra
        declared = objective(ALGORITHMS[name], ALGORITHMS[name].settle(settings), group_size=2)
        assert "frozen_entropy" in declared
        close(expected_ascent(name, settings, problem, 2), objective_gradient(parse_objective(declared), (problem,)))


def kl_alone(placement, problem):
    """The ascent of the penalty alone: with it minus without it, both by enumeration."""
    with_it = expected_ascent("sequence_is", {"kl": placement, "beta": "1"}, problem, 2)
    return with_it - expected_ascent("sequence_is", {}, problem, 2)


@pytest.mark.parametrize("placement", ["exact_sequence_loss", "k3_ratio_sequence_loss", "reward", "reward_to_go"])
def test_off_policy_the_kl_of_the_response_is_still_the_kl(placement):
    for problem in MISMATCH:
        close(kl_alone(placement, problem), -objective_gradient({"kl": 1.0}, (problem,)))


@pytest.mark.parametrize("placement", ["exact_token_loss", "k3_ratio_loss"])
def test_off_policy_the_frozen_state_kl_is_taken_at_the_samplers_visits(placement):
    for problem in MISMATCH:
        visits = torch.zeros(len(problem.logits), dtype=torch.float64)
        for response, mass in enumerate(problem.sampler_logp.exp().tolist()):
            for position in range(int(problem.tree.lengths[response])):
                visits[problem.tree.states[response, position]] += mass
        leaf = problem.logits.clone().requires_grad_()
        logp, logp_ref = leaf.log_softmax(-1), problem.logits_ref.log_softmax(-1)
        frozen = (visits[:, None] * logp.exp() * (logp - logp_ref)).sum()
        close(kl_alone(placement, problem), -torch.autograd.grad(frozen, leaf)[0].flatten())


def test_k1_in_the_loss_pushes_away_from_what_another_sampler_drew():
    """-E_q[∇log π] is the gradient of KL(q ‖ π) by π: zero where they agree."""
    for problem in OFF:
        q = problem.sampler_logp.exp()
        close(kl_alone("k1_loss", problem), gradient_of(problem, lambda logp, q=q: -(q * logp).sum()))


# The same promises for every batch: masks, order, shards, precision. One table.


@functools.lru_cache
def batch_of(world, size):
    """One group of each problem, with short and long, right and wrong responses in it."""
    groups = [(n, torch.arange(size).mul(3).add(n) % len(problem.tree.path)) for n, problem in enumerate(world)]
    return make_batch(world, groups)


def rows_of(world, size, *, dtype=torch.float64, under_mask=0.0, wider=0):
    """A batch of one group of each problem, as rows whose logp and logits are leaves; anything may stand under the
    mask."""
    batch = batch_of(world, size)
    over = batch.mask == 0

    def along(table):
        made = table.log_softmax(-1).gather(-1, batch.tokens[..., None])[..., 0].masked_fill(over, under_mask)
        return torch.nn.functional.pad(made, (0, wider), value=under_mask).to(dtype)

    def every(table):
        made = table.masked_fill(over[..., None], under_mask)
        return torch.nn.functional.pad(made, (0, 0, 0, wider), value=under_mask).to(dtype)

    pad = torch.nn.functional.pad
    return Rows(
        logp=along(batch.logits).requires_grad_(),
        logp_old=along(batch.logits_old),
        logp_ref=along(batch.logits_ref),
        logp_sampler=along(batch.logits_sampler),
        mask=pad(~over, (0, wider), value=False),
        reward=batch.reward.to(dtype),
        group=batch.group,
        tokens=pad(batch.tokens, (0, wider), value=7),
        logits=every(batch.logits).requires_grad_(),
        logits_ref=every(batch.logits_ref),
    )


def gradients(algorithm, settings, rows, parts=None):
    """The loss of a batch, summed over its parts, and its gradients by the leaves."""
    prepared = prepare(algorithm, settings, rows)
    parts = [torch.arange(len(rows.reward))] if parts is None else parts
    value = sum(loss(algorithm, settings, prepared.take(part)) for part in parts)
    by_logp, by_logits = torch.autograd.grad(value, (rows.logp, rows.logits), allow_unused=True)
    return value.detach(), by_logp, torch.zeros_like(rows.logits) if by_logits is None else by_logits


def variants(name):
    """Settings that between them run every term; each way to average meets every place of the KL."""
    algorithm = ALGORITHMS[name]
    given = [{}] if name == "maxrl" else [{}, {"overlong_length": 3, "overlong_cache": 2}]
    quiet = {"dynamic_sampling": False} if "dynamic_sampling" in algorithm.live else {}
    places = PLACEMENTS if name in ("rloo", "grpo", "dr_grpo", "dapo") else ("reward", "k2_loss", "exact_sequence_loss")
    given += [{"kl": place, "beta": 0.3, **quiet} for place in places if place not in algorithm.refuses]
    return [algorithm.settle(made) for made in [*given, {"entropy": 0.1, **quiet}]]


BATCH_WORLD = tuple(  # MaxRL divides by a fraction of successes and takes no negative reward
    dataclasses.replace(problem, reward=problem.reward.clamp(min=0)) for problem in default_world(off_policy=True)
)


def same(made, expected, bound=1e-13):
    for a, b in zip(made, expected, strict=True):
        assert float((a - b).abs().max()) <= bound * (1 + float(b.abs().max()))


@pytest.mark.parametrize("name", NAMES)
def test_nothing_under_the_mask_matters_nor_the_width_of_the_batch(name):
    for settings in variants(name):
        value, by_logp, by_logits = gradients(ALGORITHMS[name], settings, rows_of(BATCH_WORLD, 4))
        for under_mask, wider in ((float("nan"), 0), (float("inf"), 2), (-1e4, 3)):
            rows = rows_of(BATCH_WORLD, 4, under_mask=under_mask, wider=wider)
            made = gradients(ALGORITHMS[name], settings, rows)
            width = by_logp.shape[1]
            same((made[0], made[1][:, :width], made[2][:, :width]), (value, by_logp, by_logits))
            assert not made[1][~rows.mask].any() and not made[2][~rows.mask].any()


@pytest.mark.parametrize("name", NAMES)
def test_a_nan_that_counts_surfaces(name):
    for settings in variants(name):
        rows = rows_of(BATCH_WORLD, 4)
        spoiled = rows.logp.detach().clone()
        spoiled[5, 0] = float("nan")
        value = gradients(ALGORITHMS[name], settings, dataclasses.replace(rows, logp=spoiled.requires_grad_()))[0]
        assert value.isnan(), settings


@pytest.mark.parametrize("name", NAMES)
def test_rows_come_in_any_order(name):
    order = torch.tensor([5, 2, 7, 0, 3, 6, 1, 4])
    for settings in variants(name):
        rows = rows_of(BATCH_WORLD, 4)
        value, by_logp, by_logits = gradients(ALGORITHMS[name], settings, rows)
        turned = rows.take(order)
        leaves = {"logp": turned.logp.detach().requires_grad_(), "logits": turned.logits.detach().requires_grad_()}
        made = gradients(ALGORITHMS[name], settings, dataclasses.replace(turned, **leaves))
        same(made, (value, by_logp[order], by_logits[order]))


@pytest.mark.parametrize("name", NAMES)
def test_micro_batches_add_up_to_the_batch(name):
    """Parts of one, four and three rows, groups torn apart: the counts are the batch's."""
    parts = [torch.tensor(rows) for rows in ([6], [0, 5, 2, 7], [1, 3, 4])]
    for settings in variants(name):
        rows = rows_of(BATCH_WORLD, 4)
        same(gradients(ALGORITHMS[name], settings, rows, parts), gradients(ALGORITHMS[name], settings, rows))


@pytest.mark.parametrize("name", NAMES)
def test_float32_stays_within_a_hundred_roundings(name):
    """Relative to the largest entry, 100 x 2^-24: sums of a few dozen terms and one exponential each."""
    for settings in variants(name):
        exact = gradients(ALGORITHMS[name], settings, rows_of(BATCH_WORLD, 4))
        made = gradients(ALGORITHMS[name], settings, rows_of(BATCH_WORLD, 4, dtype=torch.float32))
        assert all(part.dtype == torch.float32 for part in made)
        for a, b in zip(made, exact, strict=True):
            assert float((a - b).abs().max()) <= 100 * 2**-24 * (1 + float(b.abs().max()))


@pytest.mark.parametrize("name", NAMES)
def test_a_group_of_one_reward_moves_nothing_unless_there_is_no_group_baseline(name):
    rows = rows_of(BATCH_WORLD, 4)
    constant = torch.tensor([0.1] * 4 + [0.3] * 4, dtype=torch.float64)
    algorithm = ALGORITHMS[name]
    adv = prepare(algorithm, algorithm.defaults, dataclasses.replace(rows, reward=constant)).adv
    assert bool((adv == 0).all()) == (name not in ("reinforce", "reinforce_pp"))


@pytest.mark.parametrize("name", NAMES)
def test_an_unscorable_response_leaves_its_group_and_every_count(name):
    """With one NaN in each group, the rest is as if it had never been drawn."""
    algorithm = ALGORITHMS[name]
    for settings in variants(name):
        rows = rows_of(BATCH_WORLD, 4)
        holed = rows.reward.clone()
        holed[[1, 6]] = float("nan")
        kept = torch.tensor([0, 2, 3, 4, 5, 7])
        made = gradients(algorithm, settings, dataclasses.replace(rows, reward=holed))
        part = rows.take(kept)
        leaves = {"logp": part.logp.detach().requires_grad_(), "logits": part.logits.detach().requires_grad_()}
        value, by_logp, by_logits = gradients(algorithm, settings, dataclasses.replace(part, **leaves))
        same((made[0], made[1][kept], made[2][kept]), (value, by_logp, by_logits))
        assert not made[1][[1, 6]].any()


def test_a_batch_in_which_nothing_counts_has_a_loss_of_zero():
    rows = rows_of(BATCH_WORLD, 4)
    rows = dataclasses.replace(rows, reward=torch.full_like(rows.reward, float("nan")))
    for name, algorithm in ALGORITHMS.items():
        value, by_logp, _ = gradients(algorithm, algorithm.defaults, rows)
        assert float(value) == 0 and not by_logp.any(), name


def test_dynamic_sampling_counts_what_stays_alone():
    """One group of equal rewards beside an informative one: the update is that of the informative one."""
    rows = rows_of(BATCH_WORLD, 4)
    rows = dataclasses.replace(rows, reward=torch.tensor([0.0, 1, 0, 1, 1, 1, 1, 1], dtype=torch.float64))
    on, off = (ALGORITHMS["rloo"].settle({"dynamic_sampling": value}) for value in (True, False))
    whole = gradients(ALGORITHMS["rloo"], off, rows)[1]
    same((gradients(ALGORITHMS["rloo"], on, rows)[1],), (2 * whole,))


# Settings and sentences.


def test_an_unknown_setting_is_refused_with_the_list():
    with pytest.raises(ConfigError, match="betta = 1: unknown setting; grpo has beta, kl, .*clip_low"):
        SUBJECTS["assay.grpo"]({"betta": "1"})
    with pytest.raises(ConfigError, match="clip_low = 0.1: rloo does not read it"):
        SUBJECTS["assay.rloo"]({"clip_low": "0.1"})


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("rloo", {"beta": "0.1"}, "can do nothing while kl = none"),
        ("rloo", {"kl": "reward"}, "can do nothing while beta = 0"),
        ("rloo", {"kl": "k4", "beta": "0.1"}, "can enter as none, reward"),
        ("rloo", {"beta": "much"}, "expected a float"),
        ("rloo", {"beta": "nan", "kl": "reward"}, "expected a finite number"),
        ("rloo", {"beta": "-1", "kl": "reward"}, "expected a finite number from 0"),
        ("rloo", {"overlong_length": "3"}, "give both"),
        ("rloo", {"dynamic_sampling": "yes"}, "expected true or false"),
        ("dapo", {"kl": "k2_loss", "beta": "0.1"}, "dynamic_sampling = true drops"),
        ("cispo", {"weight_high": "0.2"}, "expected a finite number from 1"),
        ("tis", {"level": "word"}, "expected one of token, sequence"),
        ("pass_at_k", {"k": "2.5"}, "expected a int"),
        ("pass_at_k", {"kl": "reward", "beta": "0.1"}, "ranks whole rewards"),
        ("maxrl", {"kl": "reward", "beta": "0.1"}, "scales by the fraction of successes"),
        ("maxrl", {"overlong_length": "3", "overlong_cache": "1"}, "needs rewards of at least 0"),
        ("reinforce", {"dynamic_sampling": "true"}, "reinforce does not read it"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(name, given, message):
    with pytest.raises(ConfigError, match=message):
        SUBJECTS[f"assay.{name}"](given)


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_that_is_read_changes_something(name):
    """Two values of each, on off-policy batches with mismatch: the gradients differ."""
    algorithm = ALGORITHMS[name]
    other = {
        "beta": {"kl": "k2_loss", "beta": 0.3},
        "kl": {"kl": "k3_loss", "beta": 0.3},
        "entropy": {"entropy": 0.3},
        "overlong_length": {"overlong_length": 2, "overlong_cache": 2},
        "overlong_cache": {"overlong_length": 3, "overlong_cache": 3},
        "eps": {"eps": 0.5},
        "clip_low": {"clip_low": 0.9},
        "clip_high": {"clip_high": 5.0},
        "dual_clip": {"dual_clip": 1.01},
        "weight_low": {"weight_low": 1.0},
        "weight_high": {"weight_high": 1.0},
        "level": {"level": "sequence"},
        "k": {"k": 4},
        "length": {"length": 5},
    }
    world = small_world(off_policy=True, mismatch=True)
    quiet = {"dynamic_sampling": False} if "dynamic_sampling" in algorithm.live else {}
    rows = rows_of(world, 4)
    base = gradients(algorithm, algorithm.settle(quiet), rows)
    for key in (*COMMON, *algorithm.live):
        if key == "dynamic_sampling" or key in algorithm.refuses:
            continue
        made = gradients(algorithm, algorithm.settle(quiet | other[key]), rows)
        assert any(not torch.allclose(a, b, rtol=1e-9) for a, b in zip(made, base, strict=True)), key


@pytest.mark.parametrize("name", NAMES)
def test_every_combination_has_a_sentence_and_only_known_fields(name):
    algorithm = ALGORITHMS[name]
    for settings in variants(name):
        text = estimand(algorithm, settings)
        assert "{" not in text.replace("{k=0}", "").replace("^{G-2}", "") and text.endswith(".")
        declared = objective(algorithm, settings, group_size=4)
        if declared:
            assert set(parse_objective(declared)) <= set(FIELDS)


def test_the_sentence_names_what_is_ascended():
    rloo, grpo = ALGORITHMS["rloo"], ALGORITHMS["grpo"]
    in_reward = estimand(rloo, rloo.settle({"kl": "reward", "beta": 0.03}))
    assert "is the gradient of the expected reward - 0.03 KL(policy ‖ reference)." in in_reward
    in_loss = estimand(rloo, rloo.settle({"kl": "k3_loss", "beta": 0.03}))
    assert "the other way round, KL(reference ‖ policy)" in in_loss
    assert "exactly zero" in estimand(rloo, rloo.settle({"kl": "k1_loss", "beta": 0.03}))
    scaled = estimand(grpo, grpo.settle({"kl": "reward", "beta": 0.03}))
    assert "its weight differs from problem to problem" in scaled
    assert "the gradient of no such sum" in estimand(grpo, grpo.settle({"kl": "k2_loss", "beta": 0.03}))


@pytest.mark.parametrize("beta", [1.0, 11.0, 0.1, 1e-7])
def test_the_declared_objective_reads_back_as_its_coefficients(beta):
    settings = ALGORITHMS["mean_centred"].settle({"kl": "reward", "beta": beta})
    declared = objective(ALGORITHMS["mean_centred"], settings, group_size=4)
    assert parse_objective(declared) == pytest.approx({"reward": 0.75, "kl": -0.75 * beta})


def test_settings_are_those_of_the_algorithm():
    made = SUBJECTS["assay.dapo"]({"clip_high": "0.3"})
    assert made.settings["clip_high"] == 0.3 and made.settings["clip_low"] == Settings().clip_low
    assert "length" not in made.settings
