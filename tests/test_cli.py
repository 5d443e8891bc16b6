"""The command line: exit codes, one line for whatever is wrong, nothing written or lost, and help that names it all."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from rich.console import Console

import assay
from assay import cli
from assay.cli import main
from assay.display import ProgressView
from assay.errors import Interrupted
from assay.training.config import Recipe, build_recipe, read_settings, setting_names

COMMANDS = {
    "train": cli.Train,
    "evaluate": cli.Evaluate,
    "verify": cli.Verify,
    "compare": cli.Compare,
    "report": cli.Report,
    "audit": cli.Audit,
}
RECIPES = {
    "typo.toml": "[rl]\nlearnin_rate = 0.1\n",
    "section.toml": "[rll]\nsteps = 1\n",
    "top.toml": "sede = 29\n",
    "range.toml": "[warmup]\nlearning_rate = -0.006\n",
    "not-finite.toml": "[rl]\nbeta = inf\n",
    "word.toml": '[rl]\nsteps = "many"\n',
    "broken.toml": "seed = \n",
    "twice.toml": "seed = 1\nseed = 2\n",
}


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A working directory with recipes, good and bad, and odd things in the way."""
    for name, text in RECIPES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "latin.toml").write_bytes("[rl]\n# caf\xe9\n".encode("latin-1"))
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "nowhere").symlink_to("gone")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def refused(capsys, content):
    """Return a function that runs a command which must refuse: exit code 2, one line, nothing changed around it."""

    def check(*arguments, where=Path()):
        before = content(where)
        code = main([str(argument) for argument in arguments])
        complaint = capsys.readouterr().err
        assert code == 2, complaint
        assert re.fullmatch(r"assay: [^\n]+\n", complaint), complaint
        assert content(where) == before
        return complaint

    return check


# Bad input: the value, the place, the remedy --------------------------------------------------------------------------

BAD_TRAINING = [
    (["typo.toml"], ["typo.toml", "rl.learnin_rate", "did you mean rl.learning_rate?"]),
    (["section.toml"], ["section.toml", "unknown setting rll", "rl."]),
    (["top.toml"], ["top.toml", "unknown setting sede", "did you mean seed?"]),
    (["range.toml"], ["range.toml", "warmup.learning_rate = -0.006", "greater than 0"]),
    (["not-finite.toml"], ["not-finite.toml", "rl.beta = inf", "finite"]),
    (["word.toml"], ["word.toml", "rl.steps = 'many'", "integer"]),
    (["broken.toml"], ["broken.toml", "not valid TOML", "line 1"]),
    (["twice.toml"], ["twice.toml", "not valid TOML"]),
    (["latin.toml"], ["latin.toml", "utf-8"]),
    (["folder.toml"], ["folder.toml", "Is a directory", "check the path"]),
    (["missing.toml"], ["missing.toml", "No such file", "check the path"]),
    (["file/recipe.toml"], ["file/recipe.toml", "Not a directory", "check the path"]),
    (["--learning-rate", "1"], ["--learning-rate", "--rl.learning-rate"]),
    (["--rl.stpes", "1"], ["--rl.stpes", "--rl.steps"]),
    (["--rl.steps", "many"], ["--rl.steps", "many"]),
    (["--rl.steps", "-1"], ["rl.steps = -1", "greater than or equal to 0"]),
    (["--rl.estimator", "ppo"], ["--rl.estimator", "ppo", "rloo", "exact"]),
    (["--rl.num-generations", "1"], ["num_generations = 1", "at least 2", "use 2 or more"]),
    (["--rl.problems-per-step", "7"], ["problems_per_step = 7", "train_problems = 20", "use a divisor"]),
    (["--rl.estimator", "exact"], ["num_generations = 8 would do nothing", "set it to 0"]),
    (["--rl.beta", "nan"], ["rl.beta = nan", "finite"]),
    (["--rl.beta", "-0.1"], ["rl.beta = -0.1", "greater than or equal to 0"]),
    (["--warmup.learning-rate", "0"], ["warmup.learning_rate = 0.0", "greater than 0"]),
    (["--warmup.max-grad-norm", "inf"], ["warmup.max_grad_norm = inf", "finite"]),
    (["--save-steps", "0"], ["save_steps = 0", "greater than or equal to 1"]),
    (["--seed", "-1"], ["seed = -1", "greater than or equal to 0"]),
    (["--seed", str(2**32)], [f"seed = {2**32}", f"less than {2**32}"]),
    (["--seed", "9" * 40], ["seed = 9", "less than"]),
    (["--policy.heads", "3"], ["policy.width = 16", "3 heads", "use a multiple"]),
    (["--policy.width", str(2**40)], [f"policy.width = {2**40}", "less than or equal to"]),
    (["--evaluation.samples", str(2**60)], [f"evaluation.samples = {2**60}", "less than or equal to"]),
    (["--task.train-problems", "3990"], ["3990 training and 20 test problems", "only 4000", "ask for fewer"]),
    (["--output", "file"], ["file: exists already", "choose a new --output"]),
    (["--output", "folder.toml"], ["folder.toml: exists already", "choose a new --output"]),
    (["--output", "nowhere"], ["nowhere: exists already", "choose a new --output"]),
    (["--output", "."], ["exists already", "choose a new --output"]),
    (["--output", "file/run"], ["file/run: ", "part of the path is a file", "choose another place"]),
    (["--output", "file/inner/run"], ["file/inner/run: ", "part of the path is a file", "choose another place"]),
    (["--output", "x" * 300], ["File name too long", "choose a shorter name"]),
    (["--resume", "gone"], ["gone: no such run directory", "check the path"]),
    (["--resume", "file"], ["file: no such run directory", "check the path"]),
    (["--resume", "folder.toml"], ["folder.toml: not a run directory", "check the path"]),
    (["--resume", "gone", "--seed", "3"], ["--resume gone", "its own settings"]),
    (["--resume", "gone", "--output", "new"], ["--resume gone", "its own settings"]),
]


