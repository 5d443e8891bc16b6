"""TRL 1.16 as a whole: real trainers on prescribed responses, against enumeration and against the log-prob boundary."""

import importlib

import pytest
import torch

from assay.audit.adapters.trl import SUBJECTS
from assay.audit.adapters.trl_trainer import TOLERANCE, TRAINERS
from assay.audit.check import SubjectError
from assay.audit.expectation import Design, expected_ascent
from assay.audit.gradients import by_name, next_logits, trained
from assay.errors import ConfigError
from assay.verdicts import Verdict


def subject(name, settings, **shape):
    """A trainer in the smallest world that has two lengths."""
    return TRAINERS[name]({key: str(value) for key, value in settings.items()}, **{"length": 2, **shape})


def through_the_policy(made, settings):
    """Expected update of the same settings at the log-prob boundary, pushed through the trainer's policy."""
    loss = SUBJECTS[made.name.removesuffix("_trainer")]({key: str(value) for key, value in settings.items()}).loss
    world = tuple(place.problem for place in made.problems)
    design = Design((made.group_size,) * len(world), len(world))
    nothing = torch.zeros(sum(problem.logits.numel() for problem in world), dtype=torch.float64)
    ascent = expected_ascent(loss, world, design, nothing).ascent.split([problem.logits.numel() for problem in world])
    pushed = sum(
        (next_logits(made.policy, place.prompt, place.problem.tree).flatten() * part).sum()
        for place, part in zip(made.problems, ascent, strict=True)
    )
    gradients = torch.autograd.grad(pushed, list(trained(made.policy).values()), allow_unused=True)
    return by_name(made.policy, torch.cat([part.flatten() for part in gradients]))


@pytest.mark.parametrize("size", [2, 3])
def test_rloo_holds(size):
    report = subject("trl.rloo_trainer", {}, group_size=size).audit()
    assert report.check.verdict is Verdict.HOLDS, report.check
    assert report.ascends.exact
    assert report.ascends.coefficients == pytest.approx({"reward": 1.0, "kl": -0.05}, rel=1e-4)


def test_rloo_holds_over_a_batch_of_two_prompts():
    report = subject("trl.rloo_trainer", {}, prompts=("a", "b")).audit()
    assert report.check.verdict is Verdict.HOLDS, report.check
    assert report.check.exactness.startswith("784 batches")


def test_prompts_of_unequal_length_are_scored_at_other_positions_than_they_are_sampled_at():
    made = subject("trl.rloo_trainer", {}, prompts=("a", "b b"), length=1)
    report = made.audit()
    assert report.check.verdict is Verdict.DISAGREES and report.check.error > 0.1
    model = made.policy.model.eval()
    padded, mask, alone = torch.tensor([[0, 1], [2, 2]]), torch.tensor([[0, 1], [1, 1]]), torch.tensor([[1]])
    with torch.no_grad():
        scored = model(padded, attention_mask=mask).logits[0, -1]
        truth = model(alone, attention_mask=torch.ones_like(alone)).logits[0, -1]
        sampled = model.generate(
            padded,
            attention_mask=mask,
            max_new_tokens=1,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        ).logits[0][0]
    torch.testing.assert_close(sampled.double(), truth, rtol=0, atol=1e-6)  # generation counts positions by the mask
    assert float((scored - truth).abs().max()) > 0.1  # TRL's scoring, which passes no positions, does not


def test_dr_grpo_ascends_reward_shrunk():
    made = subject("trl.grpo_trainer", {"loss_type": "dr_grpo", "scale_rewards": "none", "max_completion_length": 2})
    report = made.audit()
    assert report.check.verdict is Verdict.DISAGREES and report.check.invariant == "I1"
    assert report.ascends.exact and report.ascends.coefficients == pytest.approx({"reward": 0.25}, rel=1e-5)
    assert made.audit("0.25*reward").check.verdict is Verdict.HOLDS


