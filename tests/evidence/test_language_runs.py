"""A language run: what is nested, sharded and sampled is held together as firmly as the seed's flat files."""

import json
import os
import shutil
import tomllib
from collections.abc import Callable

import pytest
from language_runs import build, safetensors, write_json, write_rows, write_weights

from assay.errors import EvidenceError, RunError
from assay.evidence import verify as module
from assay.evidence.digest import file_digest
from assay.evidence.language.contents import DEPTH
from assay.evidence.sums import NAME, check_sums
from assay.evidence.verify import verify_files
from assay.runs.language.layout import Layout
from assay.runs.language.seal import seal
from assay.verdicts import Verdict

KINDS = {
    "sharded": {},
    "one file": {"shards": 1},
    "an adapter": {"lora": 2},
    "no warm-up": {"warmup": 0, "control": False},
    "an adapter without warm-up": {"lora": 1, "warmup": 0},
    "no RL": {"rl": 0, "control": False},
}


@pytest.fixture(scope="module", autouse=True)
def no_waiting_for_the_disk():
    """Runs here are not meant to outlive the machine; waiting would be most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A sealed run, to be read only."""
    return build(tmp_path_factory.mktemp("language") / "run")


@pytest.fixture
def harmed(made, tmp_path):
    """A copy of the sealed run, to be harmed."""
    return shutil.copytree(made, tmp_path / "run")


def reseal(run):
    """Write manifest, provenance and sums again, with this package's own code."""
    seal(Layout(run), tomllib.loads((run / "config.toml").read_text()), lambda place: "<p>page</p>")


def findings(run):
    return verify_files(run)[1].findings


def change(run, name, edit: Callable):
    path = run / name
    value = json.loads(path.read_text())
    edit(value)
    write_json(path, value)


def change_row(run, name, number, edit: Callable):
    path = run / name
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    edit(rows[number])
    write_rows(path, rows)


def assert_complains(run, complaint):
    """The checks that *complete* makes beside those of the digests, without computing these again each time."""
    found = []
    for check, _ in module.LANGUAGE_KIND.checks:
        try:
            found += check(run)
        except EvidenceError as error:
            found.append(str(error))
    assert any(complaint in finding for finding in found), found


def assert_found(run, complaint):
    assert any(complaint in finding for finding in findings(run)), findings(run)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_finished_run_of_any_kind_is_intact_and_complete(kind, tmp_path):
    claims = verify_files(build(tmp_path / "run", **kind))
    assert [(claim.verdict, claim.findings) for claim in claims] == [(Verdict.HOLDS, ())] * 2


def test_the_standard_library_says_so_too(made, process):
    started = process("-S", "-m", "assay.evidence", made)
    out, err = started.communicate()
    assert (started.returncode, err) == (0, "")
    assert [line.split(" (")[0] for line in out.splitlines()] == ["intact: holds", "complete: holds"]


@pytest.mark.skipif(not shutil.which("sha256sum"), reason="needs the sha256sum tool")
def test_sha256sum_reads_the_nested_names(made, process):
    started = process("--check", "--strict", "--quiet", NAME, executable="sha256sum")
    started.communicate()
    listed = {line.split("  ")[1] for line in (made / NAME).read_text().splitlines()}
    files = {str(path.relative_to(made)) for path in made.rglob("*") if path.is_file()}
    assert listed == files - {NAME}
    assert any(name.count("/") for name in listed)


