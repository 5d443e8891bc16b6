"""TRL 1.16 at the log-prob boundary: what each setting ascends, against enumeration and closed forms."""

import dataclasses
import importlib.metadata
import itertools
import math

import pytest
import torch

from assay.audit.adapters.trl import SUBJECTS
from assay.audit.call import make_batch, slope
from assay.audit.check import SubjectError
from assay.audit.expectation import Design, expected_ascent
from assay.core.streams import Stream, normals
from assay.errors import ConfigError
from assay.tree.fields import field
from assay.tree.prefix import Grammar, prefix_tree
from assay.tree.world import TreeProblem

TREE = prefix_tree(Grammar(tokens=2, max_length=3, end=0))
"""Four responses of one to three tokens, the longest ones ended or truncated."""


def draw(address, scale=1.0):
    """Logits of a policy over the tree."""
    shape = (len(TREE.inner), 2)
    return scale * normals(3, Stream.INIT, shape[0] * shape[1], problem=address).view(shape)


def world(moved=0.0, sampler=None):
    """Two problems: binary rewards and graded ones, a reference that differs, and, when moved, an older policy."""
    made = []
    for number, reward in enumerate(([1.0, 0.0, 0.0, 1.0], [0.1, 0.0, 0.5, 0.3])):
        logits = draw(5 * number)
        old = logits + draw(5 * number + 2, moved)
        drawn = None if sampler is None else logits + draw(5 * number + 3, sampler)
        paid = torch.tensor(reward, dtype=torch.float64)
        problem = TreeProblem(f"problem {number}", TREE, logits, logits + draw(5 * number + 1, 0.8), old, paid, drawn)
        made.append(problem)
    return tuple(made)


BESSEL = 1e-7
"""TRL divides counts of responses in float32: 4/3 is off by 3e-8."""
WORLD, OFF_POLICY, SAMPLED = world(), world(moved=0.4), world(sampler=0.1)
UNPAID = tuple(dataclasses.replace(problem, reward=torch.zeros_like(problem.reward)) for problem in WORLD)


def ascent(name, size=2, world=WORLD, prompts=1, **settings):
    """Expected update of a TRL subject, meaned over the problems."""
    return ascent_of(SUBJECTS[name]({key: str(value) for key, value in settings.items()}).loss, size, world, prompts)


def ascent_of(loss, size=2, world=WORLD, prompts=1):
    """Expected update of any loss."""
    nothing = torch.zeros(sum(problem.logits.numel() for problem in world), dtype=torch.float64)
    return expected_ascent(loss, world, Design((size,) * len(world), prompts), nothing).ascent


def gradient(name, world=WORLD):
    """Gradient of an objective, meaned over the problems."""
    return torch.cat([field(name, problem) for problem in world]) / len(world)


def same(made, expected, tolerance=1e-12):
    """Both are one field, to rounding."""
    error = float((made - expected).norm() / expected.norm())
    assert error < tolerance, f"relative error {error:.2g}"


def differ(made, expected, least=1e-2):
    """They are not, by far."""
    assert float((made - expected).norm() / expected.norm()) > least


def centred(reward, scale=True):
    """Rewards less their mean, over the sample's standard deviation plus 1e-4 when asked, for one group."""
    made = reward - reward.mean()
    return made / (reward.std() + 1e-4) if scale else made


# --- RLOO


@pytest.mark.parametrize("size", [2, 3])
def test_rloo_is_the_gradient_of_reward_less_the_kl_of_the_sequence(size):
    same(ascent("trl.rloo", size), gradient("reward") - 0.05 * gradient("kl"))
    same(ascent("trl.rloo", size, beta=0.3), gradient("reward") - 0.3 * gradient("kl"))


def test_rloo_weighs_by_the_whole_ratio_and_stays_unbiased_off_policy_until_it_clips():
    exact = gradient("reward", OFF_POLICY)
    same(ascent("trl.rloo", world=OFF_POLICY, beta=0, epsilon=1000), exact)
    differ(ascent("trl.rloo", world=OFF_POLICY, beta=0), exact)


def test_rloo_clips_the_reward_before_the_kl():
    clipped = tuple(dataclasses.replace(problem, reward=problem.reward.clamp(0.05, 0.2)) for problem in WORLD)
    expected = gradient("reward", clipped) - 0.05 * gradient("kl")
    same(ascent("trl.rloo", reward_clip_range="0.05,0.2"), expected)


