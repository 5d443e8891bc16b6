"""Mirrors against stand-ins with the signatures of trackio 0.43, wandb 0.31 and the two TensorBoard writers.

A stand-in is a module file on the import path that writes down each call it accepts; a call that the real package would
refuse raises TypeError here too.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from assay.errors import ConfigError
from assay.runs.language.mirrors import open_mirrors, scalars

RECORDER = """
import json
calls = []
def note(name, *values):
    calls.append(json.loads(json.dumps([name, *values])))
"""
TRACKIO = RECORDER + (
    """
def init(project: str, name=None, group=None, space_id=None, server_url=None, dataset_id=None, bucket_id=None,
         config=None, resume="never", settings=None, private=None, embed=True, auto_log_gpu=None, gpu_log_interval=10.0,
         auto_log_cpu=None, cpu_log_interval=10.0, webhook_url=None, webhook_min_level=None):
    note("init", project, name, config, resume)
def log(metrics: dict, step=None):
    assert "step" not in metrics, "a reserved key"
    note("log", metrics, step)
def finish():
    note("finish")
"""
)
WANDB = RECORDER + (
    """
class Run:
    def log(self, data, step=None, commit=None):
        note("log", data, step)
    def finish(self, exit_code=None):
        note("finish")
def init(entity=None, project=None, dir=None, id=None, name=None, notes=None, tags=None, config=None,
         config_exclude_keys=None, config_include_keys=None, allow_val_change=None, group=None, job_type=None,
         mode=None, force=None, reinit=None, resume=None, resume_from=None, fork_from=None, save_code=None,
         tensorboard=None, sync_tensorboard=None, monitor_gym=None, settings=None, anonymous=None):
    note("init", project, name, config)
    return Run()
"""
)
TENSORBOARD_X = RECORDER + (
    """
class SummaryWriter:
    def __init__(self, logdir=None, comment="", purge_step=None, max_queue=10, flush_secs=120, filename_suffix="",
                 write_to_disk=True, log_dir=None, comet_config=None):
        note("init", logdir)
    def add_scalar(self, tag, scalar_value, global_step=None, walltime=None, display_name="", summary_description=""):
        note("log", {tag: scalar_value}, global_step)
    def flush(self):
        pass
    def close(self):
        note("finish")
"""
)
RECORD = {
    "phase": "rl",
    "step": 4,
    "reward": 0.25,
    "kl": float("nan"),
    "entropy": float("inf"),
    "grad_norm": None,
    "stepped": True,
    "problems": [3, 9],
    "outcomes": {"right": 2, "wrong": 6, "deep": {"er": 1}},
    "sampling/importance_sampling_ratio/mean": 1.5,
}
NUMBERS = {
    "reward": 0.25,
    "stepped": 1.0,
    "outcomes/right": 2.0,
    "outcomes/wrong": 6.0,
    "outcomes/deep/er": 1.0,
    "sampling/importance_sampling_ratio/mean": 1.5,
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty directory that is first on the import path, with no tracker imported yet and no tensorboard."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("trackio", "wandb", "tensorboardX", "torch.utils.tensorboard"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    return tmp_path


def install(place: Path, name: str, source: str) -> None:
    (place / f"{name}.py").write_text(source)


def calls(name: str) -> list[list[Any]]:
    return sys.modules[name].calls


def test_a_record_becomes_its_finite_numbers():
    expected = {"step": 4.0, **NUMBERS}
    assert scalars(RECORD) == expected
    assert all(type(value) is float for value in scalars(RECORD).values())


@pytest.mark.parametrize(("name", "source"), [("trackio", TRACKIO), ("wandb", WANDB)])
def test_a_tracker_gets_settings_numbers_and_an_end(place, name, source):
    install(place, name, source)
    mirrors = open_mirrors([name], "assay", "add", {"seed": 29})
    mirrors(RECORD, 14)
    mirrors.close()
    mirrors.close()
    first, *rest = calls(name)
    assert first[:4] == ["init", "assay", "add", {"seed": 29}]
    assert rest == [["log", NUMBERS, 14], ["finish"]]
    assert not mirrors.failures


def test_tensorboard_gets_one_scalar_a_name(place):
    install(place, "tensorboardX", TENSORBOARD_X)
    mirrors = open_mirrors(["tensorboard"], "assay", "add", {})
    mirrors(RECORD, 14)
    mirrors.close()
    first, *rest = calls("tensorboardX")
    assert first == ["init", "tensorboard/assay/add"]
    assert rest == [*(["log", {name: value}, 14] for name, value in NUMBERS.items()), ["finish"]]


@pytest.mark.parametrize("broken", ["init", "log", "finish"])
def test_a_tracker_that_fails_stops_nothing_and_is_told_once(place, capsys, broken):
    install(place, "wandb", WANDB.replace(f'note("{broken}"', f'raise OSError("no\\nroute") or note("{broken}"'))
    install(place, "trackio", TRACKIO)
    mirrors = open_mirrors(["wandb", "trackio"], "assay", "add", {})
    for step in range(3):
        mirrors(RECORD, step)
    mirrors.close()
    assert mirrors.failures == {"wandb": {"init": 1, "log": 3, "finish": 1}[broken]}
    assert [call[-1] for call in calls("trackio") if call[0] == "log"] == [0, 1, 2]
    assert capsys.readouterr().err == (
        "wandb: OSError: no\\nroute; the run goes on, and metrics.jsonl has every step\n"
    )


def test_a_tracker_cannot_change_the_record_or_what_the_next_one_sees(place):
    spoiling = 'note("log", data, step); data.clear()'
    install(place, "wandb", WANDB.replace('note("log", data, step)', spoiling))
    install(place, "trackio", TRACKIO)
    mirrors = open_mirrors(["wandb", "trackio"], "assay", "add", {})
    before = json.dumps(RECORD)
    mirrors(RECORD, 0)
    assert json.dumps(RECORD) == before
    assert calls("trackio")[-1] == ["log", NUMBERS, 0]


def test_an_interrupt_is_no_failure_of_the_tracker(place):
    install(place, "trackio", TRACKIO.replace('note("log", metrics, step)', "raise KeyboardInterrupt"))
    mirrors = open_mirrors(["trackio"], "assay", "add", {})
    with pytest.raises(KeyboardInterrupt):
        mirrors(RECORD, 0)


@pytest.mark.parametrize("name", ["trackio", "tensorboard", "wandb"])
def test_an_absent_package_is_told_before_any_other_has_started(place, monkeypatch, name):
    install(place, "trackio" if name == "wandb" else "wandb", TRACKIO if name == "wandb" else WANDB)
    for absent in (name, "tensorboardX"):
        monkeypatch.setitem(sys.modules, absent, None)
    other = "trackio" if name == "wandb" else "wandb"
    with pytest.raises(ConfigError, match=rf"'{name}': not installed .*pip install 'assay\[tracking\]'"):
        open_mirrors([other, name], "assay", "add", {})
    assert calls(other) == []


def test_an_unknown_name_is_refused_and_a_doubled_one_started_once(place):
    with pytest.raises(ConfigError, match="'comet': no such tracker; choose from trackio, tensorboard, wandb"):
        open_mirrors(["comet"], "assay", "add", {})
    install(place, "trackio", TRACKIO)
    open_mirrors(["trackio", "trackio"], "assay", "add", {})
    assert len(calls("trackio")) == 1
