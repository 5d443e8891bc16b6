"""The seed's gradient audit: over the whole tree of one problem, is the gradient that is followed the right one?

A random float64 policy and its frozen reference come from one seed; then 0.1 is added to one coordinate of the
policy's head so that the two differ. That is a disturbance to test the formula, not an optimizer step. Over all
100 trajectories:

    direct   J = Σ_y p(y) (r(y) - beta (logp(y) - logp_ref(y))), differentiated straight through
    score    S = Σ_y sg[p(y)] sg[r(y) - beta (logp(y) - logp_ref(y))] logp(y)
    control  the same sum without the stop-gradients: Σ_y p(y) F(y) logp(y), which must be rejected

Direct and score share the path scorer, so a second scorer (token by token, as the sampler reads), a check of
the grammar's support and the sum of probabilities stand beside them.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from assay.core.digest import weights_digest
from assay.policies.sampling import score_stepwise
from assay.policies.transformer import TinyTransformer
from assay.tasks.chain import (
    DIGITS,
    PROMPT_LENGTH,
    RESPONSE_LENGTH,
    VOCABULARY,
    Problem,
    draw_splits,
    encode_prompts,
    tree_rewards,
)
from assay.tree.objectives import penalised_reward
from assay.tree.trajectories import all_responses, tree_logp
from assay.verdicts import Claim, Verdict

SEED = 919
BETA = 0.03
DISTURBANCE = 0.1
TOLERANCE = 1e-12
REJECTION = 1e-3
LIMITS = (
    "One sampled gradient is not the expected one, and the step after clipping and AdamW is not the gradient.",
    "The equality is shown for this tree at this point; in general it follows from the score having mean zero.",
)


def audit() -> dict[str, Any]:
    """Check the score-function gradient against the direct one in every tensor, over all 100 trajectories.

    No optimizer is made and no checkpoint is read.

    Returns:
        A record of plain values, ready for JSON: ``problem``, ``trajectories``, ``tolerance``, ``tensors`` (17 of
        ``name``, ``direct_l2_norm``, ``max_absolute_error``), ``max_absolute_error``, ``probability_sum_error``,
        ``scorer_error`` (path scorer against the token-by-token one, nats), ``support`` (the trajectories'
        grammar), ``negative_control`` (``status`` is ``"REJECTED"`` when the wrong surrogate was caught),
        ``model_unchanged``, ``training_performed``, ``holds``, and ``limits`` (what this does not show).
    """
    problem = draw_splits(SEED, train=1, test=1)["train"][0]
    policy, reference = _disturbed_pair()
    before = [weights_digest(weights.named_parameters()) for weights in (policy, reference)]
    parameters = dict(policy.named_parameters())
    prompt = encode_prompts((problem,))
    responses = all_responses(DIGITS, RESPONSE_LENGTH)
    reward = tree_rewards((problem,)).double()

    logp = tree_logp(policy, prompt, tokens=DIGITS, depth=RESPONSE_LENGTH)
    with torch.no_grad():
        logp_ref = tree_logp(reference, prompt, tokens=DIGITS, depth=RESPONSE_LENGTH)
        stepwise = score_stepwise(policy, prompt.expand(len(responses), -1), responses).sum(1)
    returns = reward - BETA * (logp - logp_ref)

    def gradient(objective: Float[Tensor, ""]) -> dict[str, Tensor]:
        values = torch.autograd.grad(objective, tuple(parameters.values()), retain_graph=True)
        return dict(zip(parameters, values, strict=True))

    direct = gradient(penalised_reward(logp, logp_ref, reward, beta=BETA).sum())
    surrogate = gradient((logp.exp().detach() * returns.detach() * logp).sum())
    control = gradient((logp.exp() * returns * logp).sum())

    def errors(other: dict[str, Tensor]) -> dict[str, float]:
        return {name: float((direct[name] - other[name]).abs().max()) for name in parameters}

    by_tensor = errors(surrogate)
    error, control_error = max(by_tensor.values()), max(errors(control).values())
    tensors = [
        {"name": name, "direct_l2_norm": float(direct[name].norm()), "max_absolute_error": by_tensor[name]}
        for name in parameters
    ]
    mass_error = abs(float(logp.detach().exp().sum()) - 1)
    scorer_error = float((logp.detach()[0] - stepwise).abs().max())
    support = _support(problem, responses.tolist(), policy(prompt))
    unchanged = [weights_digest(weights.named_parameters()) for weights in (policy, reference)] == before
    rejected = control_error > REJECTION
    return {
        "seed": SEED,
        "beta": BETA,
        "problem": problem.prompt,
        "trajectories": len(responses),
        "tolerance": TOLERANCE,
        "tensors": tensors,
        "max_absolute_error": error,
        "probability_sum_error": mass_error,
        "scorer_error": scorer_error,
        "support": support,
        "negative_control": {
            "surrogate": "sum of p F logp without stop-gradients",
            "status": "REJECTED" if rejected else "ACCEPTED",
            "max_absolute_gradient_error": control_error,
            "rejection_threshold": REJECTION,
        },
        "model_unchanged": unchanged,
        "training_performed": False,
        "holds": bool(
            max(error, mass_error, scorer_error) <= TOLERANCE and support["complete"] and rejected and unchanged
        ),
        "limits": list(LIMITS),
    }


def claims(record: dict[str, Any]) -> list[Claim]:
    """Return the audit's record as claims, each with its verdict and what it was measured by."""
    control = record["negative_control"]
    worst = max(record["tensors"], key=lambda row: row["max_absolute_error"])
    tolerance = record["tolerance"]

    def claim(name: str, held: bool, detail: str) -> Claim:
        return Claim(name, Verdict.HOLDS if held else Verdict.DISAGREES, detail)

    return [
        claim(
            "score gradient = direct gradient",
            record["max_absolute_error"] <= tolerance,
            f"largest difference {record['max_absolute_error']:.2e} in {worst['name']}, over "
            f"{len(record['tensors'])} tensors and {record['trajectories']} trajectories (tolerance {tolerance:.0e})",
        ),
        claim(
            "negative control rejected",
            control["status"] == "REJECTED",
            f"without stop-gradients the gradient is off by {control['max_absolute_gradient_error']:.3g} "
            f"(must exceed {control['rejection_threshold']:.0e})",
        ),
        claim(
            "probabilities sum to one",
            record["probability_sum_error"] <= tolerance,
            f"off by {record['probability_sum_error']:.2e}",
        ),
        claim(
            "independent scorer agrees",
            record["scorer_error"] <= tolerance,
            f"token by token, as the sampler reads: off by {record['scorer_error']:.2e} nats",
        ),
        claim(
            "grammar support",
            record["support"]["complete"],
            f"{record['support']['distinct']} distinct two-digit responses, {record['support']['right']} right",
        ),
        claim("weights unchanged", record["model_unchanged"], "byte for byte; no optimizer was made"),
    ]