def test_rloo_with_normalised_advantages_is_biased():
    differ(ascent("trl.rloo", normalize_advantages="true"), gradient("reward") - 0.05 * gradient("kl"))


def test_rloo_accumulates_to_the_same_step():
    whole = ascent("trl.rloo", 4)
    same(ascent("trl.rloo", 4, gradient_accumulation_steps=2), whole)
    same(ascent("trl.rloo", 4, gradient_accumulation_steps=4, steps_per_generation=2), whole)


def test_rloo_cannot_leave_out_what_the_environment_said():
    batch = make_batch(WORLD, [(0, torch.tensor([2, 3]))])
    spoken = dataclasses.replace(batch, mask=batch.mask.clone().index_fill_(1, torch.tensor([0]), 0.0))
    with pytest.raises(SubjectError, match="cannot leave out"):
        slope(SUBJECTS["trl.rloo"]({}).loss, spoken)


# --- GRPO: reductions


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(("length", "divisor"), [({}, 512), ({"max_completion_length": 3}, 3)])
def test_dr_grpo_without_scaling_is_the_gradient_of_reward_shrunk(size, length, divisor):
    made = ascent("trl.grpo", size, loss_type="dr_grpo", scale_rewards="none", **length)
    same(made, (size - 1) / (size * divisor) * gradient("reward"))


@pytest.mark.parametrize("size", [2, 3])
def test_scaling_by_the_group_reweighs_a_binary_problem_by_the_closed_form(size):
    easy = WORLD[0]
    p = float((easy.tree.token_logp(easy.logits).sum(1).exp() * easy.reward).sum())
    weight = 0.0
    for k in range(1, size):
        deviation = math.sqrt(k * (size - k) / (size * (size - 1))) + 1e-4
        chance = math.comb(size, k) * p**k * (1 - p) ** (size - k)
        weight += chance * k * (size - k) / (size**2 * p * (1 - p) * deviation)
    made = ascent("trl.grpo", size, world=(easy,), loss_type="dr_grpo", max_completion_length=1)
    same(made, weight * field("reward", easy))


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_luspo_is_unbiased_up_to_its_own_sample_in_the_baseline(level):
    made = ascent("trl.grpo", 3, loss_type="luspo", scale_rewards="none", importance_sampling_level=level)
    same(made, 2 / 3 * gradient("reward"))


def seq_mean(logp, reward, mask):
    """Token mean of each response, then the mean of those."""
    adv = centred(reward)
    return -(adv * torch.where(mask > 0, logp, 0.0).sum(1) / mask.sum(1)).mean()


def token_mean(logp, reward, mask):
    """One mean over all tokens."""
    adv = centred(reward)
    return -(adv[:, None] * torch.where(mask > 0, logp, 0.0)).sum() / mask.sum()


def test_grpo_is_its_formula_and_no_gradient_of_reward():
    made = ascent("trl.grpo", 3, loss_type="grpo")
    same(made, ascent_of(seq_mean, 3))
    stated = gradient("reward")
    differ(made, float(made @ stated / (stated @ stated)) * stated)


@pytest.mark.parametrize("loss_type", ["dapo", "bnpo"])
def test_dapo_and_bnpo_are_a_ratio_of_token_sums(loss_type):
    made = ascent("trl.grpo", 3, loss_type=loss_type)
    same(made, ascent_of(token_mean, 3))
    stated = gradient("reward")
    differ(made, float(made @ stated / (stated @ stated)) * stated)


def test_the_bias_of_dapos_ratio_shrinks_with_the_batch():
    easy = WORLD[0]

    def bias(size):
        made = ascent("trl.grpo", size, world=(easy,), scale_rewards="none")
        length = field("reward", easy)
        return float((made - float(made @ length / (length @ length)) * length).norm() / made.norm())

    assert bias(8) < bias(4) < bias(2)


