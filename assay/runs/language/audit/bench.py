"""Where a recipe's own steps are run on prescribed or drawn responses, and what they hand to the optimizer is kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch

from assay.audit.check import SubjectError
from assay.audit.gradients import Prompted, next_logits
from assay.core.streams import Stream, normals
from assay.errors import UpdateError
from assay.policies.causal.engine import OwnEngine
from assay.policies.causal.model import CausalPolicy
from assay.policies.causal.tokens import Codec
from assay.policies.engines import Drawn, Engine
from assay.runs.language.audit.miniature import LENGTH, Miniature
from assay.runs.language.audit.plain import Plain
from assay.runs.language.audit.small import TOKENS
from assay.runs.language.audit.stand_ins import NUMBERS, Gradient, Recorder, Score, Script, Table, reward
from assay.training.language.recipe import LanguageRecipe
from assay.training.language.rollout import Rollout, encode
from assay.training.language.state import LanguageState
from assay.training.language.steps import Record, Workplace, rl_step
from assay.training.language.update import Drawing
from assay.tree.prefix import Grammar, prefix_tree
from assay.tree.world import TreeProblem
from assay.types import Response, TextProblem

PROMPTS = ((1, 1, 2), (2, 1))
"""Tokens of the two problems, of unequal length."""
FAR = 0.12
"""How far weights are moved, over the size of a standard normal."""
NO_CLIPPING = 1e300
LIVELY = 50
VARIED = 0.01
"""Smallest variance of the reward."""


@dataclass
class Bench:
    """A run's steps on a miniature, from one state to which it is always put back.

    Attributes:
        miniature: the small model.
        recipe: what is run; the miniature's, or one with a setting changed.
        state: RL at its first step, the policy already away from its reference.
        codec: of the small model.
        work: what the steps work with.
        step: which step of RL it is that is taken, from 0.
    """

    miniature: Miniature
    recipe: LanguageRecipe
    state: LanguageState
    codec: Codec
    work: Workplace
    step: int = 0

    @property
    def drawing(self) -> Drawing:
        """Return how responses are drawn."""
        return self.work.drawing

    @property
    def plain(self) -> Plain:
        """Return the policy as Transformers computes it."""
        return Plain(self.state.policy, self.drawing)

    @cached_property
    def origin(self) -> Plain:
        """Return the model as it was loaded, as Transformers computes it: what a KL should be measured from."""
        state, _ = self.miniature.state(self.recipe, reference=False)
        return Plain(state.policy, Drawing(self.drawing.temperature))

    def taken(self, *, moves: Gradient | None = None) -> tuple[list[Gradient], Record]:
        """Take a step; return the gradient of each pass, before clipping, and the step's record."""
        start = {name: value.detach().clone() for name, value in self.state.policy.trained()} if moves else {}
        recorder = Recorder(self.state.policy, moves)
        self.state.optimizer, self.state.step, self.state.version = recorder, self.step, 0
        try:
            record = rl_step(self.state, self.work)
        finally:
            put(self.state.policy, start)
        return recorder.taken, record

    def lively(self) -> Rollout:
        """Stay at the first step whose responses give a gradient, or are refused, and return them.

        Raises:
            SubjectError: none of the first ones does.
        """
        rollouts: list[Rollout] = []
        before, self.work = self.work, dataclasses.replace(self.work, on_rollout=rollouts.append)
        for self.step in range(LIVELY):
            try:
                if not self.taken()[1]["stepped"]:
                    continue
            except UpdateError:
                pass
            self.work = before
            return rollouts[-1]
        raise SubjectError(f"no batch of the first {LIVELY} gives a gradient")

    def of_groups(self, groups: list[list[Drawn]]) -> Gradient:
        """Return the gradient of the first pass on prescribed groups; empty where nothing was to be done."""
        assert isinstance(self.work.engine, Script)
        self.work.engine.groups = groups
        taken, _ = self.taken()
        return taken[0] if taken else {}


def bench(
    miniature: Miniature,
    recipe: LanguageRecipe | None = None,
    *,
    script: bool = False,
    moved: bool = True,
    only: int | None = None,
    score: Score = reward,
    reverse: bool = False,
) -> Bench:
    """Set up a run of a recipe on a miniature.

    Args:
        miniature: the small model.
        recipe: in place of its own.
        script: whether responses are prescribed; otherwise the package's engine draws them.
        moved: whether the policy is moved away from where RL began.
        only: the one problem that there is; both by default.
        score: of a response.
        reverse: whether the problems come in the other order.
    """
    chosen = recipe or miniature.recipe
    state, codec = miniature.state(chosen)
    if moved:
        put(state.policy, noise(state.policy), add=True)
    which = [only] if only is not None else [1, 0] if reverse else [0, 1]
    problems = [TextProblem(NUMBERS[place], codec.tokenizer.decode(list(PROMPTS[place]))) for place in which]
    prompts = encode(codec, problems, longest=max(map(len, PROMPTS)))
    engine: Engine = Script() if script else own_engine(state.policy, codec, chosen)
    counted = chosen.model_copy(update={"rl": chosen.rl.model_copy(update={"problems_per_step": len(problems)})})
    return Bench(miniature, counted, state, codec, Workplace(counted, problems, prompts, codec, engine, Table(score)))


