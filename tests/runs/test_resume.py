"""A run stopped in any way, at any moment, comes out as if it had not been: the same bytes but for the clock."""

import json
import multiprocessing
import os
import random
import re
import shlex
import shutil
import signal
import time
from pathlib import Path

import pytest

import assay
from assay.cli import main
from assay.display import ProgressView
from assay.errors import AssayError, CheckpointError, EvidenceError, Interrupted, RunError
from assay.evidence.manifest import BOUND, MANIFEST
from assay.evidence.sums import NAME
from assay.evidence.verify import verify_files
from assay.runs import train as module
from assay.runs.directory import held, write
from assay.verdicts import Verdict

LONG = {
    "save_steps": 7,
    "warmup": {"steps": 50},
    "rl": {"steps": 100},
    "evaluation": {"samples": 50, "every": 20},
}
"""Long enough to be killed in the middle, with checkpoints that fall beside every round number."""

KILLS = {
    "in warm-up, twice": [2, 30],
    "right after the switch to RL": [51],
    "in warm-up and in RL": [33, 110],
    "at the last step": [150],
}
"""Recorded steps at which the process is killed, one after the other."""


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The run that every interrupted one must become."""
    return assay.train(LONG, tmp_path_factory.mktemp("uninterrupted") / "run").directory


@pytest.fixture(scope="module")
def recipe(uninterrupted):
    return uninterrupted / "config.toml"


@pytest.fixture(scope="module")
def command():
    """Return a function that starts ``assay ARGUMENTS`` in a process of its own that has imported it already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["assay.runs.train", "assay.display"])

    def start(*arguments):
        started = context.Process(target=main, args=([str(argument) for argument in arguments],))
        started.start()
        return started

    return start


def steps_of(run):
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for(condition, worker):
    """Wait until a condition holds or the worker has ended."""
    while not condition() and worker.exitcode is None:
        time.sleep(0.0005)


def kill(worker):
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()


def assert_same_run(run, uninterrupted):
    same = {name: (run / name).read_bytes() == (uninterrupted / name).read_bytes() for name in (*BOUND, MANIFEST)}
    assert all(same.values()), same
    assert [claim.verdict for claim in verify_files(run)] == [Verdict.HOLDS, Verdict.HOLDS]


@pytest.mark.parametrize("moments", KILLS.values(), ids=KILLS)
def test_a_killed_run_resumes_to_the_same_bytes(command, recipe, uninterrupted, tmp_path, moments):
    arguments = ("train", recipe, "--output", tmp_path / "run")
    for moment in moments:
        worker = command(*arguments)
        wait_for(lambda moment=moment: steps_of(tmp_path / "run") >= moment, worker)
        kill(worker)
        assert not (tmp_path / "run" / NAME).exists(), "it finished before it could be killed"
        arguments = ("train", "--resume", tmp_path / "run")
    assay.resume(tmp_path / "run")
    assert_same_run(tmp_path / "run", uninterrupted)


@pytest.mark.parametrize("repetition", range(2))
def test_a_run_killed_whenever_it_happens_resumes_to_the_same_bytes(
    command, recipe, uninterrupted, tmp_path, repetition
):
    delay = random.SystemRandom().uniform(0, 0.6)
    print(f"killed {delay:.6f} s after its first file")
    worker = command("train", recipe, "--output", tmp_path / "run")
    wait_for((tmp_path / "run" / "environment.json").exists, worker)
    time.sleep(delay)
    kill(worker)
    if not (tmp_path / "run" / NAME).exists():
        assay.resume(tmp_path / "run")
    assert_same_run(tmp_path / "run", uninterrupted)


