import math

import pytest
import torch

from assay.core.streams import Stream, normals
from assay.policies.transformer import TinyTransformer


def policy(dtype: torch.dtype, width: int = 16, heads: int = 2) -> TinyTransformer:
    return TinyTransformer(
        vocabulary=13, responses=10, context=7, width=width, heads=heads, feedforward=32, seed=29, dtype=dtype
    )


def test_it_has_seventeen_tensors():
    """2 embeddings, 2 + 2 norms and 4 linear maps of weight and bias in the block, 2 in the final norm, 1 head."""
    assert len(list(policy(torch.float32).parameters())) == 2 + (2 * 2 + 4 * 2) + 2 + 1


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize(("width", "heads"), [(16, 2), (32, 4), (24, 1)])
def test_it_is_the_same_function_as_a_one_layer_untied_gpt2(dtype, tolerance, width, heads):
    transformers = pytest.importorskip("transformers", reason="pip install 'assay[test]' brings transformers")
    config = transformers.GPT2Config(
        vocab_size=13, n_positions=7, n_embd=width, n_layer=1, n_head=heads, n_inner=32, tie_word_embeddings=False,
        attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    theirs = transformers.GPT2LMHeadModel(config).to(dtype).eval()
    ours = policy(dtype, width, heads)
    block, with_all_logits = theirs.transformer.h[0], torch.zeros(13, width, dtype=dtype)
    with torch.no_grad():
        for parameter in ours.parameters():  # norms and biases away from their neutral start
            noise = torch.randn(parameter.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
            parameter += 0.1 * noise.to(dtype)
        with_all_logits[:10] = ours.head.weight
        pairs = [
            (theirs.transformer.wte, "weight", ours.token_embedding.weight),
            (theirs.transformer.wpe, "weight", ours.position_embedding.weight),
            (theirs.lm_head, "weight", with_all_logits),
        ]
        for theirs_part, ours_part in [
            (block.ln_1, ours.attention_norm),
            (block.ln_2, ours.feedforward_norm),
            (theirs.transformer.ln_f, ours.final_norm),
        ]:
            pairs += [(theirs_part, "weight", ours_part.weight), (theirs_part, "bias", ours_part.bias)]
        for conv, linear in [
            (block.attn.c_attn, ours.attention_in),
            (block.attn.c_proj, ours.attention_out),
            (block.mlp.c_fc, ours.feedforward_in),
            (block.mlp.c_proj, ours.feedforward_out),
        ]:
            pairs += [(conv, "weight", linear.weight.T), (conv, "bias", linear.bias)]
        for module, name, value in pairs:
            getattr(module, name).copy_(value)
        tokens = torch.randint(0, 13, (40, 7), generator=torch.Generator().manual_seed(2))
        difference = (theirs(tokens).logits[..., :10] - ours(tokens)).abs().max()
    assert float(difference) < tolerance


def test_it_is_causal():
    model = policy(torch.float64)
    tokens = torch.tensor([[1, 10, 2, 11, 3, 12, 5]])
    changed = tokens.clone()
    changed[0, 4] = 9
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


def test_initial_weights_come_from_their_own_stream_and_round_to_either_precision():
    single, double = policy(torch.float32), policy(torch.float64)
    for (name, low), high in zip(single.named_parameters(), double.parameters(), strict=True):
        assert torch.equal(low, high.float()), name
    index = [name for name, _ in double.named_parameters()].index("feedforward_in.weight")
    expected = normals(29, Stream.INIT, 32 * 16, problem=index).view(32, 16) / math.sqrt(3 * 16)
    assert torch.allclose(double.feedforward_in.weight, expected, atol=1e-15, rtol=0)


def test_initialisation_touches_no_global_generator():
    before = torch.get_rng_state()
    policy(torch.float32)
    assert torch.equal(torch.get_rng_state(), before)
