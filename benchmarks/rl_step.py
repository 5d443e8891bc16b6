"""One RL step of the seed experiment against TRL's RLOOTrainer, side by side in one process on one thread.

    make benchmark-trl

Both train a one-block model of width 16 (feed-forward 32, two heads) on 5 prompts x 8 responses of exactly two
tokens, score them strictly, and apply AdamW. Everything between two steps counts, on both sides: sampling,
scoring, reference, backward, optimizer, bookkeeping. TRL is tuned in its favour: float32, no gradient
checkpointing, no progress bar, nothing saved or reported; ours writes its metrics, timing and checkpoints as
always. The two alternate; a ratio is taken within each round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, TrainerCallback

import assay
from assay.tasks.chain import Problem, draw_splits

ROUNDS, STEPS = 7, 100


class StepTimer(TrainerCallback):
    """The wall time from the end of one step to the end of the next."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, args, state, control, **kwargs) -> None:
        self.ends.append(time.perf_counter())


def median_step(ends: list[float]) -> float:
    """Return the median time between consecutive step ends, in seconds; the first ones warm up."""
    return statistics.median(b - a for a, b in zip(ends[10:], ends[11:], strict=False))


def mean_step(ends: list[float]) -> float:
    """Return the mean time between consecutive step ends, in seconds, so that rare work counts too."""
    return (ends[-1] - ends[10]) / (len(ends) - 11)


def ours(directory: Path, estimator: str) -> list[float]:
    """Train the seed experiment and return the moments its RL steps ended."""
    ends: list[float] = []

    def on_step(record: dict) -> None:
        if record["phase"] == "rl":
            ends.append(time.perf_counter())

    size = 8 if estimator == "rloo" else 0
    assay.train({"rl": {"estimator": estimator, "num_generations": size}}, directory, on_step=on_step)
    return ends


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of one token a character."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    vocabulary = {symbol: number for number, symbol in enumerate("0123456789+×=")}
    vocabulary |= {"<pad>": 13, "<eos>": 14}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", padding_side="left")


def build_model(directory: Path) -> str:
    """Save a model of the seed policy's size, so that TRL can load its reference from a path."""
    config = GPT2Config(
        vocab_size=15, n_positions=16, n_embd=16, n_layer=1, n_head=2, n_inner=32, tie_word_embeddings=False,
        attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=None, eos_token_id=14, pad_token_id=13,
    )  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(directory)
    tokenizer().save_pretrained(directory)
    return str(directory)


def theirs(model: str, directory: Path, beta: float) -> list[float]:
    """Train with RLOOTrainer and return the moments its steps ended."""
    from datasets import Dataset
    from trl import RLOOConfig, RLOOTrainer

    problems = draw_splits(29, train=20, test=20)["train"]

    def reward(prompts: list[str], completions: list[str], **columns: object) -> list[float]:
        return [
            1.0 if tuple(int(c) for c in completion if c.isdigit()) == Problem(prompt).answer() else 0.0
            for prompt, completion in zip(prompts, completions, strict=True)
        ]

    timer = StepTimer()
    settings = RLOOConfig(
        output_dir=str(directory), max_steps=STEPS, per_device_train_batch_size=40, num_generations=8,
        max_completion_length=2, beta=beta, learning_rate=0.0015, weight_decay=0.0, max_grad_norm=1.0,
        lr_scheduler_type="constant", optim="adamw_torch_fused", bf16=False, fp16=False, gradient_checkpointing=False,
        save_strategy="no", report_to="none", disable_tqdm=True, logging_steps=10**6, use_cpu=True,
        generation_kwargs={"min_new_tokens": 2, "suppress_tokens": [10, 11, 12, 13, 14]},
    )  # fmt: skip
    trainer = RLOOTrainer(
        model=model,
        args=settings,
        reward_funcs=reward,
        train_dataset=Dataset.from_dict({"prompt": [problem.prompt for problem in problems]}),
        callbacks=[timer],
        processing_class=tokenizer(),
    )
    trainer.train()
    return timer.ends


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = options.parse_args().rounds
    torch.set_num_threads(1)
    import transformers
    import trl

    transformers.logging.set_verbosity_error()
    results: dict[str, list[float]] = {}
    means: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        model = build_model(place / "model")
        sides = {
            "assay, sampled": lambda number: ours(place / f"sampled-{number}", "rloo"),
            "assay, exact": lambda number: ours(place / f"exact-{number}", "exact"),
            "TRL, beta 0.03": lambda number: theirs(model, place / f"trl-{number}", 0.03),
            "TRL, beta 0": lambda number: theirs(model, place / f"trl0-{number}", 0.0),
        }
        for number in range(rounds + 1):
            for name, side in sides.items():
                ends = side(number)
                if number:  # the first round warms up
                    results.setdefault(name, []).append(median_step(ends))
                    means.setdefault(name, []).append(mean_step(ends))
            print(f"round {number} of {rounds}", file=sys.stderr)
    base = results["assay, sampled"]
    print(f"trl {trl.__version__}, transformers {transformers.__version__}, torch {torch.__version__}, {rounds} rounds")
    print(f"{'':18}{'median step':>14}{'mean step':>12}{'times ours (median of rounds)':>32}")
    record = {}
    for name, times in results.items():
        ratio = statistics.median(other / own for other, own in zip(times, base, strict=True))
        record[name] = {"milliseconds": statistics.median(times) * 1e3, "ratio": ratio}
        mean = statistics.median(means[name]) * 1e3
        print(f"{name:18}{record[name]['milliseconds']:11.2f} ms{mean:9.2f} ms{ratio:32.2f}")
    print(json.dumps(record))


if __name__ == "__main__":
    main()
