"""A description of a run's data that other tools read: Croissant 1.0, in JSON-LD.

Source: MLCommons, Croissant Format Specification 1.0, https://docs.mlcommons.org/croissant/docs/croissant-spec.html
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from assay.evidence.files import each_row, entries_of

CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileProperty": "cr:fileProperty",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
_TYPES = {str: "sc:Text", int: "sc:Integer", float: "sc:Float", bool: "sc:Boolean"}
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Record = dict[str, Any]


def croissant(root: Path, splits: Record, *, source: str) -> Record:
    """Return the description of a run's problems. It names no licence and no date, since none is known.

    Of the further columns it describes those that have one plain type throughout; nested ones are in the file alone.

    Args:
        root: the run directory.
        splits: of :func:`assay.evidence.language.data.describe_rows`.
        source: where the problems come from, as the recipe says.
    """
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": "problems",
        "description": f"The problems of one training run, as they were used. Source: {source or 'not recorded'}.",
        "url": "./",
        "distribution": [_file(name, split) for name, split in splits.items()],
        "recordSet": [_records(name, root / split["file"]) for name, split in splits.items()],
    }


def _file(name: str, split: Record) -> Record:
    file = Path(split["file"]).name
    return {
        "@type": "cr:FileObject",
        "@id": file,
        "name": file,
        "description": f"{split['rows']} problems of the {name} split, one JSON object a line.",
        "contentUrl": file,
        "encodingFormat": "application/jsonlines",
        "sha256": split["sha256"],
    }


def _records(name: str, path: Path) -> Record:
    fields = [_field(name, path, *field) for field in _fields(path)]
    return {"@type": "cr:RecordSet", "@id": name, "name": name, "key": {"@id": f"{name}/number"}, "field": fields}


def _fields(path: Path) -> Iterator[tuple[str, str, str, Record]]:
    """Yield name, type, description and source of each field: a column of the file, or an entry inside one."""
    chat, types = _survey(path)
    yield "number", "sc:Integer", "row in the data, and address of its random numbers", {"column": "number"}
    if chat:
        for part in ("role", "content"):
            yield (
                f"prompt.{part}",
                "sc:Text",
                f"the {part} of each turn of the prompt",
                {"column": "prompt", "in": part},
            )
    else:
        yield "prompt", "sc:Text", "what the model is asked", {"column": "prompt"}
    yield "answer", "sc:Text", "the right answer as the data writes it, where it has one", {"column": "answer"}
    for column, kinds in sorted(types.items()):
        if len(kinds) == 1 and (kind := _TYPES.get(next(iter(kinds)))) and _PLAIN_NAME.fullmatch(column):
            yield f"columns.{column}", kind, "a further column of the data", {"column": "columns", "in": column}


def _survey(path: Path) -> tuple[bool, dict[str, set[type]]]:
    """Return whether a prompt is a chat, and which types of values each further column has."""
    chat, types = False, defaultdict[str, set[type]](set)
    with entries_of(str(path)):
        for row in each_row(path):
            chat = chat or not isinstance(row["prompt"], str)
            for column, value in row["columns"].items():
                types[column] |= set() if value is None else {type(value)}
    return chat, types


def _field(name: str, path: Path, field: str, kind: str, description: str, where: Record) -> Record:
    source: Record = {"fileObject": {"@id": path.name}, "extract": {"column": where["column"]}}
    if "in" in where:
        source["transform"] = {"jsonPath": f"$.{where['in']}"}
    record = {"@type": "cr:Field", "@id": f"{name}/{field}", "name": field, "description": description}
    return {**record, "dataType": kind, "repeated": field.startswith("prompt."), "source": source}
