"""The model card of a trained policy: what was trained on what, what it scored, and what the numbers do not show."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from assay.evidence.files import printable
from assay.runs.language.export import Base

Record = dict[str, Any]
POINTS = {"base": "base model", "warmup": "after supervised warm-up", "rl": "after reinforcement learning"}
GAINS = {"warmup": "warm-up", "rl": "reinforcement learning", "total": "both together"}
_HUB = re.compile(r"(?!\.)[A-Za-z0-9._-]+/(?!\.)[A-Za-z0-9._-]+")
_SPECIAL = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~&$^:@/])")


def model_card(config: Record, data: Record, results: Record, *, base: Base, license: str | None = None) -> str:
    """Return the text of a model's ``README.md``: front matter that the Hugging Face Hub reads, then Markdown.

    Nothing that a model wrote is in it, and text from settings is escaped. It holds no clock.

    Args:
        config: every setting of the run, as in ``config.toml``.
        data: ``data.json``.
        results: ``results.json``.
        base: what training began with.
        license: of the base model, where it is known; none is made up.
    """
    parts = [
        _front_matter(config, results, base, license),
        f"# {escape(_name(config, base))}",
        _what(config, results, base),
        "## Results",
        _results(results),
        "## What these numbers do not show",
        _limits(config, data, results),
        "## Use",
        _use(config, base),
        "## Check",
        _check(results),
        "## License",
        escape(license) if license else "None is recorded. The terms of the base model and of the data apply.",
    ]
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Return text as one line of Markdown that reads as it is written: no markup, no link, no HTML."""
    return _SPECIAL.sub(r"\\\1", printable(text)).replace(r"\&", "&amp;").replace(r"\<", "&lt;")


def _name(config: Record, base: Base) -> str:
    stem = re.split(r"[/:]", base.name.rstrip("/"))[-1] or "model"
    return f"{stem}-{config['rl']['algorithm']}"


def _front_matter(config: Record, results: Record, base: Base, license: str | None) -> str:
    """Return YAML; each value is written as JSON, which YAML contains."""
    adapted = config["lora"] > 0
    entries: Record = {
        "library_name": "peft" if adapted else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["assay", "reinforcement-learning", "rlvr", config["rl"]["algorithm"]],
    }
    if _HUB.fullmatch(base.name):
        entries |= {"base_model": base.name, "base_model_relation": "adapter" if adapted else "finetune"}
    if license:
        entries["license"] = license
    entries["model-index"] = [{"name": _name(config, base), "results": [_index_entry(config, results)]}]
    lines = (f"{name}: {printable(json.dumps(value, ensure_ascii=False))}" for name, value in entries.items())
    return "\n".join(["---", *lines, "---"])


def _index_entry(config: Record, results: Record) -> Record:
    record = list(results["points"].values())[-1]["test"]
    rates = [
        {"type": "accuracy", "name": f"{kind} success on held-out problems", "value": record[kind]["rate"]}
        for kind in ("sampled", "greedy")
        if record[kind]
    ]
    return {
        "task": {"type": "text-generation"},
        "dataset": {"name": config["data"], "type": config["data"], "split": "test"},
        "metrics": rates,
    }


def _what(config: Record, results: Record, base: Base) -> str:
    rl, steps = config["rl"], config["warmup"]["steps"]
    kind = f"A LoRA adapter of rank {config['lora']} on" if config["lora"] else "All weights of"
    warmup = f", after {steps} supervised steps" if steps else ""
    algorithm, seen = escape(rl["algorithm"]), f"{rl['problems_per_step']} problems x {rl['num_generations']} responses"
    source = f"Problems: {escape(config['data'])}; reward: {escape(config['reward'])}."
    return (
        f"{kind} {escape(base.name)} (weights {base.digest[:16]}...), trained with {algorithm} for {rl['steps']} steps "
        f"of {seen}{warmup}. {source}\n\n{escape(results['plan']['estimand'])}"
    )


def _results(results: Record) -> str:
    heads = ["", "sampled success", "greedy success", "in format", "cut off", "no score"]
    parts = []
    for split, title in (("test", "Held-out problems"), ("train", "Training problems")):
        points = {POINTS[name]: point[split] for name, point in results["points"].items()}
        if split == "test":
            points |= {f"control: {name}": control["test"] for name, control in results.get("controls", {}).items()}
        count = len(next(iter(points.values()))["per_problem"])
        rows = [[escape(name), *_cells(record)] for name, record in points.items()]
        parts.append(f"{title} ({count}, the same at every point):\n\n{_table(heads, rows)}")
    rows = [
        [split, GAINS[name], escape(gain["words"])]
        for split in ("test", "train")
        for name, gain in results["gains"][split].items()
        if gain
    ]
    rows += [["test", f"over the control {escape(name)}", escape(control["comparison"]["words"])]
             for name, control in results.get("controls", {}).items()]  # fmt: skip
    parts.append(f"Differences, paired by problem, with 95% intervals:\n\n{_table(['split', 'of', 'change'], rows)}")
    if share := results.get("format"):
        parts.append(f"What part of the gain is format: {escape(share['words'])}")
    return "\n\n".join(parts)


def _cells(record: Record) -> list[str]:
    sampled, greedy = record["sampled"], record["greedy"]
    shares = [_percent((sampled or greedy)[f"{name}_share"]) for name in ("in_format", "truncated", "unscorable")]
    return [_rate(sampled, "interval"), _rate(greedy, "wilson"), *shares]


def _rate(record: Record | None, interval: str) -> str:
    if record is None:
        return "not measured"
    low, high = record[interval]
    return f"{_percent(record['rate'])} ({_percent(low)} to {_percent(high)})"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _table(heads: list[str], rows: Iterable[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _limits(config: Record, data: Record, results: Record) -> str:
    shared = data["overlap"]["prompts"]
    limits = [
        "Intervals take the problems as a sample of their kind. One training seed was run; what another would have "
        "given is not in them.",
        "A rate on training problems is of problems that were trained on.",
        f"{shared} held-out prompts are training prompts too. Whether the base model met any of them is not known.",
        "Nothing but this task was measured: what was lost elsewhere does not show.",
    ]
    if not results.get("controls"):
        limits.append(
            "No matched control was trained, so the numbers do not say whether another reward, or the same time spent "
            "on supervised training, would have done as much."
        )
    if config["warmup"]["steps"]:
        limits.append("The gain over the base model includes the warm-up; the gain of reinforcement learning does not.")
    return "\n".join(f"- {limit}" for limit in limits)


def _use(config: Record, base: Base) -> str:
    lines = ["from transformers import AutoModelForCausalLM, AutoTokenizer", ""]
    if config["lora"]:
        lines[0:0] = ["from peft import PeftModel"]
        name = json.dumps(base.name) if _HUB.fullmatch(base.name) else '"BASE"'
        lines.append(f'model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained({name}), "model")')
    else:
        lines.append('model = AutoModelForCausalLM.from_pretrained("model")')
    lines.append('tokenizer = AutoTokenizer.from_pretrained("model")')
    return "\n".join(["```python", *lines, "```"])


def _check(results: Record) -> str:
    spent = results["spent"]
    return (
        f"{spent['training_trajectories']} responses were drawn in training; {spent['zero_signal_groups']} groups had "
        "no signal. This directory belongs to a run that holds every setting, step, sample and digest. In the run's "
        "directory, `assay verify .` checks that its files are those that were sealed and that these numbers follow "
        "from its samples; `python -m assay.evidence .` does so with the standard library alone. Nothing is signed."
    )
