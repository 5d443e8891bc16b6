"""Forgeries of a finished run. Each says which digests the forger computes again, which claim must catch it all the
same, and which file the message must name. ``README.md`` beside this file says what they mean, and what is not caught.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import shutil
import signal
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch

import assay
from assay.core.digest import weights_digest
from assay.evidence.manifest import FILES, MANIFEST, PROVENANCE, build_manifest, build_provenance
from assay.evidence.sums import NAME as SUMS
from assay.evidence.sums import sums_text
from assay.evidence.verify import verify_files
from assay.report.page import build_page
from assay.runs.directory import to_json
from assay.runs.results import compute_results
from assay.runs.train import load_state, open_run
from assay.verdicts import Claim, Verdict

Forge = Callable[[Path], None]
HTML = "<script>alert(1)</script>"
EVERY_FILE = (*FILES, SUMS)
WITHOUT_A_TWIN = {"environment.json"}
"""Files that are the same in every run of one machine, so that swapping them is no attack."""


# What a forger computes again -----------------------------------------------------------------------------------------


def nothing(run: Path) -> None:
    """Leave every digest as it was."""


def sums(run: Path) -> None:
    """Compute ``SHA256SUMS`` again, over whatever is there now."""
    names = [path.name for path in run.iterdir() if path.is_file() and path.name != SUMS]
    (run / SUMS).write_text(sums_text(run, names))


def digests(run: Path) -> None:
    """Compute manifest, provenance and sums again, with this package's own code."""
    environment = json.loads((run / "environment.json").read_text())
    clock = [json.loads(line) for line in (run / "timing.jsonl").read_text().splitlines()]
    with suppress(tomllib.TOMLDecodeError):
        config = tomllib.loads((run / "config.toml").read_text())
        manifest = build_manifest(run, environment)
        made = build_provenance(manifest, config, environment, started=clock[0]["time"], finished=clock[-1]["time"])
        (run / MANIFEST).write_bytes(to_json(manifest))
        (run / PROVENANCE).write_text(json.dumps(made, indent=1))
    sums(run)


def everything(run: Path) -> None:
    """Compute every digest and the page again, with this package's own code."""
    digests(run)
    (run / "report.html").write_text(build_page(run))
    sums(run)


# The table ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attack:
    """One forgery: what is done to the run, what is computed again, and how it must come out."""

    name: str
    forge: Forge
    recomputed: Forge
    caught_by: str
    names: str


ATTACKS: list[Attack] = []


def attack(recomputed: Forge, caught_by: str, names: str) -> Callable[[Forge], Forge]:
    """Enter a forging function into the table."""

    def enter(forge: Forge) -> Forge:
        ATTACKS.append(Attack(forge.__name__, forge, recomputed, caught_by, names))
        return forge

    return enter


def attack_each(names: tuple[str, ...], recomputed: Forge, caught_by: str) -> Callable[[Forge], Forge]:
    """Enter a forging function once for each file, which the message must name."""

    def enter(forge: Forge) -> Forge:
        for name in names:

            def on_file(run: Path, name: str = name) -> None:
                forge(run / name)

            ATTACKS.append(Attack(f"{forge.__name__}-{name}", on_file, recomputed, caught_by, name))
        return forge

    return enter


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    """Change parsed JSON in place."""
    record = json.loads(path.read_text())
    change(record)
    path.write_bytes(to_json(record))


def edit_row(run: Path, index: int, **changes: Any) -> None:
    """Change one step's record."""
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    lines[index] = json.dumps(json.loads(lines[index]) | changes, ensure_ascii=False) + "\n"
    (run / "metrics.jsonl").write_text("".join(lines))


def row(run: Path, index: int) -> dict[str, Any]:
    return json.loads((run / "metrics.jsonl").read_text().splitlines()[index])


def edit_config(run: Path, section: str, **changes: Any) -> None:
    config = tomllib.loads((run / "config.toml").read_text())
    (config[section] if section else config).update(changes)
    (run / "config.toml").write_text(tomli_w.dumps(config))


