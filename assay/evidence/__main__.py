"""``python -m assay.evidence DIR``: say whether a run is intact and complete, with the standard library alone."""

import sys

from assay.errors import AssayError
from assay.evidence.files import printable
from assay.evidence.verify import verify_files
from assay.verdicts import Claim, Verdict, exit_code, overall


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m assay.evidence DIR", file=sys.stderr)
        return 2
    try:
        claims = verify_files(arguments[0])
    except AssayError as error:
        print(f"could not run: {printable(str(error))}", file=sys.stderr)
        return exit_code(Verdict.COULD_NOT_RUN)
    for claim in claims:
        print(_line(claim))
    return exit_code(overall(claims))


def _line(claim: Claim) -> str:
    lines = [f"{claim.name}: {claim.verdict} ({claim.detail})", *(f"  {found}" for found in claim.findings)]
    return "\n".join(printable(line) for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
