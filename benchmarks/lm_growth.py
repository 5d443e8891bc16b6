"""How the cost of a language model's RL step grows with prompt, group, response and vocabulary, one at a time.

    make growth-lm                    (writes docs/language-cost.json, which the docs draw; about ten minutes)

The model and the step are those of ``benchmarks/lm_step.py``, with two prompts a step, and a token budget of one group,
so that the update reads one group at a time. Each measurement is a process of its own, on one thread. Its time is the
quicker of two steps, since other work on the machine only adds. Memory is the peak above what the process held once the
model was built.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import lm_step
import torch

BASE = {"prompt": 256, "group": 8, "response": 64, "vocabulary": 32_000}
AXES = {
    "prompt": (64, 256, 512, 1024, 2048),
    "group": (2, 4, 8, 16, 32),
    "response": (16, 32, 64, 128, 256),
    "vocabulary": (8_000, 16_000, 32_000, 64_000, 128_000),
}
PROMPTS = 2
OUTPUT = Path(__file__).parents[1] / "docs" / "language-cost.json"


def measure(setting: dict[str, int]) -> dict[str, float]:
    """Take three steps under one setting, and return the time of the quicker of the last two, and the peak memory."""
    lm_step.PROMPTS, lm_step.SIZE, lm_step.LENGTH = PROMPTS, setting["group"], setting["response"]
    lm_step.VOCABULARY = setting["vocabulary"]
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        lm_step.build(Path(place))
        budget = lm_step.group_tokens(setting["prompt"])
        made = lm_step.ours(Path(place), setting["prompt"], budget, profile=False)
    seconds, number = min((seconds, number) for number, seconds in enumerate(made["times"]))
    return {"seconds": seconds, "megabytes": made["memory"], **made["parts"][number]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--axis", choices=list(AXES), help="measure this one again, and keep the others")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(json.loads(options.one))))
        return
    found: dict[str, list[dict[str, Any]]] = json.loads(OUTPUT.read_text())["axes"] if options.axis else {}
    for axis in [options.axis] if options.axis else AXES:
        found[axis] = []
        for value in AXES[axis]:
            command = [sys.executable, __file__, "--one", json.dumps({**BASE, axis: value})]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
            found[axis].append({"value": value, **json.loads(done.stdout.splitlines()[-1])})
            print(axis, value, found[axis][-1], file=sys.stderr)
    OUTPUT.write_text(json.dumps({"base": BASE, "prompts": PROMPTS, "axes": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