def test_every_file_that_is_flipped_or_taken_away_is_found(harmed):
    for name in sorted(str(path.relative_to(harmed)) for path in harmed.rglob("*") if path.is_file()):
        if name != NAME:
            good = (harmed / name).read_bytes()
            flipped = bytearray(good)
            flipped[len(good) // 2] ^= 1
            (harmed / name).write_bytes(flipped)
            [finding] = check_sums(harmed, depth=DEPTH)
            assert finding.startswith(f"{name}: has sha256")
            (harmed / name).unlink()
            assert check_sums(harmed, depth=DEPTH) == [f"{name}: is listed in {NAME} and missing"]
            (harmed / name).write_bytes(good)
    assert check_sums(harmed, depth=DEPTH) == []


@pytest.mark.parametrize(
    "name",
    ["extra.txt", "model/extra.json", "model/deep/er/x.txt", "checkpoint/.hidden", ".checkpoint.partial/x", "new/x"],
)
def test_a_file_that_was_added_is_found_wherever_it_lies(harmed, name):
    (harmed / name).parent.mkdir(parents=True, exist_ok=True)
    (harmed / name).write_text("")
    intact = verify_files(harmed)[0]
    assert intact.verdict is Verdict.DISAGREES
    assert intact.findings[0].startswith("/".join(name.split("/")[:3]))


def test_an_empty_directory_is_found(harmed):
    (harmed / "model" / "empty").mkdir()
    assert verify_files(harmed)[0].findings == ("model/empty: is not a regular file",)


@pytest.mark.parametrize("name", ["model", "data", "checkpoint", "warmup", "model/config.json", "samples.jsonl"])
def test_a_link_is_found_and_never_followed(harmed, name):
    moved = (harmed / name).rename(harmed.parent / "moved")
    (harmed / name).symlink_to(moved)
    intact, complete = verify_files(harmed)
    assert f"{name}: is a symbolic link; a run holds regular files only" in intact.findings
    assert complete.verdict is Verdict.DISAGREES
    fixed = name == "samples.jsonl"
    assert f"{name}: is {'missing or no regular file' if fixed else 'no file of a run'}" in complete.findings


def test_a_pipe_among_the_weights_is_never_opened(harmed):
    os.mkfifo(harmed / "model" / "model-00003-of-00003.safetensors")
    (harmed / "checkpoint" / "model.safetensors").unlink()
    os.mkfifo(harmed / "checkpoint" / "model.safetensors")
    assert [claim.verdict for claim in verify_files(harmed)] == [Verdict.DISAGREES] * 2


@pytest.mark.parametrize("line", ["../outside", "/etc/passwd", "model/../../outside", "model//x", "a/b/c/d", ".x/y"])
def test_a_sum_that_leads_elsewhere_is_found_and_never_opened(harmed, line):
    with (harmed / NAME).open("a") as file:
        file.write(f"{'0' * 64}  {line}\n")
    assert any("not a plain file name; not opened" in finding for finding in verify_files(harmed)[0].findings)


@pytest.mark.parametrize(
    "name", ["model/weights.bin", "model/modeling_evil.py", "model/model.pt", "checkpoint/state.pkl", "data/more.jsonl"]
)
def test_code_pickles_and_strangers_are_no_part_of_a_run_even_when_listed(harmed, name):
    (harmed / name).write_text("")
    reseal(harmed)
    with (harmed / NAME).open("a") as file:
        file.write(f"{'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855'}  {name}\n")
    assert verify_files(harmed)[0].verdict is Verdict.HOLDS
    assert f"{name}: is no file of a run" in findings(harmed)


@pytest.mark.parametrize("name", ["metrics.jsonl", "data/test.jsonl", "checkpoint/state.json", "model/config.json"])
def test_a_file_that_is_missing_is_found_though_the_sums_do_not_list_it(harmed, name):
    (harmed / name).unlink()
    lines = (harmed / NAME).read_text().splitlines(keepends=True)
    (harmed / NAME).write_text("".join(line for line in lines if not line.endswith(f"  {name}\n")))
    assert_found(harmed, name)


def test_a_run_that_has_not_finished_could_not_be_checked(harmed):
    for name in (NAME, "manifest.json", "results.json"):
        (harmed / name).unlink()
    assert [claim.verdict for claim in verify_files(harmed)] == [Verdict.COULD_NOT_RUN] * 2


def test_which_kind_of_run_it_is_shows_without_its_settings(harmed):
    (harmed / "config.toml").write_text("model = ")
    assert_found(harmed, "config.toml: is not the file that manifest.json binds")
    assert not any("is no file of a run" in finding for finding in findings(harmed))


def test_a_seed_run_cannot_pass_for_a_language_run(run):
    with (run / "config.toml").open("r+") as file:
        text = file.read()
        file.seek(0)
        file.write('model = "x"\n' + text)
    assert_found(run, "model.safetensors" if (run / "model").exists() else "samples.jsonl: is missing")


def test_a_file_larger_than_what_is_read_whole_is_hashed(harmed, monkeypatch):
    monkeypatch.setattr("assay.evidence.files.SIZE_LIMIT", 2**14)
    size = 2**16
    (harmed / "checkpoint" / "model.safetensors").write_bytes(safetensors({"a": ("U8", (size,), bytes(size))}))
    reseal(harmed)
    assert [claim.verdict for claim in verify_files(harmed)] == [Verdict.HOLDS] * 2


def test_each_file_is_hashed_once_for_both_claims(made, monkeypatch):
    asked = []
    monkeypatch.setattr(module, "file_digest", lambda path: asked.append(path.name) or file_digest(path))
    verify_files(made)
    assert asked.count("model-00001-of-00002.safetensors") == 2, "one in model/, one in warmup/"


def test_a_directory_that_cannot_be_read_could_not_be_checked(harmed, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("pathlib.Path.iterdir", refuse)
    with pytest.raises(RunError, match="cannot read"):
        verify_files(harmed)


def test_a_run_without_a_reference_has_no_kl(harmed):
    change(harmed, "results.json", lambda r: r["digests"]["reference"].clear())
    assert_complains(harmed, "digests.reference is empty, and RL step 2 has a KL to one")
    rows = [json.loads(line) for line in (harmed / "metrics.jsonl").read_text().splitlines()]
    write_rows(harmed / "metrics.jsonl", [{**row, "kl": 0.0} for row in rows])
    reseal(harmed)
    assert findings(harmed) == ()


FORGED = {
    "another reference at a save": (
        "results.json",
        lambda r: r["digests"]["reference"].update({"step 2": "c" * 64}),
        "the reference's digest is not the same",
    ),
    "no reference at a save": (
        "results.json",
        lambda r: r["digests"]["reference"].pop("step 4"),
        "digests.reference lacks step 4",
    ),
    "no reference at the end": (
        "results.json",
        lambda r: r["digests"]["reference"].pop("end"),
        "digests.reference lacks end",
    ),
    "another policy": ("results.json", lambda r: r["digests"].update(policy="c" * 64), "digests.policy is not that"),
    "another warm-up": ("results.json", lambda r: r["digests"].update(warmup="c" * 64), "digests.warmup is not that"),
    "a quantization": (
        "model/config.json",
        lambda c: c.update(quantization_config={"quant_method": "gguf"}),
        "model/config.json: speaks of a quantization",
    ),
    "more success on a problem": (
        "results.json",
        lambda r: r["points"]["base"]["test"]["per_problem"][1]["sampled"].update(right=3, rate=1.0),
        "base on test, sampled: problem 5",
    ),
    "a higher rate": (
        "results.json",
        lambda r: r["points"]["rl"]["test"]["sampled"].update(rate=0.99),
        "rl on test, sampled: rate is 0.99",
    ),
    "a higher greedy rate": (
        "results.json",
        lambda r: r["points"]["base"]["train"]["greedy"].update(rate=0.99),
        "base on train, greedy: rate is 0.99",
    ),
    "a higher pass@2": (
        "results.json",
        lambda r: r["points"]["rl"]["test"]["sampled"]["pass_at_k"]["2"].update(rate=0.99),
        "rl on test, sampled: pass@2 is 0.99",
    ),
    "fewer timeouts": (
        "results.json",
        lambda r: r["points"]["base"]["test"]["sampled"]["outcomes"].update(timeout=0, wrong=99),
        "base on test, sampled: outcomes is",
    ),
    "a larger gain": (
        "results.json",
        lambda r: r["gains"]["test"]["rl"]["sampled"].update(difference=0.9),
        "gains.test.rl: sampled difference is 0.9",
    ),
    "a gain of more problems": (
        "results.json",
        lambda r: r["gains"]["test"]["total"]["greedy"].update(c=17),
        "gains.test.total: greedy b and c are",
    ),
    "a larger gain over a control": (
        "results.json",
        lambda r: r["controls"]["random_reward"]["comparison"]["sampled"].update(difference=0.9),
        "controls.random_reward.comparison: sampled difference is 0.9",
    ),
    "a point left out": (
        "results.json",
        lambda r: r["points"].pop("base"),
        "results.json: its points are warmup, rl, planned base, warmup, rl",
    ),
    "a control left out": (
        "results.json",
        lambda r: r["controls"].clear(),
        "random_reward on test, which has no record",
    ),
    "fewer responses spent": (
        "results.json",
        lambda r: r["spent"].update(training_trajectories=8),
        "spent.training_trajectories is 8, metrics.jsonl adds up to 40",
    ),
    "less overlap": ("data.json", lambda d: d["overlap"].update(prompts=0), "overlap of prompts is 0, counted 2"),
    "another number of rows": (
        "data.json",
        lambda d: d["splits"]["test"].update(rows=4),
        "data.json: test rows is 4, the rows have 3",
    ),
    "another data digest": (
        "data.json",
        lambda d: d["splits"]["train"].update(sha256="0" * 64),
        "data.json: train sha256 is",
    ),
    "another description": (
        "data/croissant.json",
        lambda c: c["distribution"][0].update(sha256="0" * 64),
        "data/croissant.json: does not describe the files",
    ),
}


@pytest.mark.parametrize(("name", "edit", "complaint"), FORGED.values(), ids=FORGED)
def test_a_forged_entry_is_found_though_every_digest_is_computed_again(harmed, name, edit, complaint):
    change(harmed, name, edit)
    reseal(harmed)
    assert verify_files(harmed)[0].verdict is Verdict.HOLDS
    assert_found(harmed, complaint)


STEPS = {
    "a response too many": (lambda r: r["outcomes"].update(right=6), "do not count 8 responses"),
    "a status of its own": (lambda r: r["outcomes"].update(lucky=0), "do not count 8 responses"),
    "a count below zero": (lambda r: r["outcomes"].update(right=9, wrong=-1), "are not counts"),
    "a group too many": (lambda r: r["groups"].update(all_equal=1), "do not count 2 groups"),
    "all right and no right": (lambda r: r["outcomes"].update(right=0, wrong=8), "no response is right"),
    "signal and no update": (
        lambda r: r.update(stepped=False, grad_norm=0.0, clipped_grad_norm=0.0),
        "with 1 groups that have signal",
    ),
    "a problem of no data": (lambda r: r["problems"].__setitem__(0, 99), "are not 2 problems of data/train.jsonl"),
    "a problem twice": (lambda r: r["problems"].__setitem__(0, r["problems"][1]), "comes 2 times"),
    "a share that does not follow": (lambda r: r.update(frac_reward_zero_std=0.0), "frac_reward_zero_std 0.0"),
    "a clipped norm above the raw one": (
        lambda r: r.update(clipped_grad_norm=0.6),
        "does not follow from the raw norm",
    ),
    "a learning rate above the plan": (lambda r: r.update(learning_rate=1.0), "is above the planned"),
    "a mean above the most": (lambda r: r.update({"completions/mean_length": 9.0}), "are not least, mean and most"),
    "a length above the limit": (lambda r: r.update({"completions/max_length": 9.0}), "are not least, mean and most"),
    "a share of no count": (lambda r: r.update({"completions/clipped_ratio": 0.3}), "is not a count of 8"),
    "fewer tokens than before": (lambda r: r.update(num_tokens=1), "num_tokens falls to 1"),
    "another step": (lambda r: r.update(step=9), "not the planned steps in order"),
}


@pytest.mark.parametrize(("edit", "complaint"), STEPS.values(), ids=STEPS)
def test_a_step_that_cannot_be_is_found(harmed, edit, complaint):
    change_row(harmed, "metrics.jsonl", 4, edit)  # RL step 3
    assert_complains(harmed, complaint)


def test_a_missing_step_is_found(harmed):
    lines = (harmed / "metrics.jsonl").read_text().splitlines(keepends=True)
    (harmed / "metrics.jsonl").write_text("".join(lines[:-1]))
    reseal(harmed)
    assert_found(harmed, "metrics.jsonl: 6 steps recorded, config.toml plans 7")


SAMPLES = {
    "a wrong one turned right": (lambda r: r.update(status="right", score=1.0), "base on test, sampled: problem 5"),
    "one of another point": (lambda r: r.update(point="mystery"), "of mystery on test, which has no record"),
    "one twice": (lambda r: r.update(sample=1), "is there twice"),
    "a score that is a word": (lambda r: r.update(score="1"), "score is '1'"),
    "a truth that is a number": (lambda r: r.update(truncated=1), "truncated is 1"),
    "a status of its own": (lambda r: r.update(status="lucky"), "status is 'lucky'"),
    "right without a score": (lambda r: r.update(status="right", score=None), "is right and has no score"),
    "an entry more": (lambda r: r.update(more=1), "differs in more"),
    "more of them in format": (lambda r: r.update(in_format=not r["in_format"]), "base on test, sampled: problem 5"),
    "less of them cut off": (lambda r: r.update(truncated=not r["truncated"]), "truncated_share"),
}


@pytest.mark.parametrize(("edit", "complaint"), SAMPLES.values(), ids=SAMPLES)
def test_a_sample_that_does_not_agree_with_the_results_is_found(harmed, edit, complaint):
    rows = [json.loads(line) for line in (harmed / "samples.jsonl").read_text().splitlines()]
    wanted = ("base", "test", 5, 0)
    number = next(n for n, r in enumerate(rows) if (r["point"], r["split"], r["problem"], r["sample"]) == wanted)
    change_row(harmed, "samples.jsonl", number, edit)
    assert_complains(harmed, complaint)


def test_a_deleted_sample_is_found(harmed):
    lines = (harmed / "samples.jsonl").read_text().splitlines(keepends=True)
    (harmed / "samples.jsonl").write_text("".join(lines[1:]))
    reseal(harmed)
    assert_found(harmed, "base on train, sampled: problem 0")


@pytest.mark.parametrize("text", ["[1]\n", "{}\n", '{"number": 0}\n', '{"number": 0, "number": 1}\n', "\xff\n", "{"])
def test_malformed_data_is_a_finding(harmed, text):
    (harmed / "data" / "train.jsonl").write_text(text)
    assert_complains(harmed, "data/train.jsonl")


WEIGHTS = {
    "a shard taken away": (lambda m: (m / "model-00002-of-00002.safetensors").unlink(), "which is missing"),
    "a shard too many": (
        lambda m: shutil.copy(m / "model-00002-of-00002.safetensors", m / "model-00003-of-00003.safetensors"),
        "its shards are not the numbers 1 to 3 of 3",
    ),
    "a whole model beside its shards": (
        lambda m: shutil.copy(m / "model-00002-of-00002.safetensors", m / "model.safetensors"),
        "its shards are not the numbers",
    ),
    "no index": (lambda m: (m / "model.safetensors.index.json").unlink(), "it must hold model.safetensors alone"),
    "no weights": (lambda m: [path.unlink() for path in m.glob("*safetensors*")], "it has no such file"),
    "no config": (lambda m: (m / "config.json").unlink(), "model/config.json: is missing"),
    "a shard cut short": (
        lambda m: os.truncate(m / "model-00001-of-00002.safetensors", 300),
        "its tensors end at byte",
    ),
    "other values": (lambda m: write_weights(m, 7.0, shards=2), "digests.policy is not that of the tensors in model/"),
}


@pytest.mark.parametrize(("harm", "complaint"), WEIGHTS.values(), ids=WEIGHTS)
def test_weights_that_are_not_whole_are_found(harmed, harm, complaint):
    harm(harmed / "model")
    assert_complains(harmed, complaint)


def moved(index, name, file):
    index["weight_map"][name] = file


INDEX = {
    "a path out of the run": (lambda i: moved(i, "a.weight", "../../etc/passwd"), "is no name of a shard; not opened"),
    "an absolute path": (lambda i: moved(i, "a.weight", "/etc/passwd"), "is no name of a shard; not opened"),
    "a path into the run": (lambda i: moved(i, "a.weight", "../warmup/x"), "is no name of a shard; not opened"),
    "another shard": (lambda i: moved(i, "a.weight", "model-00002-of-00002.safetensors"), "'a.weight' is in"),
    "a tensor that is not there": (
        lambda i: moved(i, "z.weight", "model-00001-of-00002.safetensors"),
        "'z.weight' is in None",
    ),
    "a tensor left out": (lambda i: i["weight_map"].pop("a.weight"), "the index says None"),
    "another size": (lambda i: i["metadata"].update(total_size=1), "total_size is 1, the tensors have 68 bytes"),
    "no size": (lambda i: i.pop("metadata"), "an entry is missing or of the wrong kind"),
    "a map of lists": (lambda i: moved(i, "a.weight", ["x"]), "not opened"),
}


@pytest.mark.parametrize(("edit", "complaint"), INDEX.values(), ids=INDEX)
def test_an_index_that_does_not_name_what_is_there_is_found(harmed, edit, complaint):
    change(harmed, "model/model.safetensors.index.json", edit)
    assert_complains(harmed, complaint)


def test_an_index_that_names_a_tensor_twice_is_refused(harmed):
    path = harmed / "model" / "model.safetensors.index.json"
    path.write_text(path.read_text().replace('"weight_map": {', '"weight_map": {"a.weight": "model.safetensors", '))
    reseal(harmed)
    assert_found(harmed, "'a.weight' occurs 2 times")


def test_a_tensor_that_two_shards_hold_is_found(harmed):
    shard = safetensors({"a.weight": ("F32", (1,), bytes(4)), "b.bias": ("F32", (1,), bytes(4))})
    (harmed / "model" / "model-00001-of-00002.safetensors").write_bytes(shard)
    (harmed / "model" / "model-00002-of-00002.safetensors").write_bytes(shard)
    reseal(harmed)
    assert_found(harmed, "two shards hold a tensor of one name")


def test_a_reference_that_is_not_the_base_model_is_found(tmp_path):
    run = build(tmp_path / "run", warmup=0)
    change(run, "results.json", lambda r: r["digests"].update(base="c" * 64))
    reseal(run)
    assert_found(run, "without a warm-up the reference is the base model")


def test_a_warm_up_directory_without_warm_up_is_found(tmp_path):
    run = build(tmp_path / "run", warmup=0)
    shutil.copytree(run / "model", run / "warmup")
    reseal(run)
    assert_found(run, "warmup: is no part of a run whose config.toml plans no warm-up")


def test_a_missing_warm_up_is_found(harmed):
    shutil.rmtree(harmed / "warmup")
    reseal(harmed)
    assert_found(harmed, "warmup: is missing")


def test_an_adapter_of_another_base_is_found(tmp_path):
    run = build(tmp_path / "run", lora=2)
    change(run, "model/base_model.json", lambda b: b.update(digest="c" * 64))
    reseal(run)
    assert_found(run, "model/base_model.json: names another base model")
    (run / "model" / "base_model.json").unlink()
    (run / "model" / "model.safetensors").write_bytes(safetensors({}))
    reseal(run)
    assert_found(run, "model/base_model.json: is missing")
    assert_found(run, "model: holds a whole model beside an adapter")
