"""A finished language run as its report sees it: only what the page needs, every value checked when it was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from assay.report.language.measured import Bound, Comparison, FormatShare, Point

POINTS = ("base", "warmup", "rl")
SPLITS = ("train", "test")
PHASES = ("warmup", "rl", "total")
KINDS = ("informative", "all_right", "all_wrong", "all_equal", "unscorable")
CONTROLS = ("rejection", "random_reward", "format_only")
Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class RLStep:
    """What one step of RL recorded.

    Attributes:
        step: its number, from 1.
        reward: mean over the scored responses.
        log_ratio: mean log-ratio of its responses to the reference, in nats.
        entropy: of the next token, mean over the tokens that were scored, in nats; None where none was.
        grad_norm: of the raw gradient.
        clipped_grad_norm: of the one that was applied.
        length: mean number of tokens of a response.
        clipped: share of responses cut off.
        gap: largest difference of sampler and trainer in a token's log-probability, in nats; None where none was taken.
        groups: by kind.
        stepped: whether the optimizer stepped.
        test: greedy success on the test problems after it; None where it was not measured.
    """

    step: int
    reward: float
    log_ratio: float
    entropy: float | None
    grad_norm: float
    clipped_grad_norm: float
    length: float
    clipped: float
    gap: float | None
    groups: Mapping[str, int]
    stepped: bool
    test: float | None


@dataclass(frozen=True)
class WarmupStep:
    """What one supervised step recorded: the negative log-likelihood of its answers, in nats a response."""

    step: int
    nll: float


@dataclass(frozen=True)
class Settings:
    """The settings that the page speaks of, and ``every`` one as text."""

    model: str
    seed: int
    lora: int
    has_format: bool
    has_reference: bool
    problems_per_step: int
    num_generations: int
    num_iterations: int
    max_grad_norm: float
    weight_decay: float
    schedule: str
    temperature: float
    top_k: int
    top_p: float
    max_completion_length: int
    mask_truncated: bool
    engine: str
    every: Pairs


@dataclass(frozen=True)
class Ascended:
    """What the algorithm ascends, in the plan's words; ``objective`` is None where it has no closed form."""

    algorithm: str
    estimand: str
    objective: str | None
    settings: Pairs
    advice: tuple[str, ...]


@dataclass(frozen=True)
class Budget:
    """One kind of spending; ``planned`` is None where no plan fixes it."""

    name: str
    planned: int | None
    spent: int


@dataclass(frozen=True)
class Claim:
    """What a test of the grader on known answers came to."""

    name: str
    verdict: str
    detail: str
    findings: tuple[str, ...]


@dataclass(frozen=True)
class Data:
    """Where the problems came from and what the splits share.

    Attributes:
        sources: name, rows read, digest.
        sizes: problems of each split.
        digests: of each split's file.
        overlap: what was found between and within the splits, by name.
        tried: problems on which the grader was tried.
        claims: what that came to.
    """

    sources: tuple[tuple[str, int, str], ...]
    sizes: Mapping[str, int]
    digests: Mapping[str, str]
    overlap: Mapping[str, int]
    tried: int
    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class Said:
    """One response as it is shown."""

    text: str
    status: str
    truncated: bool
    greedy: bool


@dataclass(frozen=True)
class Shown:
    """A test problem, and what each point answered to it."""

    number: int
    prompt: str
    answer: str | None
    said: Mapping[str, Said]


@dataclass(frozen=True)
class Digests:
    """Digests of weights; ``reference`` has one for each time it was taken, and is empty where there was none."""

    base: str
    warmup: str | None
    policy: str
    reference: Mapping[str, str]


@dataclass(frozen=True)
class LanguageRun:
    """Everything that the page says, from the run's own files.

    Attributes:
        points: by point and split.
        gains: by split and phase; a phase that was not there has none.
        format: None where nothing was trained.
        controls: by name, each on the test problems, with RL's gain over it.
        bounds: by point, on the test problems; empty where none were asked for.
        advice: what kept the last steps from teaching anything; None where enough groups taught.
    """

    settings: Settings
    points: Mapping[str, Mapping[str, Point]]
    gains: Mapping[str, Mapping[str, Comparison]]
    format: FormatShare | None
    controls: Mapping[str, tuple[Point, Comparison]]
    bounds: Mapping[str, Bound]
    warmup: tuple[WarmupStep, ...]
    rl: tuple[RLStep, ...]
    ascended: Ascended
    budget: tuple[Budget, ...]
    advice: str | None
    data: Data
    digests: Digests
    environment: Pairs
    shown: tuple[Shown, ...]

    @property
    def last(self) -> str:
        """Return the last point that there is."""
        return list(self.points)[-1]

    @property
    def groups(self) -> dict[str, int]:
        """Return the groups of all steps by kind."""
        return {kind: sum(step.groups[kind] for step in self.rl) for kind in KINDS}
