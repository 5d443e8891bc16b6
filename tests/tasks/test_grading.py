"""Graders that hang, hoard, crash and print: each costs its own response and nothing else."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from assay.errors import ConfigError, InputError
from assay.tasks.grading import WorkerGrader
from assay.types import Grader, Outcome, Response, TextProblem

RIGHT, WRONG = Outcome(1.0, "right"), Outcome(0.0, "wrong")
TIMEOUT, ERROR = Outcome(None, "timeout"), Outcome(None, "error")
HARM = {
    "spin": TIMEOUT,
    "sleep": TIMEOUT,
    "stuck in C": TIMEOUT,
    "allocate": ERROR,
    "allocate at once": ERROR,
    "_exit": ERROR,
    "exit": ERROR,
    "segfault": ERROR,
    "raise": ERROR,
    "close": ERROR,
    "ask": ERROR,
    "print": WRONG,
}
FATAL = {"spin", "sleep", "stuck in C", "allocate", "allocate at once", "_exit", "segfault", "close"}


def problems(count):
    return [TextProblem(100 + number, f"prompt {number}", "good") for number in range(count)]


def responses(*texts):
    return [Response((1, 2), text) for text in texts]


def grade(grader, *texts):
    return grader(problems(len(texts)), responses(*texts))


def gone(pid, seconds=5.0):
    """Wait until a process has ended; a zombie has."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if re.search(r"^State:\s+Z", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE):
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def test_each_harm_costs_its_own_response_and_the_others_keep_order_and_score():
    texts = [text for harm in HARM for text in ("good", harm, "bad")]
    with WorkerGrader("hostile_rewards:compute_score", timeout=0.4, memory=100) as grader:
        assert isinstance(grader, Grader)
        outcomes = grade(grader, *texts)
        assert dict(zip(texts, outcomes, strict=True)) == {"good": RIGHT, "bad": WRONG, **HARM}
        assert outcomes[0::3] == [RIGHT] * len(HARM) and outcomes[2::3] == [WRONG] * len(HARM)
        assert grader.counts == {
            "graded": len(texts),
            "timeout": list(HARM.values()).count(TIMEOUT),
            "error": list(HARM.values()).count(ERROR),
            "restarts": len(FATAL),
            "fallbacks": 0,
        }
        said = " ".join(grader.notes)
        assert "problem 101: no answer within 0.4 s" in said
        assert "100 MiB" in said and "SIGSEGV" in said and "KeyError: 'no such thing'" in said and "exit code 0" in said


def test_a_batch_function_gets_the_batch_and_each_row_alone_only_where_that_fails():
    with WorkerGrader("hostile_rewards:rewards", timeout=0.2) as grader:
        assert grade(grader, "good", "bad", "good") == [RIGHT, WRONG, RIGHT]
        assert grader.counts["fallbacks"] == 0 and not grader.notes
        for harm in ("raise", "_exit", "spin"):
            assert grade(grader, "good", harm, "bad", "good") == [RIGHT, HARM[harm], WRONG, RIGHT]
        assert grader.counts["fallbacks"] == 3
        assert "batch of 4 was graded one by one" in grader.notes[0] and "KeyError" in grader.notes[0]
        assert grader.counts["timeout"] == 1 and grader.counts["error"] == 2 and grader.counts["restarts"] == 4


@pytest.mark.parametrize("reward", ["slow", "slow_batch"])
def test_the_time_limit_is_a_response_not_a_batch(reward):
    """Four responses of 0.2 s are 0.8 s, within 4 x 0.5 s and beyond 0.5 s."""
    with WorkerGrader(f"hostile_rewards:{reward}", timeout=0.5) as grader:
        assert grade(grader, *["x"] * 4) == [RIGHT] * 4
        assert grader.counts["restarts"] == 0


def test_a_trivial_grader_takes_less_than_a_millisecond_a_response_and_loads_once():
    count = 2000
    with WorkerGrader("exact") as grader:
        rows = [TextProblem(number, "p" * 500, str(number)) for number in range(count)]
        said = [Response(tuple(range(64)), str(number + number % 2)) for number in range(count)]
        begun = time.perf_counter()
        outcomes = grader(rows, said)
        assert (time.perf_counter() - begun) / count < 1e-3
        assert outcomes == [WRONG if number % 2 else RIGHT for number in range(count)]
    with WorkerGrader("hostile_rewards:when_loaded") as grader:
        assert len({outcome.score for _ in range(3) for outcome in grade(grader, "a", "b")}) == 1


def test_the_process_imports_no_torch_unless_the_grader_does():
    with WorkerGrader("hostile_rewards:torch_is_loaded") as grader:
        assert grade(grader, "x") == [WRONG]


def test_it_is_a_process_of_its_own_and_closing_ends_it():
    with WorkerGrader("hostile_rewards:process_id") as grader:
        pid = int(grade(grader, "x")[0].score)
        assert pid != os.getpid()
        os.kill(pid, 0)
    assert gone(pid)
    with pytest.raises(InputError, match="closed"):
        grade(grader, "x")


def test_a_process_that_died_while_idle_is_replaced_and_costs_no_response():
    with WorkerGrader("hostile_rewards:process_id") as grader:
        pid = int(grade(grader, "x")[0].score)
        os.kill(pid, signal.SIGKILL)
        assert gone(pid)
        outcomes = grade(grader, "x", "y")
        assert [outcome.status for outcome in outcomes] == ["right", "right"] and outcomes[0].score != pid
        assert grader.counts["restarts"] == 1