@pytest.mark.parametrize(("arguments", "fragments"), BAD_TRAINING, ids=lambda given: " ".join(given)[:60])
def test_a_training_that_cannot_be_is_refused_in_one_line(desk, refused, arguments, fragments):
    complaint = refused("train", *arguments)
    assert all(fragment in complaint for fragment in fragments), complaint


@pytest.mark.parametrize("text", ["[rl]\nsteps = true\n", '[rl]\nsteps = "40"\n', "seed = 29.0\n"])
def test_a_value_of_another_type_is_not_taken_for_a_number(desk, refused, text):
    (desk / "lax.toml").write_text(text)
    assert "lax.toml" in refused("train", "lax.toml", "--output", "run")


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (["trian"], ["trian", "train"]),
        (["audit", "speed"], ["speed", "seed"]),
        (["verify"], ["Missing from assay verify", "The run directory"]),
        (["verify", "gone"], ["gone: no such run directory", "check the path"]),
        (["verify", "folder.toml"], ["folder.toml: not a run directory", "check the path"]),
        (["verify", "file"], ["file: no such run directory"]),
        (["evaluate"], ["--output"]),
        (["evaluate", "--output", "gone"], ["gone: no such run directory", "check the path"]),
        (["evaluate", "--output", "gone", "--split", "validation"], ["split = 'validation'", "train, test"]),
        (["evaluate", "--output", "gone", "--samples", "0"], ["samples = 0", "at least 1"]),
        (["compare", "gone", "gone"], ["gone: no such run directory"]),
        (["report", "gone"], ["gone: no finished run here"]),
        (["audit", "seed", "--output", "file"], ["file: exists already", "choose another name"]),
    ],
)
def test_any_other_bad_command_is_refused_in_one_line(desk, refused, arguments, fragments):
    complaint = refused(*arguments)
    assert all(fragment in complaint for fragment in fragments), complaint


