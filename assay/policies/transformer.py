"""The tiny policy: one pre-norm transformer block, small enough that every trajectory can be enumerated.

With the same weights it is the same function as a Transformers GPT-2 with one layer and an untied head: learned
positions, LayerNorm before attention and feed-forward, tanh-approximated GELU.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from assay.core.streams import Stream, normals


class TinyTransformer(nn.Module):
    """A causal transformer of one block and 17 parameter tensors.

    Two embeddings, twelve tensors in the block (two norms, four linear maps, weight and bias each), two in the
    final norm and an untied head without bias.

    Args:
        vocabulary: tokens that can be read.
        responses: tokens that can be answered; they are the first ids of the vocabulary.
        context: longest input, in tokens.
        width: size of the residual stream, a multiple of ``heads``.
        heads: attention heads.
        feedforward: hidden size of the feed-forward map.
        seed: names the initial weights (:meth:`reset`).
        dtype: of every parameter.
    """

    def __init__(
        self,
        *,
        vocabulary: int,
        responses: int,
        context: int,
        width: int,
        heads: int,
        feedforward: int,
        seed: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.heads = heads
        with torch.device("meta"):
            self.token_embedding = nn.Embedding(vocabulary, width)
            self.position_embedding = nn.Embedding(context, width)
            self.attention_norm = nn.LayerNorm(width)
            self.attention_in = nn.Linear(width, 3 * width)
            self.attention_out = nn.Linear(width, width)
            self.feedforward_norm = nn.LayerNorm(width)
            self.feedforward_in = nn.Linear(width, feedforward)
            self.feedforward_out = nn.Linear(feedforward, width)
            self.final_norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, responses, bias=False)
        self.to_empty(device="cpu").to(dtype)
        self.reset(seed)

    @torch.no_grad()
    def reset(self, seed: int) -> None:
        """Set the initial weights from the seed's own stream.

        Embeddings are standard normals, linear maps normal with variance 1 / (3 inputs), which is the variance
        torch gives them by default; norms are the identity and biases zero. The numbers are made in float64 and
        then rounded, so that both precisions start from the same point.
        """
        for index, (name, parameter) in enumerate(self.named_parameters()):
            if parameter.ndim == 1:
                parameter.fill_(1.0 if name.endswith("norm.weight") else 0.0)
                continue
            scale = 1.0 if "embedding" in name else 1.0 / math.sqrt(3 * parameter.shape[1])
            values = scale * normals(seed, Stream.INIT, parameter.numel(), problem=index)
            parameter.copy_(values.view(parameter.shape))

    def forward(self, tokens: Int[Tensor, "B S"]) -> Float[Tensor, "B S V"]:
        """Return the logits over the response vocabulary after each position."""
        length = tokens.shape[1]
        x = self.token_embedding(tokens) + self.position_embedding.weight[:length]
        x = x + self._attention(self.attention_norm(x))
        hidden = F.gelu(self.feedforward_in(self.feedforward_norm(x)), approximate="tanh")
        x = x + self.feedforward_out(hidden)
        logits: Tensor = self.head(self.final_norm(x))
        return logits

    def _attention(self, x: Float[Tensor, "B S D"]) -> Float[Tensor, "B S D"]:
        q, k, v = self.attention_in(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        attended: Tensor = self.attention_out(mixed.transpose(1, 2).flatten(2))
        return attended
