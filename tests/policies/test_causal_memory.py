"""The largest tensor that a forward and backward makes, against what the design allows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from policies.tiny_policies import tiny_causal
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from assay.policies.causal import head, shared_attention
from assay.policies.causal.model import ROWS, CausalPolicy
from assay.policies.causal.pack import pack

VOCABULARY, PROMPT, GROUP, LENGTH, WIDTH, HEADS, HIDDEN = 6000, 40, 30, 10, 16, 2, 64


class Largest(TorchDispatchMode):
    """Records the most entries that any tensor has which an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)]
        self.entries = max(self.entries, *sizes, 0)
        return made


def test_a_plain_forward_is_seen_to_make_all_logits():
    model = tiny_causal("gpt2", vocabulary=VOCABULARY, attention="eager")
    with Largest() as seen:
        model(input_ids=torch.zeros(GROUP, PROMPT + LENGTH, dtype=torch.long), use_cache=False)
    assert seen.entries >= GROUP * (PROMPT + LENGTH) * VOCABULARY


@pytest.mark.parametrize("cut", [{}, {"top_k": 50, "top_p": 0.9}], ids=["all", "cut"])
def test_no_tensor_over_all_tokens_and_the_vocabulary_is_made(cut, monkeypatch):
    monkeypatch.setattr(head, "SLICE", 2**10)
    monkeypatch.setattr(shared_attention, "BLOCK", 2**10)
    policy, reference = (CausalPolicy(tiny_causal("gpt2", vocabulary=VOCABULARY, seed=seed)) for seed in (0, 1))
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(VOCABULARY, (PROMPT,), generator=generator).tolist()
    members = torch.randint(VOCABULARY, (GROUP, LENGTH), generator=generator).tolist()
    with Largest() as seen:
        made = policy.token_logp(pack([prompt], [members]), reference=None if cut else reference, **cut)
        (made.logp.sum() + made.entropy.sum() + (0 if cut else made.kl.sum())).backward()
    tokens, states = PROMPT + GROUP * (LENGTH - 1), 1 + GROUP * (LENGTH - 1)
    allowed = max(
        VOCABULARY * WIDTH,  # a gradient of the embedding
        tokens * HIDDEN,  # the widest layer
        states * max(256, head.SLICE // states),  # a slice of logits
        ROWS * VOCABULARY if cut else 0,  # the rows whose whole vocabulary is sorted
        HEADS * LENGTH * (PROMPT + LENGTH),  # the scores of one response, the smallest block
    )
    assert seen.entries <= allowed < states * VOCABULARY / 4
