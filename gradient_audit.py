"""The seed's gradient audit: ``python gradient_audit.py --output runs/gradient-audit.json``.

Everything is in ``assay/audit/seed.py``.
"""

import sys

from assay.audit.seed import audit
from assay.cli import main

__all__ = ["audit"]

if __name__ == "__main__":
    sys.exit(main(["audit", "seed", *sys.argv[1:]]))