@pytest.mark.parametrize("name", ["results.json", MANIFEST, "provenance.intoto.json", "report.html", NAME])
def test_a_run_killed_while_it_is_sealed_resumes_to_the_same_bytes(finished, small, tmp_path, monkeypatch, name):
    """Stopped right before a file takes its name, with the half-written neighbour left behind as a kill would."""

    def killed(path, data):
        if path.name == name:
            path.with_name(f".{name}.partial").write_bytes(data[: len(data) // 2])
            raise KeyboardInterrupt
        write(path, data)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "write", killed)
        assay.train(small, tmp_path / "run")
    assay.resume(tmp_path / "run")
    assert_same_run(tmp_path / "run", finished)


def command_to_resume(complaint, phase):
    """Return the arguments that a stopped run's one line says to continue with."""
    said = re.fullmatch(rf"assay: stopped after {phase} step \d+ of \d+; continue with: assay (.*)\n", complaint)
    assert said, complaint
    return shlex.split(said[1])


def test_an_interrupt_leaves_a_resumable_run_and_says_how(process, recipe, uninterrupted, tmp_path):
    run = tmp_path / "run"
    worker = process("-m", "assay", "train", recipe, "--output", run)
    while steps_of(run) < 80 and worker.poll() is None:
        time.sleep(0.0005)
    worker.send_signal(signal.SIGINT)
    complaint = worker.communicate()[1]
    assert worker.returncode == 2
    assert main(command_to_resume(complaint, "rl")) == 0
    assert_same_run(run, uninterrupted)
    assert assay.verify(run).holds


def test_a_request_to_terminate_leaves_a_resumable_run_and_says_how(
    recipe, uninterrupted, tmp_path, monkeypatch, capsys
):
    def terminate(view, record):
        if record["step"] == 10:
            os.kill(os.getpid(), signal.SIGTERM)

    run = tmp_path / "my run"
    with monkeypatch.context() as patch:
        patch.setattr(ProgressView, "on_step", terminate)
        assert main(["train", str(recipe), "--output", str(run)]) == 2
    assert steps_of(run) == 10
    assert main(command_to_resume(capsys.readouterr().err, "warmup")) == 0
    assert_same_run(run, uninterrupted)


@pytest.mark.parametrize("step", [20, 21, 32])
def test_a_stop_asked_for_after_any_step_resumes_to_the_same_bytes(finished, small, tmp_path, step):
    """At the end of warm-up, at the start of RL, and at its very end."""
    with pytest.raises(Interrupted, match="stopped after"):
        assay.train(small, tmp_path / "run", stopping=lambda: steps_of(tmp_path / "run") == step)
    assert steps_of(tmp_path / "run") == step
    assay.resume(tmp_path / "run")
    assert_same_run(tmp_path / "run", finished)


@pytest.fixture
def unfinished(small, tmp_path):
    """A run stopped in RL, one step after a checkpoint."""
    run = tmp_path / "unfinished"
    with pytest.raises(Interrupted):
        assay.train(small, run, stopping=lambda: steps_of(run) == 26)
    return run


def test_a_run_that_another_process_works_on_is_refused(command, recipe, tmp_path, capsys):
    run = tmp_path / "run"
    worker = command("train", recipe, "--output", run)
    wait_for(lambda: steps_of(run) > 0, worker)
    refused = main(["train", "--resume", str(run)]), capsys.readouterr().err
    taken = main(["train", str(recipe), "--output", str(run)]), capsys.readouterr().err
    still_running = worker.exitcode is None
    kill(worker)
    assert still_running
    assert refused == (
        2,
        f"assay: {run}: another process is working on this run; wait for it, or choose a new --output\n",
    )
    assert taken[0] == 2
    assert taken[1].startswith(f"assay: {run}: exists already")


def test_a_refused_second_process_changes_nothing(unfinished, content):
    before = content(unfinished)
    with held(unfinished), pytest.raises(RunError, match="another process"):
        assay.resume(unfinished)
    assert content(unfinished) == before


def test_a_finished_run_is_not_continued(run, content):
    before = content(run)
    with pytest.raises(RunError, match=f"this run has finished; verify it with: assay verify {run}"):
        assay.resume(run)
    assert content(run) == before


def test_a_run_does_not_go_on_under_another_source_or_machine(unfinished, content):
    path = unfinished / "environment.json"
    environment = json.loads(path.read_text())
    path.write_text(json.dumps(environment | {"source": "0" * 64, "cpu_capability": "abacus"}))
    before = content(unfinished)
    with pytest.raises(RunError, match=r"cpu_capability was abacus, is .*; source was 0{16}\.\.\., is .*; go back"):
        assay.resume(unfinished)
    assert content(unfinished) == before


@pytest.mark.parametrize("name", ["config.toml", "data.json", "environment.json", "checkpoint.pt", "metrics.jsonl"])
@pytest.mark.parametrize("harm", [lambda data: b"", lambda data: b"\xff" * 200, lambda data: data[: len(data) // 2]])
def test_a_damaged_run_is_refused_by_the_file_that_is_damaged(unfinished, name, harm):
    (unfinished / name).write_bytes(harm((unfinished / name).read_bytes()))
    with pytest.raises(AssayError, match=re.escape(name)):
        assay.resume(unfinished)


def test_a_damaged_clock_is_found_before_training_goes_on(unfinished):
    (unfinished / "timing.jsonl").write_text("noon\n")
    with pytest.raises(EvidenceError, match="timing.jsonl: line 1 is not JSON"):
        assay.resume(unfinished, on_step=lambda record: pytest.fail("it went on"))


@pytest.mark.parametrize("name", ["config.toml", "data.json", "environment.json"])
def test_a_missing_file_is_named(unfinished, name):
    (unfinished / name).unlink()
    with pytest.raises(RunError, match=name):
        assay.resume(unfinished)


def test_a_flipped_byte_of_a_tensor_is_not_trained_on(unfinished):
    """A checkpoint has no sums beside it before the run is sealed; the archive's own are what protects it."""
    path = unfinished / "checkpoint.pt"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 64
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="checkpoint.pt"):
        assay.resume(unfinished)


def test_a_history_that_was_changed_is_not_continued(unfinished):
    path = unfinished / "metrics.jsonl"
    path.write_text(path.read_text().replace('"step": 3,', '"step": 4,', 1))
    with pytest.raises(EvidenceError, match="metrics.jsonl: not the planned steps in order.*start a new run"):
        assay.resume(unfinished)


def test_a_history_shorter_than_the_checkpoint_is_not_continued(unfinished):
    path = unfinished / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(RunError, match="metrics.jsonl: holds 25 whole lines where the checkpoint follows 26"):
        assay.resume(unfinished)


def test_a_copy_of_an_unfinished_run_goes_on_elsewhere(unfinished, finished, tmp_path):
    moved = Path(shutil.move(unfinished, tmp_path / "moved"))
    assay.resume(moved)
    assert_same_run(moved, finished)
