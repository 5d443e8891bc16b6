"""The sweep over a tree against naive scoring: one forward over every full path, and autograd through all of them."""

import pytest
import torch
from grammars import GRAMMARS, uneven
from torch import nn
from torch.nn import functional as F

from assay.core.logprobs import shifted_input
from assay.errors import InputError
from assay.policies.transformer import TinyTransformer, attend
from assay.tree.neural import leaf_logp, tree_return
from assay.tree.prefix import Grammar, PrefixTree, prefix_tree
from assay.tree.trajectories import tree_logp

PROMPT = torch.tensor([4, 0, 5, 1])


def transformer(responses: int, seed: int = 1, dtype: torch.dtype = torch.float64, width: int = 12) -> TinyTransformer:
    made = TinyTransformer(
        vocabulary=16, responses=responses, context=12, width=width, heads=2, feedforward=24, seed=seed, dtype=dtype
    )
    with torch.no_grad():  # norms and biases away from their neutral start
        for parameter in made.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return made


class TwoBlocks(nn.Module):
    """Two attention blocks, so that the second one's keys and values differ from node to node."""

    heads = 2

    def __init__(self, responses: int, seed: int = 1) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(16, 8), nn.Embedding(12, 8)
        self.into = nn.ModuleList(nn.Linear(8, 24) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.head = nn.Linear(8, responses)
        self.double()
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for into, out in zip(self.into, self.out, strict=True):
            q, k, v = into(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + out(mixed.transpose(1, 2).flatten(2)).tanh()
        return self.head(x)

    def read(self, prompt):
        memory, x = ((), ()), None
        for position, token in enumerate(prompt.tolist()):
            x, memory = self._step(memory, torch.tensor([token]), position)
        return self.head(x), tuple(tuple(entry for entry in layer) for layer in memory)

    def extend(self, memory, tokens):
        position = sum(entry.shape[-2] for entry in memory[0])
        memory = tuple(tuple(entry.unsqueeze(-3) for entry in layer) for layer in memory)
        x, memory = self._step(memory, tokens, position)
        return self.head(x), memory

    def _step(self, memory, tokens, position):
        x, after = self.tokens(tokens) + self.positions.weight[position], []
        for into, out, layer in zip(self.into, self.out, memory, strict=True):
            query, own = into(x).split((8, 16), dim=-1)
            layer = (*layer, own.unsqueeze(-2))
            x = x + out(attend(query, layer, self.heads)).tanh()
            after.append(layer)
        return x, tuple(after)


def naive_logp(policy: nn.Module, tree: PrefixTree) -> torch.Tensor:
    """Log-probability of each response from a row of its own, normalised over what the grammar allows."""
    rows = shifted_input(PROMPT.expand(len(tree.path), -1), tree.responses)
    logits = policy(rows)[:, -tree.path.shape[1] :].masked_fill(~tree.allowed[tree.states], float("-inf"))
    return logits.log_softmax(-1).gather(-1, tree.responses[..., None])[..., 0].masked_fill(~tree.mask, 0.0).sum(1)


def naive(policy: nn.Module, tree: PrefixTree, reward: torch.Tensor, reference: nn.Module | None, beta: float):
    """J and its gradient by name."""
    logp = naive_logp(policy, tree)
    returns = reward if reference is None else reward - beta * (logp - naive_logp(reference, tree).detach())
    value = (logp.exp() * returns).sum()
    names = [name for name, _ in policy.named_parameters()]
    return float(value.detach()), dict(zip(names, torch.autograd.grad(value, list(policy.parameters())), strict=True))


def rewards(tree: PrefixTree) -> torch.Tensor:
    return torch.rand(len(tree.path), dtype=torch.float64, generator=torch.Generator().manual_seed(4))


def agree(made, expected, tolerance: float = 1e-12) -> None:
    value, gradient = expected
    assert made.value == pytest.approx(value, rel=tolerance)
    assert made.mass == pytest.approx(1, abs=1e-13)
    assert list(made.gradient) == list(gradient)
    largest = max(float(part.abs().max()) for part in gradient.values())
    for name, part in gradient.items():
        assert torch.allclose(made.gradient[name], part, rtol=tolerance, atol=0.1 * tolerance * largest), name


@pytest.mark.parametrize("build", [transformer, TwoBlocks], ids=["one-block", "two-blocks"])
@pytest.mark.parametrize("name", GRAMMARS, ids=lambda name: name.replace(" ", "-").replace(",", ""))
@pytest.mark.parametrize("pass_nodes", [1, 6, 14, 10_000])
def test_value_and_every_gradient_entry_equal_naive_scoring(name, build, pass_nodes):
    """Variable length, truncation, forced tokens, uneven branching; passes from one node to the whole tree."""
    grammar = GRAMMARS[name]
    tree, policy, reference = prefix_tree(grammar), build(grammar.tokens), build(grammar.tokens, 5)
    for other, beta in ((None, 0.0), (reference, 0.3)):
        expected = naive(policy, tree, rewards(tree), other, beta)
        for shape in (grammar, tree):
            made = tree_return(policy, PROMPT, shape, rewards(tree), reference=other, beta=beta, pass_nodes=pass_nodes)
            agree(made, expected)
            assert (made.responses, made.positions) == (len(tree.path), len(PROMPT) + len(tree.inner) - 1)


@pytest.mark.parametrize("width", [8, 64])
def test_larger_trees_and_policies_agree_too(width):
    grammar = Grammar(tokens=10, max_length=3)
    tree, policy = prefix_tree(grammar), transformer(10, width=width)
    expected = naive(policy, tree, rewards(tree), None, 0.0)
    for pass_nodes in (30, 1000):
        agree(tree_return(policy, PROMPT, grammar, rewards(tree), pass_nodes=pass_nodes), expected)


def test_responses_longer_than_a_tensor_has_axes_are_read():
    """Seventy tokens, all but one of them forced; a tensor has at most 64 axes."""
    grammar = Grammar(3, 70, allowed=lambda prefix: (len(prefix) % 3,) if len(prefix) != 20 else (2, 0))
    policy = TinyTransformer(
        vocabulary=6, responses=3, context=74, width=4, heads=1, feedforward=4, seed=1, dtype=torch.float64
    )
    tree = prefix_tree(grammar)
    agree(tree_return(policy, PROMPT, grammar, rewards(tree)), naive(policy, tree, rewards(tree), None, 0.0))


class Counting(TinyTransformer):
    """Counts the token positions that it computes, and what it keeps of them."""

    def start(self) -> None:
        self.computed, self.widest, self.kept = 0, 0, 0

    def read(self, prompt):
        self.computed += len(prompt)
        return super().read(prompt)

    def extend(self, memory, tokens):
        logits, after = super().extend(memory, tokens)
        nodes = logits[..., 0].numel()
        self.computed, self.widest = self.computed + nodes, max(self.widest, nodes)
        self.kept = max(self.kept, sum(entry[..., 0].numel() for entry in after[0]))
        return logits, after


def test_each_token_of_the_tree_is_computed_once_and_no_leaf_is():
    """Inner nodes are 1 + 6 + 36 + 216 (the empty prefix is the prompt); naive scoring reads 6^4 x (4 + 4 - 1)."""
    policy = Counting(
        vocabulary=16, responses=6, context=12, width=8, heads=2, feedforward=8, seed=1, dtype=torch.float64
    )
    reward = torch.zeros(6**4, dtype=torch.float64)
    for pass_nodes in (1, 50, 1000):
        policy.start()
        made = tree_return(policy, PROMPT, Grammar(6, 4), reward, pass_nodes=pass_nodes)
        assert policy.computed == made.positions == len(PROMPT) + 6 + 36 + 216
        assert policy.widest == {1: 6, 50: 36, 1000: 216}[pass_nodes]
    for grammar in (GRAMMARS["uneven, several lengths"], GRAMMARS["several lengths"]):
        tree = prefix_tree(grammar)
        counting = Counting(
            vocabulary=16, responses=grammar.tokens, context=12, width=8, heads=2, feedforward=8, seed=1,
            dtype=torch.float64,
        )  # fmt: skip
        counting.start()
        tree_return(counting, PROMPT, tree, rewards(tree), pass_nodes=4)
        assert counting.computed == len(PROMPT) + len(tree.inner) - 1


def test_keys_and_values_of_ancestors_are_not_copied_to_the_paths():
    """In one pass over a free tree a block keeps the prompt and six tokens a level, whatever the number of paths."""
    policy = Counting(
        vocabulary=16, responses=6, context=12, width=8, heads=2, feedforward=8, seed=1, dtype=torch.float64
    )
    policy.start()
    tree_return(policy, PROMPT, Grammar(6, 4), torch.zeros(6**4, dtype=torch.float64))
    assert policy.kept == len(PROMPT) + 3 * 6


def test_a_reward_can_be_computed_from_the_tokens():
    grammar = GRAMMARS["uneven, several lengths"]
    tree, policy = prefix_tree(grammar), transformer(4)
    table = {
        tuple(row[mask].tolist()): value
        for row, mask, value in zip(tree.responses, tree.mask, rewards(tree), strict=True)
    }
    seen = []

    def reward(responses):
        seen.extend(tuple(row) for row in responses.tolist())
        return torch.stack([table[tuple(row)] for row in responses.tolist()])

    made = tree_return(policy, PROMPT, grammar, reward, pass_nodes=10)
    agree(made, naive(policy, tree, rewards(tree), None, 0.0))
    assert sorted(seen) == sorted(table)


def test_the_value_alone_needs_no_gradient():
    grammar = GRAMMARS["several lengths"]
    tree, policy, reference = prefix_tree(grammar), transformer(3), transformer(3, 5)
    settings = {"reference": reference, "beta": 0.2, "pass_nodes": 8}
    whole = tree_return(policy, PROMPT, grammar, rewards(tree), **settings)
    alone = tree_return(policy, PROMPT, grammar, rewards(tree), gradient=False, **settings)
    assert alone.gradient == {} and alone.value == pytest.approx(whole.value, rel=1e-14)
    assert all(weight.grad is None for weight in (*policy.parameters(), *reference.parameters()))


def test_only_trained_weights_get_a_gradient():
    policy, reward = transformer(3), torch.rand(9, dtype=torch.float64)
    whole = tree_return(policy, PROMPT, Grammar(3, 2), reward).gradient
    policy.token_embedding.requires_grad_(False)
    part = tree_return(policy, PROMPT, Grammar(3, 2), reward).gradient
    assert list(part) == [name for name in whole if name != "token_embedding.weight"]
    assert all(torch.allclose(part[name], whole[name], atol=1e-15) for name in part)


def test_float32_agrees_to_its_own_precision():
    grammar = Grammar(4, 4)
    tree = prefix_tree(grammar)
    low, high = transformer(4, dtype=torch.float32), transformer(4)
    with torch.no_grad():
        for one, other in zip(low.parameters(), high.parameters(), strict=True):
            other.copy_(one)
    made = tree_return(low, PROMPT, grammar, rewards(tree), pass_nodes=30)
    value, gradient = naive(high, tree, rewards(tree), None, 0.0)
    assert made.value == pytest.approx(value, rel=1e-5)
    largest = max(float(part.abs().max()) for part in gradient.values())
    for name, part in gradient.items():
        assert made.gradient[name].dtype == torch.float32
        assert torch.allclose(made.gradient[name].double(), part, rtol=0, atol=1e-4 * largest), name


@pytest.mark.parametrize("pass_nodes", [1, 7, 1000])
@pytest.mark.parametrize("name", ["fixed length", "uneven, several lengths", "several lengths"])
def test_log_probabilities_come_in_the_order_of_the_tree(name, pass_nodes):
    grammar = GRAMMARS[name]
    tree, policy = prefix_tree(grammar), transformer(grammar.tokens)
    expected = naive_logp(policy, tree)
    with torch.no_grad():
        quiet = leaf_logp(policy, PROMPT, grammar, pass_nodes=pass_nodes)
    recorded = leaf_logp(policy, PROMPT, tree)
    assert torch.allclose(quiet, expected, atol=1e-13) and not quiet.requires_grad
    assert torch.allclose(recorded, expected, atol=1e-13)
    weights = list(policy.parameters())
    ours = torch.autograd.grad(recorded @ rewards(tree), weights)
    theirs = torch.autograd.grad(expected @ rewards(tree), weights)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, atol=1e-11)


def test_log_probabilities_equal_those_of_the_fixed_depth_tree():
    policy = transformer(4)
    expected = tree_logp(policy, PROMPT[None], tokens=4, depth=3)[0]
    assert torch.allclose(leaf_logp(policy, PROMPT, Grammar(4, 3)), expected, atol=1e-13)


def test_what_does_not_fit_is_refused():
    policy, grammar, reward = transformer(3), Grammar(3, 2), torch.zeros(9, dtype=torch.float64)
    with pytest.raises(InputError, match="beta 0.1 without a reference"):
        tree_return(policy, PROMPT, grammar, reward, beta=0.1)
    with pytest.raises(InputError, match="beta 0.0 with a reference"):
        tree_return(policy, PROMPT, grammar, reward, reference=policy)
    with pytest.raises(InputError, match=r"\(8,\) rewards for 9 responses"):
        tree_return(policy, PROMPT, grammar, reward[1:])
    with pytest.raises(InputError, match=r"has shape \(9, 1\): return one each"):
        tree_return(policy, PROMPT, grammar, lambda responses: torch.zeros(9, 1))
    with pytest.raises(InputError, match="answers 3 tokens on a tree of 4"):
        tree_return(policy, PROMPT, Grammar(4, 2), torch.zeros(16, dtype=torch.float64))
    with pytest.raises(InputError, match="11,111,111 inner nodes to read: more than the budget of 10,000"):
        tree_return(transformer(10), PROMPT, Grammar(10, 8), lambda responses: torch.zeros(1), budget=10_000)
    with pytest.raises(InputError, match="pass_nodes 0"):
        tree_return(policy, PROMPT, grammar, reward, pass_nodes=0)
    with pytest.raises(InputError, match="the expected return is nan"):
        tree_return(policy, PROMPT, grammar, reward / 0)


class Misreading(TinyTransformer):
    """A policy whose logits are not numbers once a certain token was read."""

    def extend(self, memory, tokens):
        logits, after = super().extend(memory, tokens)
        return logits.where((tokens != 2)[..., None], torch.nan), after


def test_a_mass_that_is_not_one_is_an_error():
    policy = Misreading(
        vocabulary=16, responses=3, context=12, width=4, heads=1, feedforward=4, seed=1, dtype=torch.float64
    )
    with pytest.raises(InputError, match="probabilities sum to nan, not to one within 1e-08"):
        tree_return(policy, PROMPT, Grammar(3, 3), torch.zeros(27, dtype=torch.float64))
    with pytest.raises(InputError, match="probabilities sum to nan"):
        leaf_logp(policy, PROMPT, Grammar(3, 3))


def test_a_policy_that_only_has_a_forward_is_sent_elsewhere():
    with pytest.raises(InputError, match="Linear has no read and extend: use tree_logp"):
        tree_return(nn.Linear(1, 1), PROMPT, Grammar(3, 2), torch.zeros(9, dtype=torch.float64))


def test_the_uneven_grammar_is_uneven():
    assert len({len(uneven(prefix)) for prefix in [(), (1,), (2,), (3,), (1, 1)]}) > 2
