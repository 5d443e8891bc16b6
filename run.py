"""The seed experiment's command: ``python run.py train --output my-run``. Everything is in the package ``assay``."""

import sys

from assay.cli import main
from assay.core.advantages import loo_advantages

__all__ = ["loo_advantages"]

if __name__ == "__main__":
    sys.exit(main())