def _disturbed_pair() -> tuple[TinyTransformer, TinyTransformer]:
    """Return the policy and its reference: equal but for one coordinate of the head."""
    policy = TinyTransformer(
        vocabulary=len(VOCABULARY),
        responses=DIGITS,
        context=PROMPT_LENGTH + RESPONSE_LENGTH - 1,
        width=16,
        heads=2,
        feedforward=32,
        seed=SEED,
        dtype=torch.float64,
    )
    reference = copy.deepcopy(policy).requires_grad_(False)
    with torch.no_grad():
        policy.head.weight[0, 0] += DISTURBANCE
    return policy, reference


def _support(problem: Problem, responses: list[list[int]], logits: Float[Tensor, "1 S V"]) -> dict[str, Any]:
    """Check that the responses are the two-digit strings, each once, one right, and the policy gives digits alone."""
    digits_alone = logits.shape[-1] == DIGITS and bool(logits.isfinite().all())
    expected = {(first, second) for first in range(DIGITS) for second in range(DIGITS)}
    distinct = {tuple(response) for response in responses}
    right = sum(problem.verify(tuple(response)).status == "right" for response in responses)
    return {
        "distinct": len(distinct),
        "right": right,
        "complete": distinct == expected and len(responses) == len(expected) and right == 1 and digits_alone,
    }
