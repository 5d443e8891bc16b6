"""Sealing a language run: manifest, provenance, page and sums over whatever files its model turned out to have."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from assay.evidence import sums
from assay.evidence.digest import file_digest
from assay.evidence.files import read_json, read_rows
from assay.evidence.language.contents import contents_of
from assay.evidence.manifest import MANIFEST, PROVENANCE, build_manifest, build_provenance
from assay.runs.directory import named_errors, to_json, write
from assay.runs.language.layout import Layout


def seal(layout: Layout, config: dict[str, Any], build_page: Callable[[Path], str]) -> None:
    """Write the evidence and the report of a run whose every other file is there. The sums come last.

    Args:
        layout: of the run.
        config: every setting.
        build_page: makes the report from the run directory.

    Raises:
        RunError: a file is missing or cannot be written.
    """
    digest = functools.cache(file_digest)  # of one file once: weights are large
    environment, clock = read_json(layout.environment), read_rows(layout.timing)
    with named_errors(layout.root):
        contents = contents_of(layout.root)
        manifest = build_manifest(layout.root, environment, contents, digest=digest)
    write(layout.root / MANIFEST, to_json(manifest))
    started, finished = clock[0]["time"], clock[-1]["time"]
    provenance = build_provenance(manifest, config, environment, contents, started=started, finished=finished)
    write(layout.root / PROVENANCE, to_json(provenance))
    write(layout.report, build_page(layout.root).encode())
    with named_errors(layout.root):
        text = sums.sums_text(layout.root, list(contents.files), digest=digest)
    write(layout.root / sums.NAME, text.encode())