@pytest.mark.parametrize(
    ("name", "settings", "size"),
    [
        ("trl.rloo_trainer", {"gradient_accumulation_steps": 2}, 2),
        ("trl.rloo_trainer", {"normalize_advantages": "true"}, 3),
        ("trl.rloo_trainer", {"mask_truncated_completions": "true"}, 2),
        *(
            ("trl.grpo_trainer", {"loss_type": loss_type}, 2)
            for loss_type in ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo", "luspo")
        ),
        ("trl.grpo_trainer", {"scale_rewards": "batch"}, 3),
        ("trl.grpo_trainer", {"loss_type": "dr_grpo", "beta": 0.2}, 2),
        ("trl.grpo_trainer", {"loss_type": "grpo", "beta": 0.2, "use_bias_correction_kl": "false"}, 2),
        ("trl.grpo_trainer", {"importance_sampling_level": "sequence", "beta": 0.2}, 2),
        ("trl.grpo_trainer", {"mask_truncated_completions": "true"}, 2),
        ("trl.grpo_trainer", {"entropy_coef": 0.1}, 2),
        ("trl.grpo_trainer", {"top_entropy_quantile": 0.5, "loss_type": "dr_grpo"}, 2),
        ("trl.grpo_trainer", {"gradient_accumulation_steps": 2}, 2),
        ("trl.grpo_trainer", {"gradient_accumulation_steps": 2, "loss_type": "bnpo"}, 2),
        ("trl.grpo_trainer", {"gradient_accumulation_steps": 2, "steps_per_generation": 1}, 2),
        ("trl.grpo_trainer", {"gradient_accumulation_steps": 1, "steps_per_generation": 2}, 2),
        ("trl.grpo_trainer", {"num_iterations": 2, "delta": 1.5}, 2),
    ],
    ids=str,
)
def test_the_whole_path_is_the_log_prob_boundary_and_nothing_more(name, settings, size):
    made = subject(name, settings, group_size=size)
    report, expected = made.audit(), through_the_policy(subject(name, settings, group_size=size), settings)
    assert report.ascent, report.check.detail
    largest = max(float(part.abs().max()) for part in expected.values())
    for parameter, part in expected.items():
        torch.testing.assert_close(report.ascent[parameter], part, rtol=0, atol=5 * TOLERANCE * largest)


def test_dapo_is_no_gradient_of_reward_in_a_world_of_three_lengths():
    report = subject("trl.grpo_trainer", {}, length=3).audit()
    assert report.check.verdict is Verdict.DISAGREES and not report.ascends.exact
    assert report.check.exactness == "120 batches: groups of 2 of 15 responses"


def test_the_weights_stay_where_they_are():
    made = subject("trl.grpo_trainer", {})
    before = {name: parameter.detach().clone() for name, parameter in made.policy.named_parameters()}
    made.audit()
    for name, parameter in made.policy.named_parameters():
        assert torch.equal(parameter, before[name])


def test_a_trainer_that_is_broken_is_caught(monkeypatch):
    trainer = importlib.import_module("trl").RLOOTrainer
    honest = trainer._compute_loss
    made = subject("trl.rloo_trainer", {})
    assert made.audit().check.verdict is Verdict.HOLDS
    monkeypatch.setattr(trainer, "_compute_loss", lambda self, model, inputs: 1.001 * honest(self, model, inputs))
    assert made.audit().check.verdict is Verdict.DISAGREES


def test_rows_that_do_not_split_could_not_run():
    with pytest.raises(SubjectError, match="3 responses cannot be split into steps_per_generation = 2"):
        subject("trl.grpo_trainer", {"gradient_accumulation_steps": 2}, group_size=3)


def test_steps_that_mix_two_generations_could_not_run():
    with pytest.raises(SubjectError, match="must divide the other"):
        subject("trl.grpo_trainer", {"gradient_accumulation_steps": 2, "steps_per_generation": 3}, group_size=3)


def test_an_unknown_setting_is_an_error():
    with pytest.raises(ConfigError, match="it can be one of"):
        subject("trl.rloo_trainer", {"max_grad_norm": 1})
