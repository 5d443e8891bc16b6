"""The third question of verification: do the reported numbers follow from the weights, and the weights from the
recipe?"""

from __future__ import annotations

import tempfile
from pathlib import Path

from assay.errors import AssayError, CheckpointError, ConfigError, EvidenceError, InputError
from assay.evidence import sums
from assay.evidence.files import entries_of, local, read_json, read_regular, read_rows, resume_command
from assay.report.page import build_page
from assay.runs.compare import compare
from assay.runs.directory import named_errors
from assay.runs.environment import describe_environment, differences
from assay.runs.results import compute_results, deviations
from assay.runs.train import load_state, open_run, train
from assay.threads import one_thread
from assay.verdicts import Claim, Verdict

SAME_BUILD = 1e-9
OTHER_BUILD = 1e-6
"""Largest difference between a recorded and a recomputed probability, KL or norm. Weights are the same bytes
and are enumerated in float64; on another machine or build the initial weights may round differently in
float32."""


def recompute(place: Path) -> Claim:
    """Reload the checkpoint, compute every result again, and compare with what the run reports."""
    try:
        return _recompute(place)
    except (CheckpointError, ConfigError, EvidenceError) as error:
        return Claim("reproduced", Verdict.DISAGREES, "a file cannot be what training wrote", (local(error, place),))
    except AssayError as error:
        return Claim("reproduced", Verdict.COULD_NOT_RUN, local(error, place))


def _recompute(place: Path) -> Claim:
    recipe, splits = open_run(place)
    state = load_state(place, recipe)
    if state.phase != "done":
        where = f"stands at {state.phase} step {state.step}"
        if (place / sums.NAME).exists():
            raise EvidenceError(f"checkpoint.pt: {where}, and the run is sealed as finished")
        where = f"the run {where} and reports nothing yet"
        return Claim("reproduced", Verdict.COULD_NOT_RUN, f"{where}; continue it with: {resume_command(place)}")
    recorded, rows = read_json(place / "results.json"), read_rows(place / "metrics.jsonl")
    with entries_of("environment.json"):
        changed = differences(read_json(place / "environment.json"), describe_environment())
    tolerance = OTHER_BUILD if changed else SAME_BUILD
    with one_thread(), entries_of("metrics.jsonl"):
        try:
            computed = compute_results(recipe, splits, state, rows)
        except InputError as error:
            raise CheckpointError(f"checkpoint.pt: its weights cannot be evaluated ({error})") from error
    with entries_of("results.json"):
        lines = deviations(recorded, computed, tolerance=tolerance)
    findings = [f"results.json: {line} (from checkpoint.pt)" for line in lines]
    if recipe.rl.steps:
        final = {split: {key: computed["points"]["rl"][split][key] for key in ("success", "kl")} for split in splits}
        with entries_of("metrics.jsonl"):
            lines = deviations(rows[-1]["exact"], final, tolerance=tolerance)
        findings += [f"metrics.jsonl: last step: {line} (from checkpoint.pt)" for line in lines]
    same_page = read_regular(place / "report.html") == build_page(place).encode()
    if not same_page and not changed:
        findings.append("report.html: is not the page that these files give; it was changed")
    if findings:
        return Claim("reproduced", Verdict.DISAGREES, f"{len(findings)} number(s) do not follow", tuple(findings))
    success = computed["points"]["rl"]["train"]["success"]
    detail = f"checkpoint.pt gives every result again within {tolerance:.0e} (train success after RL {success:.6f})"
    note = f"; another build or machine: {'; '.join(changed)}" if changed else ""
    if same_page:
        return Claim("reproduced", Verdict.HOLDS, f"{detail}, and its page{note}")
    return Claim("reproduced", Verdict.COULD_NOT_RUN, f"{detail}, but report.html is not the page built here{note}")


def replay(place: Path) -> Claim:
    """Train the run's recipe again and compare weights, history and results."""
    try:
        recipe, _ = open_run(place)
        with entries_of("environment.json"):
            changed = differences(read_json(place / "environment.json"), describe_environment())
        with (
            named_errors(Path("temporary directory")),
            tempfile.TemporaryDirectory(prefix="assay-replay-") as temporary,
        ):
            again = train(recipe, Path(temporary) / "run").directory
            made = compare(place, again)
    except (CheckpointError, ConfigError, EvidenceError) as error:
        return Claim("replayed", Verdict.DISAGREES, "a file cannot be what training wrote", (local(error, place),))
    except AssayError as error:
        return Claim("replayed", Verdict.COULD_NOT_RUN, local(error, place))
    if all(made.identical.values()):
        detail = "training again gave the same weights, history and results, byte for byte"
        return Claim("replayed", Verdict.HOLDS, detail)
    findings = tuple(f"{name}: differs from the replay" for name, same in made.identical.items() if not same)
    findings += (f"largest difference in a response's probability: {made.probability_gap:.3g}",)
    if changed:
        reason = f"another build or machine ({'; '.join(changed)}), so a difference proves nothing"
        return Claim("replayed", Verdict.COULD_NOT_RUN, reason, findings)
    return Claim("replayed", Verdict.DISAGREES, "training again gave another run", findings)