@pytest.mark.parametrize(
    ("settings", "base"),
    [
        ({"loss_type": "grpo", "importance_sampling_level": "sequence"}, "grpo"),
        ({"loss_type": "sapo"}, "grpo"),
        ({"loss_type": "vespo"}, "dapo"),
        ({"loss_type": "cispo", "epsilon_high": 5}, "dapo"),
        ({"loss_type": "dapo", "delta": 2}, "dapo"),
    ],
)
def test_at_the_first_step_these_are_one_estimator(settings, base):
    same(ascent("trl.grpo", 3, **settings), ascent("trl.grpo", 3, loss_type=base))


def test_cispo_without_its_cap_weighs_everything_by_epsilon():
    same(ascent("trl.grpo", loss_type="cispo"), 0.2 * ascent("trl.grpo", loss_type="dapo"))
    same(ascent("trl.grpo", loss_type="cispo", epsilon=0.3), 0.3 * ascent("trl.grpo", loss_type="dapo"))


# --- GRPO: advantages


def test_scaling_by_the_batch_divides_by_one_deviation():
    def batch_scaled(logp, reward, mask, group):
        mean = torch.stack([reward[group == number].mean() for number in group])
        adv = (reward - mean) / (reward.std() + 1e-4)
        return -(adv * torch.where(mask > 0, logp, 0.0).sum(1)).mean() / 512

    made = ascent("trl.grpo", 2, prompts=2, loss_type="dr_grpo", scale_rewards="batch")
    same(made, ascent_of(batch_scaled, 2, prompts=2), BESSEL)


def test_normalising_then_summing_whitens_the_whole_batch_again():
    def whitened(logp, reward, mask, group):
        each = torch.cat([centred(reward[group == number]) for number in group.unique()])
        adv = (each - each.mean()) / (each.std() + 1e-4)
        return -(adv * torch.where(mask > 0, logp, 0.0).sum(1)).mean() / 512

    made = ascent("trl.grpo", 2, prompts=2, loss_type="dr_grpo", multi_objective_aggregation="normalize_then_sum")
    same(made, ascent_of(whitened, 2, prompts=2), BESSEL)


def test_truncated_responses_leave_the_loss_and_stay_in_the_baseline():
    def masked(logp, reward, mask, truncated):
        adv = reward - reward.mean()
        kept = (mask > 0) & ~truncated[:, None]
        return -(adv[:, None] * torch.where(kept, logp, 0.0)).sum() / (2 * 512)

    settings = {"loss_type": "dr_grpo", "scale_rewards": "none", "mask_truncated_completions": "true"}
    same(ascent("trl.grpo", **settings), ascent_of(masked))


# --- GRPO: KL and entropy


@pytest.mark.parametrize(
    ("settings", "name"),
    [({}, "frozen_kl"), ({"use_bias_correction_kl": "false"}, "frozen_forward_kl")],
    ids=["k3 times the ratio", "plain k3"],
)
def test_k3_in_the_loss_is_a_frozen_state_kl_of_this_direction(settings, name):
    made = ascent("trl.grpo", world=UNPAID, loss_type="dr_grpo", max_completion_length=1, beta=0.1, **settings)
    same(made, -0.1 * gradient(name))
    differ(made, -0.1 * gradient("kl"))


def test_at_sequence_level_the_ratio_on_the_kl_adds_a_spurious_term():
    settings = {"loss_type": "dr_grpo", "max_completion_length": 1, "beta": 0.1}
    made = ascent("trl.grpo", world=UNPAID, importance_sampling_level="sequence", **settings)
    differ(made, -0.1 * gradient("frozen_kl"))
    plain = ascent(
        "trl.grpo",
        world=UNPAID,
        importance_sampling_level="sequence",
        use_bias_correction_kl="false",
        **settings,
    )
    same(plain, -0.1 * gradient("frozen_forward_kl"))


def test_the_entropy_bonus_is_a_mean_over_tokens():
    def bonus(logits, mask):
        every = logits.log_softmax(-1)
        return 0.1 * (torch.where(mask > 0, (every.exp() * every).sum(-1), 0.0)).sum() / mask.sum()

    made = ascent("trl.grpo", world=UNPAID, loss_type="dr_grpo", entropy_coef=0.1)
    same(made, ascent_of(bonus, world=UNPAID))


