"""Reward functions that the grading process imports: what they do is what the response says."""

import ctypes
import os
import re
import subprocess
import sys
import time

LOADED = time.monotonic()


def obey(text):
    """Return the score of a response that is no command; a command does harm."""
    if text == "spin":
        while True:
            pass
    if text == "sleep":
        time.sleep(1000)
    if text == "stuck in C":
        re.match(r"(a+)+$", "a" * 60 + "b")
    if text == "allocate":
        hoard = []
        while True:
            hoard.append(bytearray(10 * 2**20))
    if text == "allocate at once":
        bytearray(2**40)
    if text == "_exit":
        os._exit(0)
    if text == "exit":
        sys.exit(0)
    if text == "segfault":
        ctypes.string_at(0)
    if text == "raise":
        raise KeyError("no such thing")
    if text == "close":
        os.closerange(3, 100)
    if text == "ask":
        input()
    if text == "print":
        print('["marks", [[1.0, "right"]]]', flush=True)
        os.write(1, b'["marks", [[1.0, "right"]]]\n')
        os.write(2, b"noise")
    if text == "start a child":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        with open(os.environ["CHILD_PID"], "w") as file:
            file.write(str(child.pid))
        while True:
            pass
    return 1.0 if text == "good" else 0.0


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return obey(solution_str)


def rewards(completions, **kwargs):
    return [obey(text) for text in completions]


def slow(solution_str, ground_truth):
    time.sleep(0.2)
    return 1.0


def slow_batch(completions, **kwargs):
    time.sleep(0.2 * len(completions))
    return [1.0] * len(completions)


def slow_length(solution_str, ground_truth):
    time.sleep(0.1)
    return len(solution_str)


def when_loaded(solution_str, ground_truth):
    return LOADED


def process_id(solution_str, ground_truth):
    return os.getpid()


def torch_is_loaded(solution_str, ground_truth):
    return float("torch" in sys.modules)


def swallow(solution_str, ground_truth):
    return len(solution_str)


def returned(completions, value, **kwargs):
    """Return what the rows say."""
    return value


def one_short(completions, **kwargs):
    return [1.0] * (len(completions) - 1)


def bare(completions, **kwargs):
    return 1.0


def verl_returned(data_source, solution_str, ground_truth, extra_info=None):
    return extra_info["value"]


def walk_a_set(solution_str, ground_truth):
    return float(list({"alpha", "beta", "gamma", "delta"}).index("alpha"))


not_a_function = 3
