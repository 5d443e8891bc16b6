"""Start-up: `assay --help`, and `python run.py train` from start to report, as whole processes.

.venv/bin/python benchmarks/startup.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
RUNS = 9


def seconds(command: list[str]) -> float:
    """Return the wall time of a command that must succeed."""
    began = time.perf_counter()
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    python = sys.executable
    with tempfile.TemporaryDirectory() as temporary:
        commands = {
            "python -c 'import torch'": lambda n: [python, "-c", "import torch"],
            "assay --help": lambda n: [python, "-m", "assay", "--help"],
            "python run.py train": lambda n: [python, "run.py", "train", "--output", f"{temporary}/run-{n}"],
        }
        times = {name: [] for name in commands}
        for number in range(RUNS + 1):
            for name, command in commands.items():
                taken = seconds(command(number))
                if number:
                    times[name].append(taken)
    for name, taken in times.items():
        print(f"{name:28}{statistics.median(taken):6.2f} s   ({min(taken):.2f} to {max(taken):.2f})")


if __name__ == "__main__":
    main()
