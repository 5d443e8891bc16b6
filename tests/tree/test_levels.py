import pytest
import torch
from grammars import GRAMMARS

from assay.errors import InputError
from assay.tree.levels import count, responses_at, tree_levels
from assay.tree.prefix import Grammar, prefix_tree


def test_levels_number_the_responses_as_the_prefix_tree_does():
    for name, grammar in GRAMMARS.items():
        tree = prefix_tree(grammar)
        for levels in (tree_levels(grammar), tree_levels(tree)):
            assert count(levels) == (len(tree.inner), len(tree.path)), name
            found, nodes = [], 1
            for depth, level in enumerate(levels):
                assert level.first == len(found), name
                if level.leaves.before(nodes):
                    found += responses_at(levels, depth, 0, nodes).tolist()
                nodes = level.inner.before(nodes)
            assert found == [row[mask].tolist() for row, mask in zip(tree.responses, tree.mask, strict=True)], name


def test_what_follows_consecutive_nodes_is_consecutive():
    levels = tree_levels(GRAMMARS["uneven, several lengths"])
    nodes = levels[1].inner.before(levels[0].inner.before(1))
    whole = responses_at(levels, 2, 0, nodes).tolist()
    parts = [responses_at(levels, 2, row, row + 1).tolist() for row in range(nodes)]
    assert sum(parts, []) == whole
    bounds = levels[2].leaves.before(torch.arange(nodes + 1))
    assert bounds.diff().tolist() == [len(part) for part in parts]


def test_a_free_grammar_is_not_written_down():
    """10^12 responses of a dozen tokens; the levels hold ten tokens each."""
    levels = tree_levels(Grammar(tokens=10, max_length=12))
    assert count(levels) == (sum(10**depth for depth in range(12)), 10**12)
    assert max(len(level.inner.tokens) + len(level.leaves.tokens) for level in levels) == 10
    assert responses_at(levels, 11, 10**11 - 1, 10**11).tolist() == [[9] * 11 + [token] for token in range(10)]


def test_an_enumerated_tree_of_equal_children_is_held_as_a_free_one():
    for grammar in (Grammar(3, 3), Grammar(3, 4, end=1)):
        for free, listed in zip(tree_levels(grammar), tree_levels(prefix_tree(grammar)), strict=True):
            assert free.allowed is None and listed.allowed is None
            assert free.inner.rows is None and listed.inner.rows is None and listed.leaves.rows is None
            assert torch.equal(free.inner.tokens, listed.inner.tokens)
            assert torch.equal(free.leaves.tokens, listed.leaves.tokens)


def test_a_grammar_of_nothing_is_refused():
    for grammar in (Grammar(tokens=0, max_length=2), Grammar(tokens=2, max_length=0)):
        with pytest.raises(InputError, match="both must be at least 1"):
            tree_levels(grammar)
