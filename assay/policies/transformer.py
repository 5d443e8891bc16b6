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
from assay.errors import InputError
from assay.types import Memory


def attend(query: Float[Tensor, "*nodes D"], entries: tuple[Tensor, ...], heads: int) -> Float[Tensor, "*attended D"]:
    """Attend to memory entries that broadcast against the query, none of them copied to the shape of the result.

    A softmax is a sum of ``exp(score) value`` over a sum of ``exp(score)``. Each entry's share of both sums is
    computed at its own broadcast size, and only the sums grow to one row a node.

    Args:
        query: one row a node, size 1 along node axes that do not matter to it.
        entries: ``[*nodes, P, 2D]``, key and value side by side.
        heads: attention heads.
    """
    query = query.view(*query.shape[:-1], heads, -1) / math.sqrt(query.shape[-1] // heads)
    pairs = [entry.view(*entry.shape[:-1], 2, heads, -1).unbind(-3) for entry in entries]
    scores = [torch.einsum("...hd,...phd->...ph", query, key) for key, _ in pairs]
    shift = _shift([score.detach() for score in scores], query.shape[:-2])
    total, mixed = torch.zeros((), dtype=query.dtype), torch.zeros((), dtype=query.dtype)
    for score, (_, value) in sorted(zip(scores, pairs, strict=True), key=lambda pair: pair[0].numel()):
        weight = (score - shift.unsqueeze(-2)).exp()
        total = total + weight.sum(-2)
        mixed = mixed + torch.einsum("...ph,...phd->...hd", weight, value)
    return (mixed / total.unsqueeze(-1)).flatten(-2)


def _shift(scores: list[Tensor], nodes: torch.Size) -> Float[Tensor, "*nodes H"]:
    """Return what to subtract from scores before exponentials: the largest score of each query over all its nodes.

    One number a query keeps what is computed from it as small as the query. Where a node's own largest score
    lies so far below that its exponential could vanish, each node's own is returned instead.
    """
    own = scores[0].amax(-2)
    for score in scores[1:]:
        own = torch.maximum(own, score.amax(-2))
    axes = [axis for axis, size in enumerate(nodes) if size == 1]
    shared = own.amax(axes, keepdim=True) if axes else own
    limit = -0.5 * math.log(torch.finfo(own.dtype).tiny)
    return shared if float((shared - own).max()) < limit else own


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
        return self._predict(x + self._attention(self.attention_norm(x)))

    def read(self, prompt: Int[Tensor, " S"]) -> tuple[Float[Tensor, "1 V"], Memory]:
        """Return the logits that follow a prompt, and what later tokens attend to."""
        x = self.token_embedding(prompt) + self.position_embedding.weight[: len(prompt)]
        query, seen = self._project(x)
        attended = attend(query[-1:], (seen[None],), self.heads)
        return self._predict(x[-1:] + self.attention_out(attended)), ((seen[None],),)

    def extend(self, memory: Memory, tokens: Int[Tensor, "*children"]) -> tuple[Float[Tensor, "*nodes V"], Memory]:
        """Read one more token at each child of each node, as :class:`assay.types.IncrementalPolicy` says.

        With a single block, queries, keys and values depend on the token and its position alone: they keep size 1
        along the axes of the ancestors, and so do all products of two of them.
        """
        (entries,) = memory
        position, context = sum(entry.shape[-2] for entry in entries), self.position_embedding.num_embeddings
        if position >= context:
            raise InputError(f"token at position {position}: this policy was built with context {context}; raise it")
        x = self.token_embedding(tokens) + self.position_embedding.weight[position]
        query, own = self._project(x)
        entries = (*(entry.unsqueeze(-3) for entry in entries), own.unsqueeze(-2))
        return self._predict(x + self.attention_out(attend(query, entries, self.heads))), (entries,)

    def _project(self, x: Float[Tensor, "*nodes D"]) -> tuple[Float[Tensor, "*nodes D"], Float[Tensor, "*nodes F"]]:
        """Return each position's query, and its key and value side by side."""
        width = x.shape[-1]
        query, seen = self.attention_in(self.attention_norm(x)).split((width, 2 * width), dim=-1)
        return query, seen

    def _predict(self, x: Float[Tensor, "*nodes D"]) -> Float[Tensor, "*nodes V"]:
        """Return the logits after the feed-forward map, from the residual stream after attention."""
        hidden = F.gelu(self.feedforward_in(self.feedforward_norm(x)), approximate="tanh")
        x = x + self.feedforward_out(hidden)
        logits: Tensor = self.head(self.final_norm(x))
        return logits

    def _attention(self, x: Float[Tensor, "B S D"]) -> Float[Tensor, "B S D"]:
        q, k, v = self.attention_in(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        attended: Tensor = self.attention_out(mixed.transpose(1, 2).flatten(2))
        return attended