def test_a_quantile_of_one_half_trains_on_the_tokens_above_the_median_entropy():
    def above(logits, logp, reward, mask):
        adv = centred(reward, scale=False)
        every = logits.detach().log_softmax(-1)
        entropy = -(every.exp() * every).sum(-1)
        kept = (mask > 0) & (entropy.float() >= entropy[mask > 0].float().quantile(0.5))
        return -(adv[:, None] * torch.where(kept, logp, 0.0)).sum() / (2 * 512)

    made = ascent("trl.grpo", loss_type="dr_grpo", scale_rewards="none", top_entropy_quantile=0.5)
    same(made, ascent_of(above), 1e-9)


# --- GRPO: off-policy


def test_aligned_steps_take_the_ratio_as_one_whoever_drew_the_responses():
    def fresh(logp, reward, mask):
        return -((reward - reward.mean()) * torch.where(mask > 0, logp, 0.0).sum(1)).mean() / 512

    settings = {"loss_type": "dr_grpo", "scale_rewards": "none"}
    same(ascent("trl.grpo", world=OFF_POLICY, **settings), ascent_of(fresh, world=OFF_POLICY))


@pytest.mark.parametrize("settings", [{"num_iterations": 2}, {"steps_per_generation": 2}], ids=str)
def test_misaligned_steps_clip_the_ratio_to_the_older_policy(settings):
    def clipped(logp, logp_old, reward, mask):
        adv = (reward - reward.mean())[:, None]
        ratio = torch.where(mask > 0, (logp - logp_old).exp(), 0.0)
        terms = torch.minimum(ratio * adv, ratio.clamp(0.8, 1.2) * adv)
        return -torch.where(mask > 0, terms, 0.0).sum() / (2 * 512)

    made = ascent("trl.grpo", world=OFF_POLICY, loss_type="dr_grpo", scale_rewards="none", **settings)
    expected = ascent_of(clipped, world=OFF_POLICY)
    same(made, expected / settings.get("steps_per_generation", 1) * settings.get("steps_per_generation", 1))
    differ(made, ascent("trl.grpo", world=OFF_POLICY, loss_type="dr_grpo", scale_rewards="none"))


def test_delta_caps_the_ratio_of_bad_responses():
    def capped(logp, logp_old, reward, mask):
        adv = (reward - reward.mean())[:, None]
        ratio = torch.where(mask > 0, (logp - logp_old).exp(), 0.0)
        terms = torch.minimum(ratio.clamp(max=1.3) * adv, ratio.clamp(0.8, 1.2) * adv)
        return -torch.where(mask > 0, terms, 0.0).sum() / (2 * 512)

    settings = {"loss_type": "dr_grpo", "scale_rewards": "none", "num_iterations": 2, "delta": 1.3}
    same(ascent("trl.grpo", world=OFF_POLICY, **settings), ascent_of(capped, world=OFF_POLICY))


def test_the_samplers_weight_is_exact_until_a_ratio_passes_the_cap():
    settings = {"loss_type": "dr_grpo", "scale_rewards": "none", "max_completion_length": 1}
    exact = gradient("reward") / 2
    differ(ascent("trl.grpo", world=SAMPLED, **settings), exact)
    same(ascent("trl.grpo", world=SAMPLED, use_vllm="true", **settings), exact)
    low = ascent("trl.grpo", world=SAMPLED, use_vllm="true", vllm_importance_sampling_clip_max=1.01, **settings)
    differ(low, exact)


# --- GRPO: accumulation


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo", "luspo"])
@pytest.mark.parametrize(
    "split",
    [
        {"gradient_accumulation_steps": 2},
        {"gradient_accumulation_steps": 2, "steps_per_generation": 1},
        {"gradient_accumulation_steps": 4, "steps_per_generation": 2},
    ],
    ids=str,
)
def test_a_step_does_not_depend_on_how_it_is_accumulated(loss_type, split):
    same(ascent("trl.grpo", loss_type=loss_type, **split), ascent("trl.grpo", loss_type=loss_type))


def test_bnpo_depends_on_how_it_is_accumulated():
    split = ascent("trl.grpo", loss_type="bnpo", gradient_accumulation_steps=2)
    differ(split, ascent("trl.grpo", loss_type="bnpo"))
    same(split, ascent("trl.grpo", loss_type="grpo"))  # micro-batches of one response each


