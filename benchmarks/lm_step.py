"""One RL step of a 22-million-parameter language model against TRL's RLOOTrainer, on one thread.

    make benchmark-lm                                   (prompts of 256 tokens)
    .venv-trl/bin/python benchmarks/lm_step.py --prompt 1024 --only ours

Qwen2's architecture, 6 layers of width 384, 6 heads and 2 of keys, vocabulary 32,000, weights tied; 4 prompts x 8
responses of exactly 64 tokens, float32, no reference model. Everything between two steps counts on both sides:
sampling, grading, backward, optimizer, bookkeeping. TRL is tuned in its favour: no bf16, no gradient checkpointing, no
reference, nothing saved or reported. Each side runs in a process of its own, in turns; memory is the peak above what
the process held once the model was built.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

VOCABULARY, WIDTH, LAYERS, HEADS, KEY_HEADS, INNER = 32_000, 384, 6, 6, 2, 1024
PROMPTS, SIZE, LENGTH = 4, 8, 64
STEPS = {"ours": 4, "trl": 2}
"""Steps a process takes; the first one warms up and is left out."""


def build(place: Path) -> None:
    """Save the model."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KEY_HEADS, max_position_embeddings=4096,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(place)


def words() -> Any:
    """Return a tokenizer of one token a word."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = {"<pad>": 0, "<eos>": 1} | {f"w{number}": number for number in range(2, VOCABULARY)}
    made = Tokenizer(models.WordLevel(known, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", padding_side="left")


def prompts(length: int) -> list[str]:
    """Return different prompts of so many tokens."""
    drawn = torch.randint(2, VOCABULARY, (PROMPTS, length), generator=torch.Generator().manual_seed(1))
    return [" ".join(f"w{number}" for number in row) for row in drawn.tolist()]


def resident() -> float:
    """Return what the process holds now, in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def peak_rate() -> float:
    """Return the best rate of a large float32 matrix product on one thread, in GFLOP/s."""
    a = torch.randn(2048, 2048)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - began)
    return 2 * 2048**3 / min(times) / 1e9


def ours(model: Path, length: int, budget: int) -> dict[str, Any]:
    """Take steps with the package's own training step."""
    from transformers import AutoModelForCausalLM

    from assay.policies.causal.attention import register
    from assay.policies.causal.engine import OwnEngine
    from assay.policies.causal.model import CausalPolicy
    from assay.policies.causal.tokens import Codec
    from assay.training.language import steps
    from assay.training.language.recipe import build_language_recipe
    from assay.training.language.rollout import encode
    from assay.training.language.state import begin, begin_rl
    from assay.types import Outcome, Response, TextProblem

    settings = {
        "model": str(model), "data": "none.jsonl", "policy": {"token_budget": budget},
        "rl": {"steps": STEPS["ours"], "problems_per_step": PROMPTS, "num_generations": SIZE, "beta": 0.0,
               "max_completion_length": LENGTH},
    }  # fmt: skip
    recipe = build_language_recipe(settings, place="benchmark", base=model)
    policy = CausalPolicy(AutoModelForCausalLM.from_pretrained(model, attn_implementation=register()).eval())
    codec = Codec(words())
    codec.stop_tokens = frozenset()  # every response has the whole length
    problems = [TextProblem(number, text) for number, text in enumerate(prompts(length))]

    def grade(asked: Sequence[TextProblem], responses: Sequence[Response]) -> list[Outcome]:
        scores = [sum(response.tokens) % 2 for response in responses]
        return [Outcome(float(score), "right" if score else "wrong") for score in scores]

    engine = OwnEngine(policy, rows=PROMPTS * SIZE, prompt_tokens=PROMPTS * length)
    spent: dict[str, float] = {}
    engine.generate = timed(engine.generate, "generate", spent)  # type: ignore[method-assign]
    steps.differentiate = timed(steps.differentiate, "forward and backward", spent)
    steps.apply_gradients = timed(steps.apply_gradients, "optimizer", spent)
    work = steps.Workplace(recipe, problems, encode(codec, problems, longest=4096), codec, engine, grade)
    state = begin(policy, recipe.warmup, base="none")
    begin_rl(state, recipe.rl, with_reference=False)
    base = resident()
    times, parts = [], []
    for _ in range(STEPS["ours"]):
        spent.clear()
        began = time.perf_counter()
        steps.rl_step(state, work)
        times.append(time.perf_counter() - began)
        parts.append(dict(spent))
    return {"times": times[1:], "parts": parts[1:], "base": base}


