import itertools

import pytest
import torch

from assay.errors import InputError
from assay.tree.prefix import Grammar, prefix_tree


def by_hand(grammar: Grammar) -> set[tuple[int, ...]]:
    """All responses, from every string of full length cut after its first end token."""
    strings = itertools.product(range(grammar.tokens), repeat=grammar.max_length)
    cut = set()
    for string in strings:
        stop = string.index(grammar.end) + 1 if grammar.end in string else len(string)
        if grammar.allowed is None or all(string[i] in grammar.allowed(string[:i]) for i in range(stop)):
            cut.add(string[:stop])
    return cut


GRAMMARS = {
    "fixed length": Grammar(tokens=3, max_length=2),
    "several lengths": Grammar(tokens=3, max_length=4, end=0),
    "end token alone": Grammar(tokens=1, max_length=3, end=0),
    "no repeated token": Grammar(3, 3, allowed=lambda prefix: tuple(t for t in range(3) if t not in prefix[-1:])),
    "forced second token": Grammar(3, 3, end=2, allowed=lambda prefix: (1,) if len(prefix) == 1 else (0, 1, 2)),
}


@pytest.fixture(params=GRAMMARS, ids=lambda name: name.replace(" ", "-"))
def grammar(request):
    return GRAMMARS[request.param]


def test_the_leaves_are_all_responses_each_once(grammar):
    tree = prefix_tree(grammar)
    found = [tuple(row[mask].tolist()) for row, mask in zip(tree.responses, tree.mask, strict=True)]
    assert len(found) == len(set(found)) and set(found) == by_hand(grammar)
    assert tree.lengths.tolist() == [len(response) for response in found]
    ended = [grammar.end is not None and response[-1] != grammar.end for response in found]
    assert tree.truncated.tolist() == ended


def test_probabilities_are_products_along_the_path_and_sum_to_one(grammar):
    tree = prefix_tree(grammar)
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(len(tree.inner), grammar.tokens, dtype=torch.float64, generator=generator)
    logp = tree.token_logp(logits)
    assert abs(float(logp.sum(1).exp().sum()) - 1) < 1e-14
    table = {}
    for row, node in enumerate(tree.inner.tolist()):
        prefix = []
        while node:
            prefix.append(int(tree.token[node]))
            node = int(tree.parent[node])
        table[tuple(reversed(prefix))] = logits[row]
    for response, mask, made in zip(tree.responses, tree.mask, logp, strict=True):
        tokens = response[mask].tolist()
        for t, token in enumerate(tokens):
            weights = table[tuple(tokens[:t])].exp()
            may = range(grammar.tokens) if grammar.allowed is None else grammar.allowed(tuple(tokens[:t]))
            assert float(made[t]) == pytest.approx(float((weights[token] / weights[list(may)].sum()).log()), abs=1e-13)
        assert made[~mask].tolist() == [0.0] * int((~mask).sum())


def test_a_forced_token_is_certain_and_has_no_gradient():
    tree = prefix_tree(GRAMMARS["forced second token"])
    logits = torch.randn(len(tree.inner), 3, dtype=torch.float64, requires_grad=True)
    logp = tree.token_logp(logits)
    second = tree.mask[:, 1]
    assert logp[second, 1].tolist() == [0.0] * int(second.sum())
    assert torch.autograd.grad(logp[:, 1].sum(), logits)[0].abs().max() == 0


def test_a_batch_of_policies_is_scored_at_once():
    tree = prefix_tree(GRAMMARS["several lengths"])
    logits = torch.randn(2, 5, len(tree.inner), 3, dtype=torch.float64)
    made = tree.token_logp(logits)
    assert torch.equal(made[1, 3], tree.token_logp(logits[1, 3]))


def test_what_cannot_be_enumerated_is_refused():
    with pytest.raises(InputError, match="more than 1000 nodes"):
        prefix_tree(Grammar(tokens=10, max_length=6), budget=1000)
    with pytest.raises(InputError, match=r"after prefix \(\) the grammar allows \(\)"):
        prefix_tree(Grammar(2, 2, allowed=lambda prefix: ()))
    with pytest.raises(InputError, match=r"allows \(0, 5\)"):
        prefix_tree(Grammar(2, 2, allowed=lambda prefix: (0, 5)))
    with pytest.raises(InputError, match="both must be at least 1"):
        prefix_tree(Grammar(2, 0))
