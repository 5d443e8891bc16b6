"""Run by ``test_language_export.py`` in a mount namespace of its own: exporting to a disk that is too small.

``language_full_disk.py PLACE`` prints a JSON record of what it saw at each size.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tiny_language_models import size_of, tiny_model, tiny_tokenizer

from assay.errors import RunError
from assay.evidence.language.weights import weight_files
from assay.evidence.tensors import tensors_digest
from assay.runs.language.export import Base, export

BASE = Base("org/name", "0" * 64)


def main(place: Path) -> list[dict[str, object]]:
    first, second, tokenizer = tiny_model(seed=1), tiny_model(seed=2), tiny_tokenizer()
    whole = export(first, tokenizer, place / "measure", base=BASE)
    size, seen = size_of(place / "measure"), []
    for kilobytes in range(4, 2 * size // 1024, 8):
        disk = place / f"disk-{kilobytes}"
        disk.mkdir()
        room = size // 1024 + 24 + kilobytes
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={room}k", "tmpfs", disk], check=True)
        export(first, tokenizer, disk / "model", base=BASE)
        error = None
        try:
            export(second, tokenizer, disk / "model", base=BASE)
        except RunError as caught:
            error = str(caught)
        kept = tensors_digest(weight_files(disk / "model")) == whole
        seen.append({"error": error, "kept": kept, "names": sorted(path.name for path in disk.iterdir())})
        subprocess.run(["umount", disk], check=True)
    return seen


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
