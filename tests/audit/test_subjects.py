"""``assay audit package.module:function``, as a user in a directory of their own runs it."""

import json
import sys

import pytest

from assay.audit.subjects import available, find, load
from assay.cli import main
from assay.errors import ConfigError, InputError
from assay.tree.saved import world_record
from assay.tree.worlds import small_world

MODULE = """
import math

import torch

NUMBER = 3


def rloo(logp, adv, mask):
    return -(adv * torch.where(mask > 0, logp, 0.0).sum(1)).mean()


def wrong_sign(logp, adv, mask):
    return (adv * torch.where(mask > 0, logp, 0.0).sum(1)).mean()


def vector(logp):
    return logp


def pass_at_k(outcomes, k):
    n, c = len(outcomes), int(sum(outcomes))
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def NOT_BY_GROUP(reward, group):
    return reward - reward.mean()


def centred(reward, group):
    sums = torch.zeros(int(group.max()) + 1, dtype=reward.dtype).index_add(0, group, reward)
    return reward - (sums / torch.bincount(group))[group]
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A directory with a module of losses in it, and the working directory of the test."""
    (tmp_path / "their_losses.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    yield "their_losses"
    sys.modules.pop("their_losses", None)


def test_exit_codes_are_the_verdicts(module, capsys):
    assert main(["audit", f"{module}:rloo", "--group-size", "2"]) == 0
    assert "ascends: 1 x gradient of reward" in capsys.readouterr().out
    assert main(["audit", f"{module}:wrong_sign", "--group-size", "2"]) == 1
    assert "ascends: -1 x gradient of reward" in capsys.readouterr().out
    assert main(["audit", f"{module}:wrong_sign", "--group-size", "2", "--objective", "-reward"]) == 2, (
        "a flag, not a value"
    )
    assert main(["audit", f"{module}:wrong_sign", "--group-size", "2", "--objective=-1*reward"]) == 0
    assert main(["audit", f"{module}:vector", "--group-size", "2"]) == 2


def test_off_policy_a_loss_without_a_ratio_disagrees(module, capsys):
    assert main(["audit", f"{module}:rloo", "--group-size", "2", "--off-policy"]) == 1
    capsys.readouterr()


def test_the_record_is_json_on_request(module, tmp_path, capsys):
    assert main(["audit", f"{module}:rloo", "--group-size", "2", "--json", "--output", "record.json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record == json.loads((tmp_path / "record.json").read_text())
    assert record["verdict"] == "holds" and record["ascends"]["coefficients"] == pytest.approx({"reward": 1.0})
    assert main(["audit", f"{module}:vector", "--group-size", "2", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["variance"] is None


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        ("rloo", "expected seed"),
        (":rloo", "expected seed"),
        ("their_losses:", "expected seed"),
        ("their_losses:rlo", "their_losses has no function rlo; did you mean their_losses:rloo?"),
        ("their_losses:NUMBER", "their_losses has no function NUMBER"),
        ("absent:rloo", "cannot import absent (ModuleNotFoundError"),
        ("broken:rloo", "cannot import broken (ZeroDivisionError: division by zero)"),
    ],
)
def test_a_subject_that_cannot_be_found_is_named_with_the_remedy(module, subject, message):
    before = list(sys.path)
    with pytest.raises(InputError) as caught:
        load(subject)
    assert message in str(caught.value) and repr(subject) in str(caught.value)
    assert sys.path == before


def test_settings_of_a_loss_are_refused_for_the_seed(capsys):
    assert main(["audit", "seed", "--group-size", "2"]) == 2
    assert "would do nothing" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--prompts", "2"], ["--world", "tools"], ["--set", "a=b"], ["--advantage", "a:b"]])
def test_every_option_that_the_seed_audit_does_not_read_is_refused(option, capsys):
    assert main(["audit", "seed", *option]) == 2
    assert f"{option[0]} is for a loss and would do nothing" in capsys.readouterr().err


def test_subjects_with_a_name_are_listed_with_what_is_here(capsys):
    assert main(["audit", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(available()) and lines[0].startswith("assay.reinforce")
    assert {"trl.grpo", "verl.rloo", "openrlhf.policy_loss"} <= set(available())


def test_a_named_subject_takes_settings_and_brings_its_objective(capsys):
    assert main(["audit", "assay.rloo", "--set", "beta=0.1", "--set", "kl=reward", "--group-size", "2"]) == 0
    assert "1 x gradient of reward - 0.1 x gradient of kl" in capsys.readouterr().out
    assert main(["audit", "assay.rloo", "--set", "beta=0.1", "--set", "kl=k1_loss", "--group-size", "2"]) == 0
    assert main(["audit", "assay.mean_centred", "--group-size", "2"]) == 0, "it is said to ascend (G - 1)/G"
    assert main(["audit", "assay.mean_centred", "--group-size", "2", "--objective", "reward"]) == 1
    capsys.readouterr()


@pytest.mark.parametrize(
    ("subject", "settings", "kind", "message"),
    [
        ("assay.rlo", (), InputError, "a name of assay audit --list; did you mean assay.rloo?"),
        ("assay.rloo", ("beta",), ConfigError, "--set beta: expected key=value"),
        ("assay.rloo", ("=1",), ConfigError, "--set =1: expected key=value"),
        ("assay.rloo", ("beta=1", "beta=2"), ConfigError, "--set beta=2: expected key=value, each key once"),
        ("assay.rloo", ("betta=1",), ConfigError, "betta = 1: unknown setting"),
        ("their_losses:rloo", ("a=1",), ConfigError, "--set a=1: a python function takes no settings"),
    ],
)
def test_a_named_subject_that_cannot_be_made_says_why(module, subject, settings, kind, message):
    with pytest.raises(kind) as caught:
        find(subject, settings)
    assert message in str(caught.value)


def test_an_advantage_and_a_world_from_the_command_line(module, tmp_path, capsys):
    assert main(["audit", f"{module}:rloo", "--group-size", "2", "--advantage", f"{module}:centred"]) == 1
    assert "ascends: 0.5 x gradient of reward" in capsys.readouterr().out
    (tmp_path / "mine.json").write_text(json.dumps(world_record(small_world())))
    assert main(["audit", f"{module}:rloo", "--group-size", "2", "--world", "mine.json", "--prompts", "2"]) == 0
    assert "784 multisets of 2 of 7 responses and 2 of 7 responses" in capsys.readouterr().out
    assert main(["audit", f"{module}:rloo", "--world", "absent.json"]) == 2
    assert "no such file, and the worlds with a name are" in capsys.readouterr().err
    assert main(["audit"]) == 2
    assert "say what to audit" in capsys.readouterr().err


def test_one_invariant_can_be_asked_alone(module, capsys):
    assert main(["audit", f"{module}:centred", "--check", "I4"]) == 0
    assert main(["audit", f"{module}:NOT_BY_GROUP", "--check", "group_semantics"]) == 1
    assert "disagrees  I4 group semantics" in capsys.readouterr().out
    assert main(["audit", f"{module}:pass_at_k", "--check", "evaluation"]) == 0
    assert "holds  I10 evaluation" in capsys.readouterr().out
    assert main(["audit", f"{module}:pass_at_k", "--check", "I99"]) == 2
    assert "expected one of I1 expected_gradient" in capsys.readouterr().err
    assert main(["audit", f"{module}:pass_at_k", "--check", "I13"]) == 2
    assert "parity also needs second; call it from Python" in capsys.readouterr().err
    assert main(["audit", f"{module}:pass_at_k", "--check", "I10", "--group-size", "2"]) == 2
    assert "--group-size is for a loss" in capsys.readouterr().err