def edit_checkpoint(run: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a checkpoint's content and save it as a proper one again."""
    content = torch.load(run / "checkpoint.pt", weights_only=True)
    change(content)
    torch.save(content, run / "checkpoint.pt")


# Files: nothing is computed again, or only the sums -------------------------------------------------------------------


@attack_each(EVERY_FILE, nothing, "intact")
def remove(path: Path) -> None:
    path.unlink()


@attack_each(EVERY_FILE, nothing, "intact")
def empty(path: Path) -> None:
    path.write_bytes(b"")


@attack_each(EVERY_FILE, nothing, "intact")
def truncate_by_one_byte(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@attack_each(EVERY_FILE, nothing, "intact")
def replace_by_a_link_to_the_same_bytes(path: Path) -> None:
    path.rename(path.parent.parent / path.name)
    path.symlink_to(path.parent.parent / path.name)


@attack_each(EVERY_FILE, nothing, "intact")
def replace_by_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@attack_each(EVERY_FILE, nothing, "intact")
def replace_by_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@attack_each(EVERY_FILE, nothing, "intact")
def replace_by_an_endless_device(path: Path) -> None:
    path.unlink()
    try:
        os.mknod(path, 0o020600, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("needs the right to make a device node")


@attack_each(tuple(name for name in EVERY_FILE if name not in WITHOUT_A_TWIN), nothing, "intact")
def swap_in_the_file_of_another_seed(path: Path) -> None:
    shutil.copy(path.parent.parent / "other-seed" / path.name, path)


@attack_each(FILES, sums, "complete")
def remove_and_compute_sums(path: Path) -> None:
    path.unlink()


@attack_each(
    ("config.toml", "data.json", "checkpoint.pt", "metrics.jsonl", "results.json"),
    sums,
    "complete",
)
def swap_in_the_file_of_another_seed_and_compute_sums(path: Path) -> None:
    shutil.copy(path.parent.parent / "other-seed" / path.name, path)


@attack(nothing, "intact", "better.pt")
def add_a_file(run: Path) -> None:
    shutil.copy(run / "checkpoint.pt", run / "better.pt")


@attack(nothing, "intact", ".hidden")
def add_a_hidden_file(run: Path) -> None:
    (run / ".hidden").write_text("")


@attack(sums, "complete", "better.pt")
def add_a_file_and_list_it(run: Path) -> None:
    shutil.copy(run / "checkpoint.pt", run / "better.pt")


@attack(nothing, "intact", "manifest.json")
@attack(sums, "complete", "results.json")
def swap_two_files(run: Path) -> None:
    (run / "results.json").rename(run / "held")
    (run / "manifest.json").rename(run / "results.json")
    (run / "held").rename(run / "manifest.json")


def into_sums(run: Path, line: str) -> None:
    (run / SUMS).write_text((run / SUMS).read_text() + line + "\n")


@attack(nothing, "intact", f"{SUMS}: line")
def a_path_upwards_in_the_sums(run: Path) -> None:
    shutil.copy(run / "checkpoint.pt", run.parent / "outside")
    into_sums(run, f"{'0' * 64}  ../outside")


@attack(nothing, "intact", f"{SUMS}: line")
def an_absolute_path_in_the_sums(run: Path) -> None:
    into_sums(run, f"{'0' * 64}  /etc/passwd")


@attack(nothing, "intact", f"{SUMS}: line")
def a_file_listed_twice_in_the_sums(run: Path) -> None:
    into_sums(run, (run / SUMS).read_text().splitlines()[0])


@attack(nothing, "intact", f"{SUMS}: line")
def lines_of_the_sums_joined_by_what_some_readers_take_for_a_line_break(run: Path) -> None:
    (run / SUMS).write_text((run / SUMS).read_text().replace("\n", "\v", 1))


# Manifest and provenance: the sums are computed again -----------------------------------------------------------------


@attack(sums, "complete", MANIFEST)
def a_path_upwards_in_the_manifest(run: Path) -> None:
    edit(
        run / MANIFEST, lambda made: made["files"].update({"../run/checkpoint.pt": made["files"].pop("checkpoint.pt")})
    )


@attack(sums, "complete", MANIFEST)
def an_absolute_path_in_the_manifest(run: Path) -> None:
    edit(run / MANIFEST, lambda made: made["files"].update({"/etc/passwd": "0" * 64}))


@attack(sums, "complete", MANIFEST)
def a_file_bound_twice_in_the_manifest(run: Path) -> None:
    text = (run / MANIFEST).read_text()
    (run / MANIFEST).write_text(text.replace('"files": {', '"files": {"checkpoint.pt": "' + "0" * 64 + '",'))


@attack(sums, "complete", MANIFEST)
def another_source_in_the_manifest(run: Path) -> None:
    edit(run / MANIFEST, lambda made: made.update(source="0" * 64))


@attack(sums, "complete", MANIFEST)
def html_in_the_manifest(run: Path) -> None:
    edit(run / MANIFEST, lambda made: made.update(note=HTML))


@attack(sums, "complete", PROVENANCE)
def provenance_that_leaves_out_the_checkpoint(run: Path) -> None:
    edit(run / PROVENANCE, lambda made: made["subject"].pop(0))


@attack(sums, "complete", PROVENANCE)
def provenance_that_names_other_data(run: Path) -> None:
    inputs = "resolvedDependencies"
    edit(
        run / PROVENANCE, lambda made: made["predicate"]["buildDefinition"][inputs][2]["digest"].update(sha256="0" * 64)
    )


@attack(sums, "complete", PROVENANCE)
def provenance_with_other_settings(run: Path) -> None:
    edit(run / PROVENANCE, lambda made: made["predicate"]["buildDefinition"]["externalParameters"].update(seed=30))


@attack(sums, "complete", PROVENANCE)
def provenance_with_another_machine(run: Path) -> None:
    edit(
        run / PROVENANCE, lambda made: made["predicate"]["buildDefinition"]["internalParameters"].update(machine="vax")
    )


@attack(sums, "complete", PROVENANCE)
def provenance_with_another_clock(run: Path) -> None:
    metadata = {"startedOn": "2001-01-01T00:00:00Z"}
    edit(run / PROVENANCE, lambda made: made["predicate"]["runDetails"]["metadata"].update(metadata))


@attack(sums, "complete", PROVENANCE)
def provenance_of_another_kind(run: Path) -> None:
    edit(run / PROVENANCE, lambda made: made.update(predicateType="https://slsa.dev/verification_summary/v1"))


@attack(sums, "complete", "timing.jsonl")
def another_clock(run: Path) -> None:
    shutil.copy(run.parent / "other-seed" / "timing.jsonl", run)


@attack(sums, "reproduced", "report.html")
def a_page_that_says_something_else(run: Path) -> None:
    page = (run / "report.html").read_text()
    (run / "report.html").write_text(page.replace("</body>", "<p>100%</p></body>"))


# Weights: every digest is computed again ------------------------------------------------------------------------------


@attack(sums, "complete", "checkpoint.pt")
@attack(digests, "reproduced", "checkpoint.pt")
def the_checkpoint_of_a_longer_run(run: Path) -> None:
    shutil.copy(run.parent / "longer" / "checkpoint.pt", run)


@attack(sums, "complete", "checkpoint.pt")
@attack(digests, "reproduced", "checkpoint.pt")
def the_checkpoint_of_the_exact_twin(run: Path) -> None:
    shutil.copy(run.parent / "twin" / "checkpoint.pt", run)


@attack(digests, "reproduced", "checkpoint.pt")
def a_checkpoint_from_the_middle_of_the_run(run: Path) -> None:
    edit_checkpoint(run, lambda made: made.update(phase="rl", step=5))


@attack(digests, "reproduced", "metrics.jsonl")
def the_exact_twins_weights_with_the_results_that_follow_from_them(run: Path) -> None:
    shutil.copy(run.parent / "twin" / "checkpoint.pt", run)
    recipe, splits = open_run(run)
    rows = [row(run, index) for index in range(recipe.warmup.steps + recipe.rl.steps)]
    (run / "results.json").write_bytes(to_json(compute_results(recipe, splits, load_state(run, recipe), rows)))


@attack(digests, "reproduced", "results.json")
def one_weight_nudged(run: Path) -> None:
    edit_checkpoint(run, lambda made: made["policy"]["head.weight"][0, 0].add_(1e-3))


@attack(digests, "reproduced", "checkpoint.pt")
def a_weight_of_the_reference_nudged(run: Path) -> None:
    edit_checkpoint(run, lambda made: made["reference"]["head.weight"][0, 0].add_(1e-3))


@attack(digests, "reproduced", "results.json")
def the_reference_synchronised_to_the_policy(run: Path) -> None:
    def synchronise(made: dict[str, Any]) -> None:
        made["reference"] = {name: tensor.clone() for name, tensor in made["policy"].items()}
        digest = weights_digest(made["reference"].items())
        made["reference_digests"] = dict.fromkeys(made["reference_digests"], digest)

    edit_checkpoint(run, synchronise)


@attack(digests, "reproduced", "checkpoint.pt")
def a_weight_that_is_not_finite(run: Path) -> None:
    edit_checkpoint(run, lambda made: made["policy"]["head.weight"].fill_(float("nan")))


@attack(digests, "reproduced", "checkpoint.pt")
def weights_that_overflow(run: Path) -> None:
    edit_checkpoint(run, lambda made: [tensor.fill_(3e38) for tensor in made["policy"].values()])


@attack(digests, "reproduced", "checkpoint.pt")
def a_tensor_of_another_shape(run: Path) -> None:
    edit_checkpoint(run, lambda made: made["policy"].update({"head.weight": torch.zeros(3, 3)}))


@attack(digests, "reproduced", "checkpoint.pt")
def a_sparse_tensor(run: Path) -> None:
    edit_checkpoint(run, lambda made: made["policy"].update({"head.weight": made["policy"]["head.weight"].to_sparse()}))


@attack(digests, "reproduced", "checkpoint.pt")
def a_tensor_too_few(run: Path) -> None:
    edit_checkpoint(run, lambda made: made["policy"].pop("head.weight"))


@attack(digests, "reproduced", "checkpoint.pt")
def a_tensor_whose_name_is_no_text(run: Path) -> None:
    edit_checkpoint(run, lambda made: made["policy"].update({("head", "weight"): made["policy"].pop("head.weight")}))


@attack(digests, "reproduced", "checkpoint.pt")
def a_checkpoint_of_garbage(run: Path) -> None:
    (run / "checkpoint.pt").write_bytes(b"\x80\x02jgarbage" * 100)


@attack(digests, "reproduced", "checkpoint.pt")
def a_checkpoint_without_a_byte(run: Path) -> None:
    (run / "checkpoint.pt").write_bytes(b"")


@attack(digests, "reproduced", "checkpoint.pt")
def a_checkpoint_that_is_an_archive_of_something_else(run: Path) -> None:
    with zipfile.ZipFile(run / "checkpoint.pt", "w") as archive:
        archive.writestr("archive/data.pkl", HTML)


class Bomb:
    """Pickles to an instruction to create a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.target), "w")


def target_of(run: Path) -> Path:
    return run.parent / "went-off"


@attack(digests, "reproduced", "checkpoint.pt")
def a_pickle_bomb(run: Path) -> None:
    (run / "checkpoint.pt").write_bytes(pickle.dumps(Bomb(target_of(run)), protocol=2))


@attack(digests, "reproduced", "checkpoint.pt")
def a_pickle_bomb_in_a_torch_archive(run: Path) -> None:
    torch.save({"format": "assay-checkpoint/1", "policy": Bomb(target_of(run))}, run / "checkpoint.pt")


@attack(digests, "reproduced", "checkpoint.pt")
def a_pickle_bomb_in_the_old_torch_format(run: Path) -> None:
    bomb = {"policy": Bomb(target_of(run))}
    torch.save(bomb, run / "checkpoint.pt", _use_new_zipfile_serialization=False)


@attack(digests, "reproduced", "checkpoint.pt")
def a_pickle_bomb_in_the_runs_own_checkpoint(run: Path) -> None:
    replaced = io.BytesIO()
    with zipfile.ZipFile(run / "checkpoint.pt") as old, zipfile.ZipFile(replaced, "w") as new:
        for name in old.namelist():
            bomb = name.endswith("/data.pkl")
            new.writestr(name, pickle.dumps(Bomb(target_of(run)), protocol=2) if bomb else old.read(name))
    (run / "checkpoint.pt").write_bytes(replaced.getvalue())


# Numbers: every digest is computed again ------------------------------------------------------------------------------


@attack(nothing, "complete", "results.json")
@attack(sums, "complete", "results.json")
@attack(digests, "reproduced", "results.json")
def more_success_than_there_was(run: Path) -> None:
    edit(run / "results.json", lambda made: made["points"]["rl"]["test"].update(success=0.9))


@attack(digests, "reproduced", "results.json")
def a_millionth_more_success(run: Path) -> None:
    point = json.loads((run / "results.json").read_text())["points"]["rl"]["train"]
    edit(run / "results.json", lambda made: made["points"]["rl"]["train"].update(success=point["success"] + 1e-6))


@attack(digests, "reproduced", "results.json")
def less_kl_than_there_was(run: Path) -> None:
    edit(run / "results.json", lambda made: made["points"]["rl"]["train"].update(kl=0.0))


@attack(digests, "reproduced", "results.json")
def one_more_sample_that_succeeded(run: Path) -> None:
    made = json.loads((run / "results.json").read_text())["points"]["rl"]["train"]["sampled"]["successes"]
    edit(run / "results.json", lambda r: r["points"]["rl"]["train"]["sampled"].update(successes=made + 1))


@attack(digests, "reproduced", "results.json")
def one_problem_solved_that_was_not(run: Path) -> None:
    edit(run / "results.json", lambda made: made["points"]["rl"]["test"]["problems"]["success"].__setitem__(0, 1.0))


@attack(digests, "reproduced", "results.json")
def a_gain_that_the_points_do_not_give(run: Path) -> None:
    edit(run / "results.json", lambda made: made["gains"]["test"].update(rl=0.5))


@attack(digests, "complete", "results.json")
def fewer_trajectories_spent(run: Path) -> None:
    edit(run / "results.json", lambda made: made["spent"].update(training_trajectories=40))


@attack(digests, "reproduced", "results.json")
def fewer_samples_spent(run: Path) -> None:
    edit(run / "results.json", lambda made: made["spent"].update(evaluation_samples=6))


@attack(digests, "reproduced", "results.json")
def a_tensor_that_moved_less(run: Path) -> None:
    edit(run / "results.json", lambda made: made["tensors"][0].update(max_abs_change=0.0))


@attack(digests, "complete", "results.json")
def a_reference_that_changed_on_the_way(run: Path) -> None:
    edit(run / "results.json", lambda made: made["reference_digests"].update({"rl 5": "0" * 64}))


@attack(digests, "reproduced", "results.json")
def another_reference_throughout(run: Path) -> None:
    forged = {"reference_digests": {"rl 0": "0" * 64, "end": "0" * 64}}
    edit(run / "results.json", lambda made: made.update(forged))


@attack(digests, "reproduced", "results.json")
def html_in_the_results(run: Path) -> None:
    edit(run / "results.json", lambda made: made.update(note=HTML))


@attack(digests, "complete", "results.json")
@attack(digests, "reproduced", "results.json")
def a_number_that_is_none(run: Path) -> None:
    text = (run / "results.json").read_text()
    (run / "results.json").write_text(re.sub(r'"kl": [0-9.e-]+', '"kl": NaN', text, count=1))


@attack(digests, "reproduced", "results.json")
def a_number_beyond_every_float(run: Path) -> None:
    edit(run / "results.json", lambda made: made["points"]["rl"]["train"].update(kl=10**400))


@attack(digests, "complete", "results.json")
@attack(digests, "reproduced", "results.json")
def two_values_for_one_entry(run: Path) -> None:
    """A reader that takes the first value and one that takes the last would see different results."""
    text = (run / "results.json").read_text()
    (run / "results.json").write_text(text.replace('"gains": {', '"gains": {"test": {"rl": 0.9}, ', 1))


@attack(digests, "complete", "results.json")
@attack(digests, "reproduced", "results.json")
def results_nested_without_end(run: Path) -> None:
    (run / "results.json").write_text("[" * 1_000_000)


@attack(digests, "complete", "results.json")
@attack(digests, "reproduced", "results.json")
def results_that_are_a_list(run: Path) -> None:
    (run / "results.json").write_text("[]")


@attack(nothing, "complete", "metrics.jsonl")
@attack(digests, "complete", "metrics.jsonl")
def a_reward_edited_alone(run: Path) -> None:
    edit_row(run, 25, strict_reward=1.0)


@attack(everything, "replayed", "metrics.jsonl")
def a_reward_edited_with_the_return_that_follows(run: Path) -> None:
    """Return stays strict reward - beta * log-ratio, and the reward stays a count of 40: only training again tells."""
    old = row(run, 25)
    more = old["strict_reward"] + 1 / 40
    edit_row(run, 25, **{"strict_reward": more, "return": old["return"] + 1 / 40})


@attack(everything, "replayed", "metrics.jsonl")
def a_smaller_likelihood_loss(run: Path) -> None:
    edit_row(run, 3, negative_log_likelihood=0.1)


@attack(everything, "replayed", "metrics.jsonl")
def html_in_the_history(run: Path) -> None:
    edit_row(run, 25, note=HTML)


@attack(everything, "replayed", "metrics.jsonl")
def a_better_success_halfway(run: Path) -> None:
    exact = row(run, 23)["exact"] | {"test": {"success": 0.9, "kl": 0.1}}
    edit_row(run, 23, exact=exact)


@attack(digests, "reproduced", "metrics.jsonl")
def a_better_success_at_the_last_step(run: Path) -> None:
    exact = row(run, -1)["exact"] | {"test": {"success": 0.9, "kl": 0.1}}
    edit_row(run, -1, exact=exact)


@attack(digests, "complete", "metrics.jsonl")
def a_step_left_out(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:25] + lines[26:]))


@attack(digests, "complete", "metrics.jsonl")
def two_steps_in_the_other_order(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join([*lines[:25], lines[26], lines[25], *lines[27:]]))


@attack(digests, "complete", "metrics.jsonl")
def a_reward_beyond_every_float(run: Path) -> None:
    text = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(re.sub(r'"strict_reward": [0-9.]+', '"strict_reward": 1e999', text, count=1))


@attack(digests, "complete", "metrics.jsonl")
def a_count_beyond_every_float(run: Path) -> None:
    edit_row(run, 25, strict_reward=10**400)


@attack(digests, "complete", "metrics.jsonl")
def a_history_nested_without_end(run: Path) -> None:
    (run / "metrics.jsonl").write_text('{"a":' * 100_000 + "\n")


# Settings and data: every digest is computed again --------------------------------------------------------------------


@attack(digests, "reproduced", "data.json")
def another_seed_in_the_settings(run: Path) -> None:
    edit_config(run, "", seed=30)


@attack(digests, "complete", "metrics.jsonl")
def a_larger_beta_in_the_settings(run: Path) -> None:
    edit_config(run, "rl", beta=0.3)


@attack(everything, "reproduced", "checkpoint.pt")
def a_smaller_learning_rate_in_the_settings(run: Path) -> None:
    edit_config(run, "rl", learning_rate=0.001)


@attack(digests, "reproduced", "results.json")
def fewer_samples_in_the_settings(run: Path) -> None:
    edit_config(run, "evaluation", samples=50)


@attack(digests, "complete", "config.toml")
def a_plan_that_never_ends(run: Path) -> None:
    edit_config(run, "rl", steps=10**15)


@attack(digests, "reproduced", "config.toml")
def a_policy_too_large_for_any_machine(run: Path) -> None:
    edit_config(run, "policy", width=2**40)


@attack(digests, "reproduced", "config.toml")
def more_samples_than_any_machine_can_draw(run: Path) -> None:
    edit_config(run, "evaluation", samples=2**60)


@attack(digests, "reproduced", "config.toml")
def html_in_the_settings(run: Path) -> None:
    edit_config(run, "rl", estimator=HTML)


@attack(digests, "reproduced", "config.toml")
def a_setting_that_does_not_exist(run: Path) -> None:
    edit_config(run, "rl", note=HTML)


@attack(digests, "complete", "config.toml")
@attack(digests, "reproduced", "config.toml")
def settings_that_are_no_toml(run: Path) -> None:
    (run / "config.toml").write_text("seed = ")


@attack(digests, "reproduced", "data.json")
def html_for_a_problem(run: Path) -> None:
    edit(run / "data.json", lambda made: made["test"].__setitem__(0, HTML))


@attack(digests, "reproduced", "data.json")
def an_easier_problem(run: Path) -> None:
    edit(run / "data.json", lambda made: made["test"].__setitem__(0, made["train"][0]))


@attack(digests, "reproduced", "data.json")
def problems_in_another_order(run: Path) -> None:
    edit(run / "data.json", lambda made: made["test"].reverse())


# How each comes out ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def others(tmp_path_factory: pytest.TempPathFactory, small: dict[str, Any]) -> dict[str, Path]:
    """Other finished runs to take files from."""
    place = tmp_path_factory.mktemp("others")
    exact = {"estimator": "exact", "num_generations": 0}
    recipes = {
        "other-seed": small | {"seed": 30},
        "longer": small | {"rl": {"steps": 24}},
        "twin": small | {"rl": small["rl"] | exact},
    }
    return {name: assay.train(recipe, place / name).directory for name, recipe in recipes.items()}


@pytest.fixture
def scene(run: Path, others: dict[str, Path]) -> Path:
    """A copy of the finished run, with the other runs beside it."""
    for name, directory in others.items():
        (run.parent / name).symlink_to(directory)
    return run


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """Stop a test that hangs, as it would on a pipe that is opened."""

    def stop(number: int, frame: object) -> None:
        raise TimeoutError("the verification hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def claims_of(run: Path, *, replay: bool = False) -> dict[str, Claim]:
    return {claim.name: claim for claim in assay.verify(run, replay=replay).claims}


@pytest.mark.parametrize("made", ATTACKS, ids=lambda made: f"{made.name}-{made.recomputed.__name__}-{made.caught_by}")
def test_the_attack_is_caught_and_the_file_named(made: Attack, scene: Path) -> None:
    made.forge(scene)
    made.recomputed(scene)
    if made.recomputed is nothing:
        claim = {claim.name: claim for claim in verify_files(scene)}[made.caught_by]
    else:
        claim = claims_of(scene, replay=made.caught_by == "replayed")[made.caught_by]
    assert claim.verdict is Verdict.DISAGREES, claim
    assert any(made.names in finding for finding in claim.findings), claim
    assert not target_of(scene).exists()


@pytest.mark.parametrize("name", EVERY_FILE)
@pytest.mark.parametrize(
    "harm",
    [remove, empty, replace_by_a_pipe, replace_by_a_directory, replace_by_an_endless_device],
)
def test_recomputation_neither_hangs_nor_crashes(harm: Forge, name: str, scene: Path) -> None:
    harm(scene / name)
    assert assay.verify(scene).verdict is Verdict.DISAGREES


@pytest.mark.parametrize("recomputed", [nothing, sums, digests, everything])
def test_what_is_computed_again_holds_where_nothing_was_forged(run: Path, recomputed: Forge) -> None:
    recomputed(run)
    assert {claim.verdict for claim in claims_of(run, replay=True).values()} == {Verdict.HOLDS}


def test_the_bomb_goes_off_where_pickles_are_trusted(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Bomb(tmp_path / "went-off"))).close()
    assert (tmp_path / "went-off").exists()


@pytest.mark.parametrize("made", [made for made in ATTACKS if made.caught_by == "replayed"], ids=lambda made: made.name)
def test_only_a_replay_tells_a_forgery_that_is_consistent(made: Attack, scene: Path) -> None:
    made.forge(scene)
    made.recomputed(scene)
    assert {claim.verdict for claim in claims_of(scene).values()} == {Verdict.HOLDS}


def test_an_environment_that_is_claimed_cannot_be_checked(run: Path) -> None:
    """Numbers are held to the wider bound of another build, and a page that differs, or a replay, proves nothing."""
    edit(run / "environment.json", lambda made: made.update(python=HTML))
    everything(run)
    reproduced = claims_of(run)["reproduced"]
    assert reproduced.verdict is Verdict.HOLDS
    assert "within 1e-06" in reproduced.detail
    assert f"another build or machine: python was {HTML}" in reproduced.detail

    a_page_that_says_something_else(run)
    sums(run)
    reproduced = claims_of(run)["reproduced"]
    assert reproduced.verdict is Verdict.COULD_NOT_RUN
    assert "report.html is not the page built here" in reproduced.detail


def test_a_clock_that_is_consistent_cannot_be_checked(run: Path) -> None:
    text = (run / "timing.jsonl").read_text()
    (run / "timing.jsonl").write_text(re.sub(r'"seconds": [0-9.]+', '"seconds": 0.0001', text))
    everything(run)
    assert {claim.verdict for claim in claims_of(run, replay=True).values()} == {Verdict.HOLDS}
