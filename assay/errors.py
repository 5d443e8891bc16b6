"""Every error a user can meet: one root, a few leaves, each also the built-in error it specialises.

A message states the value, the place and the remedy, in that order, on one line. All of these are
picklable, because an error may cross a process boundary.
"""


class AssayError(Exception):
    """Root of every error raised on purpose. The command line turns it into exit code 2."""


class ConfigError(AssayError, ValueError):
    """A setting is unknown, out of range, or contradicts another one."""


class InputError(AssayError, ValueError):
    """A tensor or an argument handed to a function does not fit its contract."""


class RunError(AssayError, OSError):
    """A run directory is missing, taken, locked, unreadable or unwritable."""


class CheckpointError(AssayError, ValueError):
    """A checkpoint cannot be trusted: not a tensor file, wrong keys, shapes or digest."""


class EvidenceError(AssayError, ValueError):
    """Evidence cannot be read: malformed sums, a path that leaves the run, a link."""


class UpdateError(AssayError, ArithmeticError):
    """An update would be wrong: a gradient is missing or not finite, or sampler and scorer part."""


class Interrupted(AssayError):
    """Training stopped on request at a step boundary, with a resumable checkpoint on disk."""
