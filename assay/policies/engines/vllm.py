"""vLLM behind the sampler's protocol: faster on a GPU, and not the distribution that is scored.

What differs from this package's own engine:

- Each response has a seed of its own, made from its address, so that vLLM's random numbers do not depend on what is
  drawn beside it. They are still vLLM's: no number is addressed, and other versions, kernels or batch shapes may draw
  other tokens.
- Its kernels round differently, in the precision given here. ``logp`` is what vLLM says that it drew with, and the
  trainer's is another number: measure the gap at every step (:func:`assay.core.gap.gap`) and correct it or refuse it.
- Where tokens tie at the edge of top-k or top-p, it may keep others than the trainer replays.

Written against vLLM 0.33: ``LLM``, ``SamplingParams`` and the worker call ``reload_weights``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor

from assay.core.streams import Stream, uniforms
from assay.errors import ConfigError, UpdateError
from assay.policies.engines import Decoding, Drawn, Request

LOWEST_TEMPERATURE = 0.01
"""vLLM raises a lower temperature to this one and draws from another distribution than it was asked for."""
NO_WEIGHTS = -1
"""The version of an engine whose weights are not known."""


class VllmEngine:
    """Draw responses with vLLM, in this process's GPU.

    Args:
        model: directory of the model in Transformers' layout; only its architecture matters, since weights are loaded
            before anything is drawn.
        dtype: precision of weights and activations, ``"float32"`` or ``"bfloat16"``.
        context: longest prompt and response together, in tokens.
        memory: fraction of the GPU's memory that vLLM takes and keeps, weights and cache together.

    Raises:
        ConfigError: vLLM is not installed, or has no such precision.
    """

    def __init__(self, model: Path, *, dtype: str, context: int, memory: float) -> None:
        if dtype not in ("float32", "bfloat16"):
            raise ConfigError(f"policy.dtype = {dtype!r}: vllm has no such precision; use float32 or bfloat16")
        self._vllm = _installed()
        self._version = NO_WEIGHTS
        self._names: frozenset[str] = frozenset()
        self._llm = self._vllm.LLM(
            model=str(model),
            dtype=dtype,
            max_model_len=context,
            gpu_memory_utilization=memory,
            skip_tokenizer_init=True,
            enable_prefix_caching=True,
            logprobs_mode="processed_logprobs",
        )

    @property
    def version(self) -> int:
        """Which weights it holds; -1 before any load and after one that failed."""
        return self._version

    def load(self, named_weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Hand over weights through a safetensors file and drop every cached prompt.

        An adapter's weights must have been merged into the model's own. The version changes only when vLLM has taken
        everything; after a failure it is -1, since some layers may hold the new weights and some the old ones.

        Args:
            named_weights: under the names of the model's own checkpoint.
            version: what :attr:`version` then says.

        Raises:
            UpdateError: other names than the last time, or vLLM kept what it had computed with the old weights.
        """
        self._version = NO_WEIGHTS
        weights = _untied(named_weights)
        if self._names and weights.keys() != self._names:
            odd = sorted(weights.keys() ^ self._names)
            raise UpdateError(
                f"{len(odd)} weights came only once, such as {odd[0]!r}; hand over the same ones each time"
            )
        with tempfile.TemporaryDirectory(prefix="assay-weights-") as place:
            _save(weights, Path(place) / "model.safetensors")
            self._llm.collective_rpc("reload_weights", kwargs={"weights_path": place})
        if not self._llm.reset_prefix_cache():
            raise UpdateError("vllm kept prompts that old weights have read; let its requests finish before a load")
        self._names, self._version = frozenset(weights), version

    def generate(
        self, requests: Sequence[Request], decoding: Decoding, *, seed: int, stream: Stream, step: int
    ) -> list[list[Drawn]]:
        """Return the responses to each request, in the order of its sample numbers.

        Each response is a request of its own to vLLM: its seed then depends on its address alone, and the prompt that
        a group shares is read once all the same, from the prefix cache.

        Raises:
            ConfigError: a temperature that vLLM would change.
            UpdateError: no weights were loaded, or what came back is not what was asked for.
        """
        if self._version == NO_WEIGHTS:
            raise UpdateError("vllm holds no known weights; load the policy's before drawing")
        if not decoding.greedy and decoding.temperature < LOWEST_TEMPERATURE:
            raise ConfigError(
                f"rl.temperature = {decoding.temperature}: vllm would draw at {LOWEST_TEMPERATURE}; use that or more"
            )
        rows = [(request, sample) for request in requests for sample in request.samples]
        seeds = _seeds(rows, seed=seed, stream=stream, step=step)
        outputs = self._llm.generate(
            [{"prompt_token_ids": list(request.prompt)} for request, _ in rows],
            [self._vllm.SamplingParams(**settings(decoding, number)) for number in seeds],
            use_tqdm=False,
        )
        if len(outputs) != len(rows):
            raise UpdateError(f"vllm gave {len(outputs)} responses to {len(rows)} requests; nothing can be trained on")
        drawn = iter([_drawn(output, request, decoding) for output, (request, _) in zip(outputs, rows, strict=True)])
        return [[next(drawn) for _ in request.samples] for request in requests]


