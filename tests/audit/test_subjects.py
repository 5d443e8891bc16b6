"""``assay audit package.module:function``, as a user in a directory of their own runs it."""

import json
import sys

import pytest

from assay.audit.subjects import load
from assay.cli import main
from assay.errors import InputError

MODULE = """
import torch

NUMBER = 3


def rloo(logp, adv, mask):
    return -(adv * torch.where(mask > 0, logp, 0.0).sum(1)).mean()


def wrong_sign(logp, adv, mask):
    return (adv * torch.where(mask > 0, logp, 0.0).sum(1)).mean()


def vector(logp):
    return logp
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
        ("rloo", "expected seed, or a function as package.module:function"),
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
