"""``python -m specimens``: put every public report through the check of the invariant it is filed under.

Exit code 0 when nothing is missed, nothing raises a false alarm, and every report has its specimen or its reason.
Exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import sys

from rich.console import Console

from assay.audit.check import INVARIANTS
from assay.threads import one_thread
from specimens.bench import collect, run
from specimens.lists import read_dismissed, read_list
from specimens.table import record, show


def main(arguments: list[str] | None = None) -> int:
    """Run the bench and print it."""
    parser = argparse.ArgumentParser(prog="python -m specimens", description="Run the bench of public bugs.")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--only", nargs="+", default=[], choices=INVARIANTS, help="invariants to keep to")
    options = parser.parse_args(arguments)
    bugs, dismissed = read_list(), read_dismissed()
    with one_thread():
        bench = run(collect(), bugs, dismissed, only=options.only)
    if options.json:
        json.dump(record(bench, bugs), sys.stdout, indent=1, ensure_ascii=False)
        sys.stdout.write("\n")
    else:
        show(bench, bugs, dismissed, Console())
    return 0 if bench.passes else 1


if __name__ == "__main__":
    sys.exit(main())