def test_a_shuffle_is_meaned_over_every_way_to_deal_the_rows():
    def dealt(logp, reward, mask):
        terms = -centred(reward)[:, None] * torch.where(mask > 0, logp, 0.0)
        pairs = [list(pair) for pair in itertools.combinations(range(4), 2)]
        return torch.stack([terms[pair].sum() / mask[pair].sum() for pair in pairs]).mean()

    easy = (WORLD[0],)
    made = ascent("trl.grpo", 4, world=easy, loss_type="bnpo", gradient_accumulation_steps=2)
    same(made, ascent_of(dealt, 4, world=easy), BESSEL)


# --- batches


def test_rows_may_come_in_any_order_and_under_any_padding():
    loss = SUBJECTS["trl.grpo"]({}).loss
    batch = make_batch(WORLD, [(0, torch.tensor([0, 3, 2])), (1, torch.tensor([1, 2, 3]))])
    base = slope(loss, batch)
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    torch.testing.assert_close(slope(loss, batch.take(order)), base[order], rtol=0, atol=1e-15)
    padded = dataclasses.replace(batch, padding=float("nan"))
    torch.testing.assert_close(slope(loss, padded), base, rtol=0, atol=0)


def test_groups_of_two_sizes_could_not_run():
    batch = make_batch(WORLD, [(0, torch.tensor([0, 3, 2])), (1, torch.tensor([1, 2]))])
    with pytest.raises(SubjectError, match=r"all of one size, these have \[3, 2\]"):
        slope(SUBJECTS["trl.grpo"]({}).loss, batch)


def test_what_the_environment_says_is_not_trained_on():
    batch = make_batch(WORLD, [(0, torch.tensor([1, 2, 3]))])
    spoken = dataclasses.replace(batch, mask=batch.mask.clone().index_fill_(1, torch.tensor([1]), 0.0))
    made = slope(SUBJECTS["trl.grpo"]({"loss_type": "dr_grpo"}).loss, spoken)
    assert float(made[:, 1].abs().max()) == 0.0 and float(made[:, 0].abs().max()) > 0.0


# --- settings and versions


def test_defaults_are_trls_own():
    trl = importlib.import_module("trl")
    for name, made in (("trl.grpo", trl.GRPOConfig), ("trl.rloo", trl.RLOOConfig)):
        fields = {entry.name: entry.default for entry in dataclasses.fields(made)}
        settings = SUBJECTS[name]({}).settings
        for key in settings.keys() - {"steps_per_generation"}:
            assert settings[key] == fields[key], key
        assert settings["steps_per_generation"] == 1  # TRL derives it from gradient_accumulation_steps
    assert SUBJECTS["trl.grpo"]({}).settings["loss_type"] == "dapo"
    assert SUBJECTS["trl.rloo"]({}).objective == "reward - 0.05*kl"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss_typ": "dapo"}, "did you mean loss_type"),
        ({"learning_rate": "1"}, "it can be one of beta,"),
        ({"loss_type": "ppo"}, "'luspo'"),
        ({"scale_rewards": "prompt"}, "scale_rewards=prompt"),
        ({"beta": "much"}, "valid number"),
        ({"num_generations": "4"}, "--group-size"),
        ({"max_completion_length": "3"}, "not read without loss_type dr_grpo"),
        ({"sapo_temperature_pos": "2"}, "not read without loss_type sapo"),
        ({"vllm_importance_sampling_mode": "token_mask"}, "not read without use_vllm"),
        ({"use_bias_correction_kl": "false"}, "not read without a beta"),
        (
            {
                "use_vllm": "true",
                "vllm_importance_sampling_mode": "token_truncate",
                "vllm_importance_sampling_clip_max": "none",
            },
            "TRL refuses these settings",
        ),
    ],
    ids=str,
)
def test_a_setting_that_is_unknown_dead_or_refused_is_an_error(settings, words):
    with pytest.raises(ConfigError, match=words):
        SUBJECTS["trl.grpo"](settings)


def test_another_release_could_not_run(monkeypatch):
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.17.0" if name == "trl" else real(name))
    with pytest.raises(SubjectError, match=r"trl 1\.17\.0 is installed; this adapter was written for 1\.16"):
        SUBJECTS["trl.grpo"]({})


def test_a_missing_library_could_not_run(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(SubjectError, match="trl is not installed"):
        SUBJECTS["trl.rloo"]({})
