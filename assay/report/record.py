"""What a run says, as typed records. Probabilities lie in [0, 1]; KL and log-ratios are in nats a response."""

from __future__ import annotations

from dataclasses import dataclass

SPLITS = ("train", "test")
POINTS = ("init", "warmup", "rl")
RESPONSES = 100
"""Two digits: the trajectories of a problem. A policy that knows nothing is right once in so many."""
Pairs = tuple[tuple[str, str], ...]
Problems = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Settings:
    """The recipe, as far as the report speaks of it.

    Attributes:
        seed: names every random number of the run.
        estimator: ``rloo``, ``exact``, or another name.
        generations: responses a problem and step; 0 where none is drawn.
        problems_per_step: problems of one RL step.
        beta: weight of KL in the reward, reward per nat.
        max_grad_norm: RL gradients are clipped to this norm.
        every: every setting by its dotted name, as text.
    """

    seed: int
    estimator: str
    generations: int
    problems_per_step: int
    beta: float
    max_grad_norm: float
    every: Pairs


@dataclass(frozen=True)
class Point:
    """One set of frozen weights on one split.

    Attributes:
        success: exact mean success probability.
        kl: exact mean KL(policy to reference), nats a response.
        successes: accepted among ``trials`` independent samples.
        trials: samples drawn.
        low: lower end of the exact binomial interval.
        high: its upper end.
        level: its coverage, such as 0.95.
        problem_success: exact success, one a problem.
        problem_kl: exact KL in nats, one a problem.
    """

    success: float
    kl: float
    successes: int
    trials: int
    low: float
    high: float
    level: float
    problem_success: tuple[float, ...]
    problem_kl: tuple[float, ...]

    @property
    def missed(self) -> bool:
        """Whether the interval from the samples misses the exact value."""
        return not self.low <= self.success <= self.high


@dataclass(frozen=True)
class Exact:
    """Exact means under the weights *after* an RL step, by split: success probability, and KL in nats a response."""

    success: dict[str, float]
    kl: dict[str, float]


@dataclass(frozen=True)
class WarmupStep:
    """One supervised step; ``nll`` is the mean over problems of the full response's, in nats."""

    step: int
    nll: float


@dataclass(frozen=True)
class RLStep:
    """One on-policy step. Reward, log-ratio and return are means over its batch, *before* its update."""

    step: int
    problems: tuple[int, ...]
    strict_reward: float
    log_ratio: float
    shaped_return: float
    grad_norm: float
    clipped_grad_norm: float
    zero_signal_groups: int
    trajectories: int
    exact: Exact | None


@dataclass(frozen=True)
class Tensor:
    """One parameter tensor: its largest absolute change over RL, and its last gradient's norm before clipping."""

    name: str
    shape: tuple[int, ...]
    max_abs_change: float
    last_gradient_norm: float


@dataclass(frozen=True)
class Budget:
    """What a run takes, planned or spent; the pairs are the fewest and the most for one training problem."""

    warmup_steps: int
    rl_steps: int
    training_trajectories: int
    visits: tuple[int, int]
    trajectories_per_problem: tuple[int, int]
    evaluation_samples: int


@dataclass(frozen=True)
class Timing:
    """Wall seconds inside steps, by phase; steps timed, repeated ones included; how often the run was resumed."""

    warmup: float
    rl: float
    steps: int
    resumed: int


@dataclass(frozen=True)
class Results:
    """What a finished run was judged by.

    Attributes:
        points: by point and split.
        plan: fixed before the run.
        spent: what it took.
        zero_signal_groups: groups all of whose advantages were exactly zero.
        zero_signal_steps: RL steps with no other groups, which did not step the optimizer.
        tensors: every parameter.
        reference_digests: of the frozen reference, by when it was taken.
    """

    points: dict[str, dict[str, Point]]
    plan: Budget
    spent: Budget
    zero_signal_groups: int
    zero_signal_steps: int
    tensors: tuple[Tensor, ...]
    reference_digests: Pairs


@dataclass(frozen=True)
class Run:
    """Everything the report says comes from here; one attribute a file, but for the two phases of the history."""

    settings: Settings
    problems: Problems
    environment: Pairs
    warmup: tuple[WarmupStep, ...]
    rl: tuple[RLStep, ...]
    timing: Timing
    results: Results
    source: str
    files: Pairs

    @property
    def cycle(self) -> int:
        """RL steps in which the fixed cycle reaches every training problem once."""
        return max(1, len(self.problems["train"]) // self.settings.problems_per_step)

    def success(self, point: str, split: str) -> float:
        """Return the exact mean success probability."""
        return self.results.points[point][split].success

    def gain(self, phase: str, split: str) -> float:
        """Return what a phase, ``warmup`` or ``rl``, added to exact success."""
        return self.success(phase, split) - self.success(POINTS[POINTS.index(phase) - 1], split)