def settings(decoding: Decoding, seed: int) -> Mapping[str, Any]:
    """Return the arguments of vLLM's ``SamplingParams`` for one response.

    ``ignore_eos`` leaves it to ``stop_token_ids`` alone when a response ends, whatever the model's own generation
    settings say; ``logprobs=0`` asks for the log-probability of the drawn token and of no other.
    """
    chosen = (
        {"temperature": 0.0}
        if decoding.greedy
        else {
            "temperature": decoding.temperature,
            "top_k": decoding.top_k,
            "top_p": decoding.top_p,
        }
    )
    return {
        **chosen,
        "n": 1,
        "seed": seed,
        "max_tokens": decoding.max_tokens,
        "stop_token_ids": sorted(decoding.stop_tokens),
        "ignore_eos": True,
        "logprobs": 0,
        "detokenize": False,
    }


def _seeds(rows: Sequence[tuple[Request, int]], *, seed: int, stream: Stream, step: int) -> list[int]:
    """Return a seed in [0, 2**53) for each response, a function of its address."""
    if not rows:
        return []
    problem, sample = [request.problem for request, _ in rows], [sample for _, sample in rows]
    units = uniforms(seed, stream, 1, step=step, problem=problem, sample=sample)[:, 0]
    return [int(unit) for unit in units * 2.0**53]


def _drawn(output: Any, request: Request, decoding: Decoding) -> Drawn:
    """Return one response from vLLM's ``RequestOutput``.

    Raises:
        UpdateError: it answers another prompt, did not end by a stop token or by length, or lacks log-probabilities.
    """
    (completion,) = output.outputs
    tokens = tuple(int(token) for token in completion.token_ids)
    where = f"problem {request.problem}: vllm"
    if tuple(output.prompt_token_ids) != request.prompt:
        raise UpdateError(f"{where} answered another prompt than it was given; its responses cannot be paired")
    if completion.finish_reason not in ("stop", "length") or not tokens:
        raise UpdateError(f"{where} ended with {completion.finish_reason!r} after {len(tokens)} tokens; not a response")
    truncated = tokens[-1] not in decoding.stop_tokens
    if truncated and completion.finish_reason == "stop":
        raise UpdateError(
            f"{where} stopped at token {tokens[-1]}, which ends no response; its log-probability is of another"
        )
    if decoding.greedy:
        return Drawn(tokens, (0.0,) * len(tokens), truncated)
    if completion.logprobs is None or len(completion.logprobs) != len(tokens):
        raise UpdateError(f"{where} gave no log-probability for each token; its gap to the trainer cannot be measured")
    logp = tuple(float(at[token].logprob) for at, token in zip(completion.logprobs, tokens, strict=True))
    return Drawn(tokens, logp, truncated)


def _untied(named_weights: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Return the weights by name, a tensor that has several names under its first one."""
    weights: dict[str, Tensor] = {}
    seen: set[tuple[int, tuple[int, ...], tuple[int, ...]]] = set()
    for name, weight in named_weights:
        identity = (weight.data_ptr(), tuple(weight.shape), weight.stride())
        if identity not in seen:
            seen.add(identity)
            weights[name] = weight.detach()
    return weights


def _save(weights: Mapping[str, Tensor], path: Path) -> None:
    from safetensors.torch import save_file

    save_file({name: weight.contiguous() for name, weight in weights.items()}, path)


def _installed() -> Any:
    try:
        return import_module("vllm")
    except ImportError as error:
        raise ConfigError("policy.engine = 'vllm': not installed; pip install 'assay[vllm]', or use 'own'") from error
