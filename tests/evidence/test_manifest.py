"""Manifest and provenance of a run: digests computed again with hashlib, the statement read by other people's code."""

import hashlib
import json
import tomllib
from datetime import datetime
from pathlib import Path

import pytest

import assay
from assay.evidence.digest import source_digest
from assay.evidence.manifest import BOUND, FILES, MANIFEST, PROVENANCE
from assay.evidence.sums import NAME


@pytest.fixture
def manifest(finished):
    return json.loads((finished / MANIFEST).read_text())


@pytest.fixture
def statement(finished):
    return json.loads((finished / PROVENANCE).read_text())


def digests(run: Path, names: tuple[str, ...]) -> dict[str, str]:
    return {name: hashlib.sha256((run / name).read_bytes()).hexdigest() for name in names}


def test_a_run_holds_exactly_the_files_of_its_format(finished):
    assert {path.name for path in finished.iterdir()} == {*FILES, NAME}


def test_the_manifest_binds_source_data_config_environment_checkpoint_and_metrics(finished, manifest):
    named = ("config.toml", "data.json", "environment.json", "checkpoint.pt", "metrics.jsonl", "results.json")
    assert manifest == {
        "format": "assay-run/1",
        "source": source_digest(Path(assay.__file__).parent),
        "files": digests(finished, named),
    }
    assert set(named) == set(BOUND)


def test_provenance_is_a_valid_in_toto_statement(statement):
    descriptor = pytest.importorskip("in_toto_attestation.v1.resource_descriptor", reason="needs in-toto-attestation")
    from google.protobuf.json_format import ParseDict
    from in_toto_attestation.v1 import statement_pb2
    from in_toto_attestation.v1.statement import Statement

    parsed = ParseDict(statement, statement_pb2.Statement())
    Statement.copy_from_pb(parsed).validate()
    assert parsed.predicate_type == "https://slsa.dev/provenance/v1"
    for entry in parsed.subject:
        descriptor.ResourceDescriptor.copy_from_pb(entry).validate()


def test_its_predicate_is_a_slsa_provenance(statement):
    """Parsing refuses any field that the schema lacks; SLSA requires a build type and a builder's id."""
    pytest.importorskip("in_toto_attestation", reason="needs in-toto-attestation")
    from google.protobuf.json_format import ParseDict
    from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
    from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor

    parsed = ParseDict(statement["predicate"], provenance_pb2.Provenance())
    assert ":" in parsed.build_definition.build_type
    assert ":" in parsed.run_details.builder.id
    for entry in parsed.build_definition.resolved_dependencies:
        ResourceDescriptor.copy_from_pb(entry).validate()
    started, finished = parsed.run_details.metadata.started_on, parsed.run_details.metadata.finished_on
    assert started.ToMilliseconds() < finished.ToMilliseconds()


def test_provenance_says_which_inputs_gave_which_outputs(finished, manifest, statement):
    definition = statement["predicate"]["buildDefinition"]
    subject = {entry["name"]: entry["digest"]["sha256"] for entry in statement["subject"]}
    assert subject == digests(finished, ("checkpoint.pt", "metrics.jsonl", "results.json"))
    inputs = {
        entry["name"]: entry["digest"]["sha256"] for entry in definition["resolvedDependencies"] if "digest" in entry
    }
    assert inputs == {
        "assay source": manifest["source"],
        **digests(finished, ("config.toml", "data.json", "environment.json")),
    }
    assert definition["externalParameters"] == tomllib.loads((finished / "config.toml").read_text())


def test_provenance_takes_its_clock_from_the_timing_file(finished, statement):
    rows = [json.loads(line) for line in (finished / "timing.jsonl").read_text().splitlines()]
    metadata = statement["predicate"]["runDetails"]["metadata"]
    assert (rows[0]["event"], rows[-1]["event"]) == ("started", "finished")
    assert metadata == {"startedOn": rows[0]["time"], "finishedOn": rows[-1]["time"]}
    assert datetime.fromisoformat(metadata["startedOn"]) <= datetime.fromisoformat(metadata["finishedOn"])