def test_answers_to_a_call_that_was_interrupted_are_not_taken_for_the_next_ones():
    def interrupt(signum, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with WorkerGrader("hostile_rewards:slow_length") as grader:
            signal.setitimer(signal.ITIMER_REAL, 0.15)
            with pytest.raises(KeyboardInterrupt):
                grade(grader, "a", "bb", "ccc")
            time.sleep(0.3)
            assert [outcome.score for outcome in grade(grader, "dddd", "eeeee")] == [4, 5]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_killing_a_grader_kills_what_it_started(tmp_path, monkeypatch):
    monkeypatch.setenv("CHILD_PID", str(tmp_path / "pid"))
    with WorkerGrader("hostile_rewards:compute_score", timeout=0.4) as grader:
        assert grade(grader, "start a child") == [TIMEOUT]
        assert gone(int((tmp_path / "pid").read_text()))


def test_the_process_dies_with_its_parent_even_by_kill_9():
    """The parent is killed while its graders hang, one of them without ever letting Python run again."""
    harms = ["spin", "sleep", "stuck in C"]
    script = f"""
import sys; sys.path[:] = {sys.path!r}
from threading import Thread
from assay.tasks.grading import WorkerGrader
from assay.types import Response, TextProblem
for harm in {harms!r}:
    grader = WorkerGrader("hostile_rewards:compute_score", timeout=100)
    print(grader._process._process.pid, flush=True)
    Thread(target=grader, args=([TextProblem(0, "p")], [Response((), harm)])).start()
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        pids = [int(parent.stdout.readline()) for _ in harms]
        time.sleep(0.2)
        assert not any(gone(pid, 0.1) for pid in pids)
        parent.kill()
        parent.wait()
        assert all(gone(pid) for pid in pids)


def test_the_callers_alarm_survives_math_verify():
    """Math-Verify's own time limit sets and cancels SIGALRM; ours leaves the caller's alone."""
    signal.alarm(1000)
    try:
        with WorkerGrader("maths", timeout=0.5) as grader:
            rows = [TextProblem(0, "p", "3"), TextProblem(1, "p", "3"), TextProblem(2, "p", "4")]
            said = responses("$9^{9^{9^{9}}}$", "$3$", "$3$")
            assert grader(rows, said) == [TIMEOUT, RIGHT, WRONG]
    finally:
        assert signal.alarm(0) > 900


def test_nothing_printed_reaches_the_terminal(capfd):
    with WorkerGrader("hostile_rewards:compute_score") as grader:
        assert grade(grader, "print", "good") == [WRONG, RIGHT]
    assert capfd.readouterr() == ("", "")


def test_texts_hash_alike_in_every_process():
    scores = set()
    for _ in range(4):
        with WorkerGrader("hostile_rewards:walk_a_set") as grader:
            scores.add(grade(grader, "x")[0].score)
    assert len(scores) == 1


def test_long_responses_and_many_columns_pass_whole():
    """More than a pipe holds, in one response."""
    text = "x" * 10**6
    with WorkerGrader("hostile_rewards:swallow") as grader:
        rows = [TextProblem(0, "p", None, {"note": text})] * 3
        assert [outcome.score for outcome in grader(rows, responses(text, "", text[:7]))] == [10**6, 0, 7]


def test_no_response_is_no_work():
    with WorkerGrader("exact") as grader:
        assert grader([], []) == []


def test_rows_must_match_and_columns_must_travel():
    with WorkerGrader("exact") as grader:
        with pytest.raises(InputError, match="2 problems for 1 responses"):
            grader(problems(2), responses("a"))
        with pytest.raises(InputError, match="cannot be handed"):
            grader([TextProblem(0, "p", "a", {"bad": lambda: 0})], responses("a"))
        assert grade(grader, "good") == [RIGHT]


def test_functions_are_named_by_themselves_where_another_process_can_import_them():
    import hostile_rewards

    with WorkerGrader(hostile_rewards.compute_score) as grader:
        assert grader.reward == "hostile_rewards:compute_score" and grade(grader, "good") == [RIGHT]
    with pytest.raises(ConfigError, match="top level of a module"):
        WorkerGrader(lambda solution_str: 1.0)


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        ("exakt", "did you mean 'exact'"),
        ("no_such_module:f", "cannot import no_such_module"),
        ("hostile_rewards:reward", "did you mean hostile_rewards:rewards"),
        ("hostile_rewards:not_a_function", "no function not_a_function"),
        ("hostile_rewards:obey", "set grading.convention to trl or verl"),
        ("hostile_rewards:", "expected package.module:function"),
    ],
)
def test_a_grader_that_cannot_be_loaded_is_refused_at_once(reward, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        WorkerGrader(reward)


@pytest.mark.parametrize(
    "limits", [{"timeout": 0.0}, {"timeout": float("nan")}, {"timeout": float("inf")}, {"memory": 0}]
)
def test_limits_must_limit(limits):
    with pytest.raises(ConfigError, match=f"grading.{next(iter(limits))}"):
        WorkerGrader("exact", **limits)


def test_a_module_that_kills_the_process_when_imported_is_refused(tmp_path, monkeypatch):
    (tmp_path / "deadly_reward.py").write_text("import os\nos._exit(3)\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="ended its process with exit code 3"):
        WorkerGrader("deadly_reward:f")


def test_rewards_come_from_the_working_directory_and_its_names_hide_no_library(tmp_path, monkeypatch):
    (tmp_path / "here_reward.py").write_text("def score(solution_str, ground_truth): return 1.0\n")
    for library in ("json", "pickle"):
        (tmp_path / f"{library}.py").write_text("raise RuntimeError('not the library')\n")
    monkeypatch.chdir(tmp_path)
    with WorkerGrader("here_reward:score") as grader:
        assert grade(grader, "x") == [RIGHT]