def telling(miniature: Miniature) -> bool:
    """Return whether several responses of unequal rewards are likely enough on each problem for mistakes to show."""
    for place in prompted(bench(miniature, script=True)):
        chance = place.problem.sampler_logp.exp()
        mean = (chance * place.problem.reward).sum()
        if len(place.problem.drawn) < 3 or float((chance * (place.problem.reward - mean).square()).sum()) < VARIED:
            return False
    return True


def own_engine(policy: CausalPolicy, codec: Codec, recipe: LanguageRecipe) -> OwnEngine:
    """Return the package's engine as a run sets it up."""
    options = recipe.policy
    ended = codec.ended if codec.stop else None
    return OwnEngine(policy, rows=options.decode_rows, prompt_tokens=options.token_budget, ended=ended)


def noise(policy: CausalPolicy, seed: int = 1, size: float = FAR) -> Gradient:
    """Return random numbers in the shape of what is trained, by name."""
    return {
        name: size * normals(seed, Stream.INIT, value.numel(), problem=number).view(value.shape).to(value.dtype)
        for number, (name, value) in enumerate(policy.trained())
    }


@torch.no_grad()
def put(policy: CausalPolicy, values: Gradient, *, add: bool = False) -> None:
    """Write values into what is trained, or add them to it."""
    named = dict(policy.trained())
    for name, value in values.items():
        named[name].copy_(named[name] + value if add else value)


def prompted(made: Bench) -> list[Prompted]:
    """Return a bench's problems with all their responses, and what policy and reference say after each prefix.

    The probabilities are those of Transformers' own forward.
    """
    tree = prefix_tree(Grammar(TOKENS, LENGTH, end=0))
    found = []
    for problem, prompt in zip(made.work.problems, made.work.prompts, strict=True):
        asked = torch.tensor(prompt)
        with torch.no_grad():
            logits, logits_ref = (next_logits(policy, asked, tree) for policy in (made.plain, made.origin))
        sampler = logits.masked_fill(logits < -50, float("-inf"))
        responses = [
            Response(tuple(row[:length]), "") for row, length in zip(tree.responses.tolist(), tree.lengths, strict=True)
        ]
        scores = torch.tensor([reward(problem, response) for response in responses], dtype=torch.float64)
        name = f"problem {problem.number}"
        found.append(Prompted(asked, TreeProblem(name, tree, logits, logits_ref, logits, scores, sampler)))
    return found


def drawn(problem: TreeProblem, members: Iterable[int]) -> list[Drawn]:
    """Return responses of a tree as an engine would return them."""
    tree, logp = problem.tree, problem.tree.token_logp(problem.draws)
    made = []
    for row in members:
        length = int(tree.lengths[row])
        tokens, values = tree.responses[row, :length].tolist(), logp[row, :length].tolist()
        made.append(Drawn(tuple(tokens), tuple(values), bool(tree.truncated[row])))
    return made


def possible(problem: TreeProblem, members: Iterable[int]) -> bool:
    """Return whether every one of some responses can be drawn."""
    return bool((problem.sampler_logp[list(members)] > float("-inf")).all())


def norm(made: Gradient) -> float:
    """Return the norm of a whole gradient."""
    return float(sum(float(value.square().sum()) for value in made.values()) ** 0.5)


def gradient_gap(made: Gradient, expected: Gradient, *, scale: float = 0.0) -> float:
    """Return the norm of the difference over that of what is expected; infinite for a NaN. Absent is zero.

    Args:
        made: what was found.
        expected: what should have been.
        scale: the norm of a typical gradient, where what is expected may be smaller than its rounding.
    """
    zero = {name: torch.zeros_like(value) for name, value in {**made, **expected}.items()}
    far = norm({name: made.get(name, none) - expected.get(name, none) for name, none in zero.items()})
    gap = far / (max(norm(expected), scale) or 1.0)
    return gap if gap == gap else float("inf")


def worst(made: Gradient, expected: Gradient) -> str:
    """Name the weight that is furthest off."""
    name = max(made.keys() & expected.keys(), key=lambda key: float((made[key] - expected[key]).abs().max()))
    gap = (made[name] - expected[name]).abs()
    at = torch.unravel_index(gap.argmax(), gap.shape)
    return f"{name}{[int(i) for i in at]}: {float(made[name][at]):.6g}, and {float(expected[name][at]):.6g} expected"
