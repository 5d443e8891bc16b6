"""What the page calls what the files name."""

from __future__ import annotations

NAMES = {"base": "Base model", "warmup": "After warm-up", "rl": "After RL"}
PHASES = {"warmup": "Warm-up", "rl": "RL", "total": "Both together"}
CONTROLS = {
    "rejection": ("Rejection", "supervised steps on what the policy before RL got right by itself"),
    "random_reward": ("Random reward", "RL on a coin in place of the grader"),
    "format_only": ("Format only", "RL on whether the response is in format"),
}
KINDS = {
    "informative": "informative: two different rewards",
    "all_right": "all right",
    "all_wrong": "all wrong",
    "all_equal": "all equal, right and others alike",
    "unscorable": "fewer than two scored responses",
}
OVERLAP = {
    "duplicates": "Rows dropped: an earlier one has the same prompt",
    "conflicting_answers": "Among these, with another answer",
    "overlap_prompts": "Training problems dropped: their prompt is a test problem's",
    "shared_keys": "Training problems dropped: a test problem has the same split_by",
    "near_duplicates": "Test problems near to a training problem with the same answer, kept",
    "prompts": "Test prompts that are training prompts, as used",
}
CLAIMS = {
    "gold": "The right answer scores",
    "corrupted": "The right answer, spoilt, does not",
    "empty": "An empty response does not",
    "other": "Another problem's answer does not",
}