def test_no_command_at_all_shows_the_help(capsys):
    with pytest.raises(SystemExit) as done:
        main([])
    assert done.value.code == 0 and "subcommands" in capsys.readouterr().out


def test_the_version_is_the_packages(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"assay {assay.__version__}\n"


@pytest.mark.parametrize("arguments", [("verify", "run"), ("train", "--output", "run"), ("verify", "run", "--json")])
def test_a_reader_that_goes_away_changes_neither_work_nor_verdict(arguments, small, tmp_path):
    """`assay ... | head -1` in a real shell: the run is finished, and exit code 1 still means *disagrees*."""
    if arguments[0] == "verify":
        assay.train(small, tmp_path / "run")
    command = " ".join([sys.executable, "-m", "assay", *arguments])
    shell = f"set -o pipefail; {command} | head -n 1 >/dev/null; echo ${{PIPESTATUS[0]}}"
    path = str(Path(assay.__file__).parents[1])
    done = subprocess.run(
        ["bash", "-c", shell], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.stdout.strip() == "0", done.stderr
    assert assay.verify(tmp_path / "run").holds


READ_BY = {
    "evaluate": ("config.toml", "data.json", "checkpoint.pt"),
    "compare": ("config.toml", "data.json", "checkpoint.pt", "metrics.jsonl", "results.json"),
    "report": ("config.toml", "data.json", "environment.json", "manifest.json", "metrics.jsonl", "results.json"),
}


@pytest.mark.parametrize(("command", "name"), [(command, name) for command in READ_BY for name in READ_BY[command]])
@pytest.mark.parametrize("damage", [b"\xff\xfe" * 50, b"["])
def test_a_damaged_file_of_a_run_is_named(refused, run, finished, command, name, damage):
    (run / name).write_bytes(damage)
    arguments = {"evaluate": ["--output", run], "compare": [finished, run], "report": [run]}[command]
    assert name in refused(command, *arguments, where=run)


def test_an_existing_run_is_never_overwritten(refused, run):
    assert "exists already" in refused("train", "--output", run, where=run)


def test_a_message_from_a_hostile_file_cannot_write_to_the_terminal(desk, refused):
    (desk / "hostile.toml").write_text('"\\u001b[2J\\nassay: all is well" = 1\n')
    assert "\x1b" not in refused("train", "hostile.toml")


# Exit codes and output ------------------------------------------------------------------------------------------------


@pytest.fixture
def changed(run):
    """A run with one bit flipped."""
    data = bytearray((run / "timing.jsonl").read_bytes())
    data[5] ^= 1
    (run / "timing.jsonl").write_bytes(data)
    return run


@pytest.fixture
def twin(small, tmp_path):
    exact = small["rl"] | {"estimator": "exact", "num_generations": 0}
    return assay.train(small | {"rl": exact}, tmp_path / "twin").directory


def test_training_prints_plan_progress_summary_and_report(desk, finished, capsys):
    assert main(["train", str(finished / "config.toml"), "--output", "run"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    plan, progress, summary, page = (
        out.index(words) for words in ("Plan, seed 29, into run", "warmup 10/20 nll ", "train problems", "report: run/")
    )
    assert plan < progress < summary < page
    assert (
        "12 steps of 5 problems x 8 responses = 480 trajectories; 3 visits and 24 trajectories a problem"
        in " ".join(out.split())
    )
    results = json.loads(Path("run/results.json").read_text())
    assert f"{results['points']['rl']['test']['success']:.2%}" in out


def test_a_flag_goes_before_the_recipe_and_the_recipe_before_the_default(desk, finished):
    arguments = ["--output", "run", "--rl.steps", "1", "--evaluation.samples", "10"]
    assert main(["train", str(finished / "config.toml"), *arguments]) == 0
    recipe = build_recipe(read_settings(Path("run/config.toml")), place="config.toml")
    assert (recipe.rl.steps, recipe.warmup.steps, recipe.rl.beta) == (1, 20, Recipe().rl.beta)


def test_resuming_continues_with_the_runs_own_settings(desk, small, finished, capsys):
    with pytest.raises(Interrupted):
        assay.train(small, "run", stopping=lambda: True)
    assert main(["train", "--resume", "run"]) == 0
    assert (desk / "run" / "checkpoint.pt").read_bytes() == (finished / "checkpoint.pt").read_bytes()


def test_verify_holds_disagrees_or_could_not_run(finished, changed, small, tmp_path, capsys):
    assert main(["verify", str(finished)]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["holds"] * 4
    assert main(["verify", str(changed)]) == 1
    assert "    timing.jsonl: has sha256" in capsys.readouterr().out
    with pytest.raises(Interrupted):
        assay.train(small, tmp_path / "unfinished", stopping=lambda: True)
    assert main(["verify", str(tmp_path / "unfinished")]) == 2
    assert capsys.readouterr().out.startswith(
        "could not run  intact: the run has not finished; continue it with: assay"
    )
    assert main(["verify", str(tmp_path / "gone")]) == 2


def test_a_replay_is_a_claim_of_its_own(finished, capsys):
    assert main(["verify", str(finished), "--replay"]) == 0
    assert "holds  replayed: training again gave the same weights" in capsys.readouterr().out


def test_verify_cannot_be_made_to_print_what_a_file_is_named(changed, capsys):
    (changed / "x\nholds  intact\x1b[2J").write_text("")
    assert main(["verify", str(changed)]) == 1
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert not any(line.startswith("holds  intact") for line in out.splitlines())


def test_compare_holds_disagrees_or_could_not_run(finished, run, twin, small, tmp_path, capsys):
    assert main(["compare", str(finished), str(run)]) == 0
    assert "identical: weights, history and results, byte for byte" in capsys.readouterr().out
    assert main(["compare", str(finished), str(twin)]) == 1
    out = capsys.readouterr().out
    assert "sampling noise in the first RL step, exactly: |gradient|^2" in out
    assert "rl.estimator: rloo, exact" in out
    other = assay.train(small | {"seed": 30, "warmup": {"steps": 0}, "rl": {"steps": 0}}, tmp_path / "other").directory
    assert main(["compare", str(finished), str(other)]) == 2
    assert "different problems" in capsys.readouterr().err


def test_evaluate_prints_the_recorded_success(finished, capsys):
    assert main(["evaluate", "--output", str(finished), "--split", "train"]) == 0
    recorded = json.loads((finished / "results.json").read_text())["points"]["rl"]["train"]
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("after RL"))
    assert f"{recorded['success']:.2%}" in line
    assert f"{recorded['sampled']['successes']}/100" in line


def test_report_prints_where_the_page_is_or_writes_it_elsewhere(finished, tmp_path, capsys):
    assert main(["report", str(finished)]) == 0
    assert main(["report", str(finished), "--to", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out.splitlines() == [str(finished / "report.html"), str(tmp_path / "page.html")]
    assert (tmp_path / "page.html").read_bytes() == (finished / "report.html").read_bytes()


def test_an_audit_holds_or_disagrees(tmp_path, capsys, monkeypatch):
    assert main(["audit", "seed", "--output", str(tmp_path / "audit.json")]) == 0
    assert "negative control rejected" in capsys.readouterr().out
    record = json.loads((tmp_path / "audit.json").read_text())
    monkeypatch.setattr("assay.audit.seed.audit", lambda: record | {"probability_sum_error": 1.0})
    assert main(["audit", "seed"]) == 1
    assert "disagrees  probabilities sum to one" in capsys.readouterr().out


def test_json_is_json(finished, run, changed, capsys):
    def parsed(*arguments):
        code = main([*arguments, "--json"])
        return code, json.loads(capsys.readouterr().out)

    code, made = parsed("verify", str(finished))
    assert (code, made["verdict"], len(made["claims"])) == (0, "holds", 3)
    code, made = parsed("verify", str(changed))
    assert (code, made["verdict"], made["claims"][0]["verdict"]) == (1, "disagrees", "disagrees")
    code, made = parsed("evaluate", "--output", str(finished))
    assert (code, made["split"], set(made["points"])) == (0, "test", {"init", "warmup", "rl"})
    code, made = parsed("compare", str(finished), str(run))
    assert (code, made["verdict"], made["probability_gap"]) == (0, "holds", 0.0)
    code, made = parsed("audit", "seed")
    assert (code, len(made["tensors"])) == (0, 17)


def test_what_reads_a_run_never_changes_it(run, finished, tmp_path, content):
    before = content(run)
    for arguments in (
        ["evaluate", "--output", run, "--split", "train"],
        ["verify", run, "--replay"],
        ["report", run],
        ["report", run, "--to", tmp_path / "page.html"],
        ["compare", run, finished],
    ):
        assert main([str(argument) for argument in arguments]) == 0
    assert content(run) == before


def test_a_defect_is_told_from_a_mistake(capsys):
    def defective():
        raise ZeroDivisionError

    assert cli.boundary(defective) == 2
    complaint = capsys.readouterr().err
    assert "ZeroDivisionError" in complaint
    assert complaint.endswith("this is a defect in assay, please report it with the lines above\n")


def test_the_second_interrupt_stops_at_once():
    before = signal.getsignal(signal.SIGINT)
    with cli._stop_on_signal() as stopping:
        assert not stopping()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopping()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_terminal_gets_a_bar_and_anything_else_plain_lines():
    record = {"phase": "warmup", "step": 10, "negative_log_likelihood": 4.0, "grad_norm": 1.0}
    shown = {}
    for terminal in (True, False):
        console = Console(file=io.StringIO(), force_terminal=terminal, width=120)
        with ProgressView(console) as view:
            view.on_start(Recipe(), Path("runs/x"))
            view.on_step(record)
        shown[terminal] = console.file.getvalue()
    assert shown[False].splitlines()[-1] == "warmup 10/40 nll 4.000  grad 1.00"
    assert "\x1b" not in shown[False]
    assert "\x1b[" in shown[True]
    assert "10/140" in shown[True]


# Help -----------------------------------------------------------------------------------------------------------------


def help_of(capsys, *arguments):
    with pytest.raises(SystemExit) as done:
        main([*arguments, "--help"])
    assert done.value.code in (0, None)
    return capsys.readouterr().out


def test_help_names_every_command(capsys):
    shown = help_of(capsys)
    for name, command in COMMANDS.items():
        assert name in shown
        assert " ".join(command.__doc__.split())[:30] in " ".join(re.sub(r"[│\n]", " ", shown).split())


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_names_every_option(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = help_of(capsys, name)
    spelled = {"names": "list", "settings": "set"} if name == "audit" else {}
    named = [spelled.get(field.name, field.name) for field in fields(COMMANDS[name]) if "Positional" not in field.type]
    for option in set(named) - {"settings"}:
        assert f"--{option.replace('_', '-')} " in shown


def test_help_of_training_names_every_setting_with_its_default(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = help_of(capsys, "train")
    for setting in setting_names():
        assert f"--{setting.replace('_', '-')} " in shown
    assert f"(default: {Recipe().rl.learning_rate})" in shown


# The doors ------------------------------------------------------------------------------------------------------------


def test_an_output_that_knows_only_ascii_still_says_what_is_wrong(process):
    worker = process("-m", "assay", "train", "--rl.stpes", "1", PYTHONIOENCODING="ascii")
    assert worker.communicate()[1].startswith(
        "assay: Unrecognized options: --rl.stpes, 1; Perhaps you meant: --rl.steps"
    )


def test_the_command_runs_as_a_module_and_fails_with_its_code(process, tmp_path):
    worker = process("-m", "assay", "verify", tmp_path / "gone")
    out, err = worker.communicate()
    assert (worker.returncode, out) == (2, "")
    assert err == f"assay: {tmp_path / 'gone'}: no such run directory; check the path\n"
