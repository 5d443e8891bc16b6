"""One RL step of a 22-million-parameter language model against TRL's RLOOTrainer, on one thread.

    make benchmark-lm                                   (prompts of 256 tokens)
    .venv-trl/bin/python benchmarks/lm_step.py --prompt 1024 --problems 1        (TRL with 4 would need over 20 GB)

Qwen2's architecture, 6 layers of width 384, 6 heads and 2 of keys, vocabulary 32,000, weights tied; 4 prompts x 8
responses of exactly 64 tokens, float32, no reference model. Everything between two steps counts on both sides:
sampling, grading, backward, optimizer, bookkeeping. TRL is tuned in its favour: no bf16, no gradient checkpointing, no
reference, nothing saved or reported. Each side runs in a process of its own, in turns; memory is the peak above what
the process held once the model was built. The rate of a large matrix product is taken right before and after each of
our updates, and one more update is profiled, which says what its time goes into.
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
STEPS = {"ours": 3, "trl": 2}
"""Steps a process takes; the first one warms up and is left out."""
KINDS = {
    "products with weights": ("aten::mm", "aten::addmm", "aten::addmm_"),
    "products of attention": ("aten::bmm",),
    "exponentials of logits and scores": ("aten::exp", "aten::exp_"),
    "filling and copying memory": ("aten::fill_", "aten::copy_", "aten::index", "aten::_index_put_impl_"),
}
"""Operations of the update by kind; the rest are norms, gates, rotations, sums and Python."""


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


def peak_memory() -> float:
    """Return the most that the process has held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def peak_rate() -> float:
    """Return the rate of a large float32 matrix product on one thread now, in GFLOP/s."""
    a = torch.ones(1024, 1024)
    times = []
    for _ in range(7):
        began = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - began)
    return 2 * 1024**3 / statistics.median(times) / 1e9


def ours(model: Path, length: int, budget: int, *, profile: bool = True) -> dict[str, Any]:
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
        return [Outcome(float(row % 2), "right" if row % 2 else "wrong") for row in range(len(responses))]

    engine = OwnEngine(policy, rows=PROMPTS * SIZE, prompt_tokens=PROMPTS * length)
    work = steps.Workplace(recipe, problems, encode(codec, problems, longest=4096), codec, engine, grade)
    state = begin(policy, recipe.warmup, base="none")
    begin_rl(state, recipe.rl, with_reference=False)
    spent: dict[str, float] = {}
    update = steps.differentiate
    engine.generate = timed(engine.generate, "generate", spent)  # type: ignore[method-assign]
    steps.differentiate = probed(timed(update, "forward and backward", spent), spent)
    steps.apply_gradients = timed(steps.apply_gradients, "optimizer", spent)
    base = resident()
    times, rates, parts = [], [], []
    for _ in range(STEPS["ours"]):
        spent.clear()
        began = time.perf_counter()
        steps.rl_step(state, work)
        times.append(time.perf_counter() - began - spent.pop("probe"))
        rates.append(spent.pop("rate"))
        parts.append(dict(spent))
    memory, kinds = peak_memory() - base, {}
    if profile:
        steps.differentiate = profiled(update, kinds)
        steps.rl_step(state, work)
    return {"times": times[1:], "parts": parts[1:], "rates": rates[1:], "kinds": kinds, "memory": memory}


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
        return [float(row % 2) for row in range(len(completion_ids))]

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
        memory = peak_memory() - base
    return {"times": [b - a for a, b in zip(ends, ends[1:], strict=False)], "memory": memory}


def timed(work: Callable[..., Any], name: str, spent: dict[str, float]) -> Callable[..., Any]:
    """Return the same function, which adds its time to a record."""

    def wrapped(*arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return work(*arguments, **named)
        finally:
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - began

    return wrapped


def probed(work: Callable[..., Any], spent: dict[str, float]) -> Callable[..., Any]:
    """Return the same function, which adds the rate of a matrix product around it, and the time that this took."""

    def wrapped(*arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        before = peak_rate()
        middle = time.perf_counter()
        made = work(*arguments, **named)
        end = time.perf_counter()
        spent["rate"] = (before + peak_rate()) / 2
        spent["probe"] = middle - began + time.perf_counter() - end
        return made

    return wrapped


def profiled(work: Callable[..., Any], kinds: dict[str, float]) -> Callable[..., Any]:
    """Return the same function, which adds the share of its time that each kind of operation took."""

    def wrapped(*arguments: Any, **named: Any) -> Any:
        with torch.profiler.profile() as seen:
            made = work(*arguments, **named)
        times = {event.key: event.self_cpu_time_total for event in seen.key_averages()}
        whole = sum(times.values())
        kinds.update({kind: sum(times.get(name, 0) for name in names) / whole for kind, names in KINDS.items()})
        kinds["the rest"] = 1 - sum(kinds.values())
        return made

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
    command += ["--prompt", str(options.prompt), "--problems", str(options.problems), "--budget", str(options.budget)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    made: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return made


def main() -> None:
    global PROMPTS
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompt", type=int, default=256, help="tokens of each prompt")
    parser.add_argument("--problems", type=int, default=PROMPTS, help="prompts a step")
    parser.add_argument("--budget", type=int, help="our policy.token_budget; where absent, the tokens of one group")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=list(SIDES), help="leave the other side out")
    parser.add_argument("--side", choices=list(SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    PROMPTS = options.problems
    options.budget = options.budget or group_tokens(options.prompt)
    torch.set_num_threads(1)
    if options.side:
        print(json.dumps(SIDES[options.side](options.model, options.prompt, options.budget)))
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
    """Print medians, and ratios within rounds."""
    time_of = {side: [statistics.median(made["times"]) for made in rounds] for side, rounds in found.items()}
    memory_of = {side: [made["memory"] for made in rounds] for side, rounds in found.items()}
    print(f"{PROMPTS} prompts of {options.prompt} tokens x {SIZE} responses of {LENGTH}, {options.rounds} rounds")
    for side in found:
        seconds, memory = statistics.median(time_of[side]), statistics.median(memory_of[side])
        print(f"{side:5} {seconds:8.2f} s a step {memory:8.0f} MB above the model")
    if len(found) == 2:
        faster = [t / o for t, o in zip(time_of["trl"], time_of["ours"], strict=True)]
        smaller = [t / o for t, o in zip(memory_of["trl"], memory_of["ours"], strict=True)]
        print(f"ours is {spread(faster)} times faster, in 1/{spread(smaller)} of the memory")
    if "ours" in found:
        show_ours(found["ours"], options)


def show_ours(rounds: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Print what our step is made of, and how near its update comes to the rate of a matrix product."""
    for name in rounds[0]["parts"][0]:
        print(f"    {name:22} {statistics.median(part[name] for made in rounds for part in made['parts']):6.2f} s")
    work = update_work(options.prompt)
    shares = [
        100 * work / part["forward and backward"] / rate
        for made in rounds
        for part, rate in zip(made["parts"], made["rates"], strict=True)
    ]
    rate = statistics.median(rate for made in rounds for rate in made["rates"])
    print(
        f"forward and backward need {work:.0f} GFLOP of matrix products; a large one runs at {rate:.0f} GFLOP/s beside"
    )
    print(f"them, and they reach {spread(shares)} % of that. Their time:")
    for kind in rounds[0]["kinds"]:
        print(f"    {kind:36} {statistics.median(made['kinds'][kind] for made in rounds):6.1%}")


def spread(values: Sequence[float]) -> str:
    """Return the median of some values, and their range."""
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


if __name__ == "__main__":
    main()
