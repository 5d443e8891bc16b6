"""What keeps the last steps from teaching anything: groups without a difference to learn from, by their reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]

WINDOW = 5
"""Steps that advice looks back on."""
LITTLE_SIGNAL = 0.1
"""Share of informative groups below which there is advice."""

MOSTLY_CUT = 0.5
"""Share of responses cut off above which that is the likeliest reason."""

REASONS = {
    "all_wrong": "all wrong. Read the responses: is their format what the grader accepts? If so, warm up, take easier "
    "problems, or draw more responses a group",
    "all_right": "all right: these problems are solved. Take harder ones, or stop here",
    "all_equal": "scored alike: the reward does not tell their responses apart. Check that it varies, and that the "
    "temperature is not near 0",
    "unscorable": "without a score: see the grader's errors and timeouts",
}


def advice(records: Sequence[Record]) -> str | None:
    """Say what keeps the last steps from teaching anything, and what to do; None while enough groups are informative.

    Args:
        records: as in ``metrics.jsonl``, oldest first; every group of a step is in one count of ``groups``.
    """
    recent = [record for record in records if record["phase"] == "rl"][-WINDOW:]
    groups = sum((Counter(record["groups"]) for record in recent), Counter[str]())
    total = groups.total()
    if groups["informative"] >= LITTLE_SIGNAL * total:
        return None
    reason = max(REASONS, key=lambda name: groups[name])
    words = (
        f"little signal: {groups['informative']} of {total} groups of the last {len(recent)} steps could be learned "
        f"from; {groups[reason]} were {REASONS[reason]}"
    )
    cut = [record.get("completions/clipped_ratio") or 0.0 for record in recent]
    return f"{words}. Most responses were cut off: raise max_completion_length" if min(cut) > MOSTLY_CUT else words