def theirs(model: Path, length: int, budget: int) -> dict[str, Any]:
    """Take steps with RLOOTrainer."""
    import transformers
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl import RLOOConfig, RLOOTrainer

    transformers.logging.set_verbosity_error()
    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *arguments: Any, **named: Any) -> None:
            ends.append(time.perf_counter())

    def reward(completion_ids: list[list[int]], **columns: Any) -> list[float]:
        return [float(sum(ids) % 2) for ids in completion_ids]

    with tempfile.TemporaryDirectory() as place:
        config = RLOOConfig(
            output_dir=place, max_steps=STEPS["trl"], per_device_train_batch_size=PROMPTS * SIZE, num_generations=SIZE,
            max_completion_length=LENGTH, beta=0.0, learning_rate=1e-5, weight_decay=0.0, max_grad_norm=1.0,
            lr_scheduler_type="constant", optim="adamw_torch_fused", bf16=False, fp16=False,
            gradient_checkpointing=False, save_strategy="no", report_to="none", disable_tqdm=True,
            logging_steps=10**6, use_cpu=True, generation_kwargs={"min_new_tokens": LENGTH, "suppress_tokens": [0, 1]},
        )  # fmt: skip
        trainer = RLOOTrainer(
            model=AutoModelForCausalLM.from_pretrained(model),
            args=config,
            reward_funcs=reward,
            train_dataset=Dataset.from_dict({"prompt": prompts(length)}),
            callbacks=[Clock()],
            processing_class=words(),
        )
        base = resident()
        trainer.train()
    return {"times": [b - a for a, b in zip(ends, ends[1:], strict=False)], "parts": [], "base": base}


def timed(work: Callable[..., Any], name: str, spent: dict[str, float]) -> Callable[..., Any]:
    """Return the same function, which adds its time to a record."""

    def wrapped(*arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return work(*arguments, **named)
        finally:
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - began

    return wrapped


def update_work(length: int) -> float:
    """Return the floating-point operations that one update's matrix products need, in GFLOP.

    Two for each weight and token read in the forward and four in the backward. A group reads its prompt once and its
    responses but for their last token; the last map reads response tokens alone. Attention: two products of the width
    for each pair of a query and a key it reads, likewise three times over.
    """
    read = group_tokens(length)
    size = WIDTH // HEADS
    layer = 2 * WIDTH * WIDTH + 2 * WIDTH * KEY_HEADS * size + 3 * WIDTH * INNER
    pairs = length * (length + 1) / 2 + SIZE * (LENGTH - 1) * (length + LENGTH / 2)
    body = 6 * LAYERS * (layer * read + 2 * WIDTH * pairs)
    return PROMPTS * (body + 6 * VOCABULARY * WIDTH * (SIZE * (LENGTH - 1) + 1)) / 1e9


def group_tokens(length: int) -> int:
    """Return the tokens that the update reads of one group: its prompt, and its responses but for their last token."""
    return length + SIZE * (LENGTH - 1)


SIDES = {"ours": ours, "trl": theirs}


def run_side(side: str, model: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Take one side's steps in a process of its own."""
    command = [sys.executable, __file__, "--side", side, "--model", str(model)]
    command += ["--prompt", str(options.prompt), "--budget", str(options.budget)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    made: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompt", type=int, default=256, help="tokens of each prompt")
    parser.add_argument("--budget", type=int, help="our policy.token_budget; where absent, the tokens of one group")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=list(SIDES), help="leave the other side out")
    parser.add_argument("--side", choices=list(SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.budget = options.budget or group_tokens(options.prompt)
    torch.set_num_threads(1)
    if options.side:
        made = SIDES[options.side](options.model, options.prompt, options.budget)
        made["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
        print(json.dumps({**made, "rate": peak_rate()}))
        return
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES if options.only in (None, side)}
    with tempfile.TemporaryDirectory() as place:
        build(Path(place))
        for number in range(options.rounds):
            for side in found:
                found[side].append(run_side(side, Path(place), options))
                print(f"round {number + 1} of {options.rounds}, {side}", file=sys.stderr)
    show(found, options)


def show(found: dict[str, list[dict[str, Any]]], options: argparse.Namespace) -> None:
    """Print medians, ratios within rounds, and where our time goes."""
    time_of = {side: [statistics.median(made["times"]) for made in rounds] for side, rounds in found.items()}
    memory_of = {side: [made["peak"] - made["base"] for made in rounds] for side, rounds in found.items()}
    print(f"{PROMPTS} prompts of {options.prompt} tokens x {SIZE} responses of {LENGTH}, {options.rounds} rounds")
    for side in found:
        seconds, memory = statistics.median(time_of[side]), statistics.median(memory_of[side])
        print(f"{side:5} {seconds:8.2f} s a step {memory:8.0f} MB above the model")
    if len(found) == 2:
        faster = statistics.median(t / o for t, o in zip(time_of["trl"], time_of["ours"], strict=True))
        smaller = statistics.median(t / o for t, o in zip(memory_of["trl"], memory_of["ours"], strict=True))
        print(f"ours is {faster:.1f} times faster, in 1/{smaller:.1f} of the memory")
    if "ours" not in found:
        return
    work = update_work(options.prompt)
    shares = [work / part["forward and backward"] / made["rate"] for made in found["ours"] for part in made["parts"]]
    print(
        f"the update needs {work:.0f} GFLOP of matrix products, at {statistics.median(shares):.0%} of one thread's peak"
    )
    for name in found["ours"][0]["parts"][0]:
        seconds = statistics.median(part[name] for made in found["ours"] for part in made["parts"])
        print(f"    {name:22} {seconds:6.2f} s")


if __name__ == "__main__":
    main()
