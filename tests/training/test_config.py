import math

import pytest

from assay.errors import ConfigError
from assay.training.config import Recipe, build_recipe, plan, read_settings, setting_names


def refuse(settings: dict, *fragments: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_recipe(settings, place="here.toml")
    message = str(caught.value)
    assert message.startswith("here.toml: ") and "\n" not in message
    for fragment in fragments:
        assert fragment in message


def test_the_seed_plan_is_the_default():
    recipe = Recipe()
    budget = plan(recipe)
    assert (recipe.seed, recipe.warmup.steps, recipe.rl.steps, recipe.rl.beta) == (29, 40, 100, 0.03)
    assert budget.responses_per_step == 5 * 8
    assert budget.training_trajectories == 100 * 40 == 4000
    assert budget.visits_per_problem == (100 * 5 // 20,) * 2 == (25, 25)
    assert budget.trajectories_per_problem == (25 * 8,) * 2 == (200, 200)
    assert budget.evaluation_samples == 3 * 2 * recipe.evaluation.samples


def test_the_cycle_visits_every_problem_as_often_as_planned():
    """Count the visits of all 100 steps, and of runs that stop within a cycle."""
    for steps in (1, 2, 3, 4, 7, 100):
        recipe = build_recipe({"rl": {"steps": steps}}, place="test")
        visits = [0] * recipe.task.train_problems
        for step in range(steps):
            batch = recipe.batch(step)
            assert batch == [(5 * step + i) % 20 for i in range(5)]
            for problem in batch:
                visits[problem] += 1
        assert (min(visits), max(visits)) == plan(recipe).visits_per_problem


@pytest.mark.parametrize(("wrong", "meant"), [("betaa", "rl.beta"), ("learning_rat", "rl.learning_rate")])
def test_an_unknown_key_suggests_the_nearest(wrong, meant):
    refuse({"rl": {wrong: 1}}, f"unknown setting rl.{wrong}", f"did you mean {meant}?")


def test_a_key_like_no_other_lists_what_there_is():
    refuse({"zzz": {}}, "unknown setting zzz", "rl.beta")


@pytest.mark.parametrize(
    ("settings", "fragments"),
    [
        ({"rl": {"beta": -0.1}}, ["rl.beta = -0.1", "greater than or equal to 0"]),
        ({"rl": {"beta": math.nan}}, ["rl.beta = nan", "finite"]),
        ({"rl": {"learning_rate": 0}}, ["rl.learning_rate = 0", "greater than 0"]),
        ({"rl": {"learning_rate": math.inf}}, ["rl.learning_rate = inf", "finite"]),
        ({"rl": {"steps": -1}}, ["rl.steps = -1"]),
        ({"rl": {"steps": "many"}}, ["rl.steps = 'many'"]),
        ({"rl": {"estimator": "grpo"}}, ["rl.estimator = 'grpo'", "rloo", "exact"]),
        ({"rl": {"steps": 10**6 + 1}}, ["rl.steps = 1000001", "less than or equal to 1000000"]),
        ({"policy": {"width": 4098}}, ["policy.width = 4098", "less than or equal to 4096"]),
        ({"seed": 2**32}, ["seed = 4294967296"]),
        ({"seed": -1}, ["seed = -1"]),
        ({"rl": {"num_generations": 1}}, ["rl.num_generations = 1", "use 2 or more"]),
        ({"rl": {"estimator": "exact"}}, ["rl.num_generations = 8 would do nothing", "set it to 0"]),
        ({"rl": {"problems_per_step": 3}}, ["problems_per_step = 3", "train_problems = 20", "use a divisor"]),
        ({"policy": {"width": 15}}, ["policy.width = 15", "2 heads"]),
        ({"rl": 3}, ["rl = 3"]),
    ],
)
def test_values_out_of_range_and_contradictions_name_value_place_and_remedy(settings, fragments):
    refuse(settings, *fragments)


def test_a_recipe_cannot_be_changed_once_made():
    with pytest.raises(ValueError, match="frozen"):
        Recipe().seed = 3


def test_every_setting_explains_itself():
    assert "rl.beta" in setting_names()
    for section in [Recipe, *(field.annotation for field in Recipe.model_fields.values() if "Config" in str(field))]:
        for name, field in section.model_fields.items():
            assert field.description or "Config" in str(field.annotation), name


@pytest.mark.parametrize("content", [b"seed = ", b"\xff\xfe", b"a = 1\na = 2"])
def test_a_file_that_is_not_toml_is_named(tmp_path, content):
    path = tmp_path / "recipe.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="recipe.toml: not valid TOML"):
        read_settings(path)


def test_a_missing_file_or_a_directory_is_named(tmp_path):
    with pytest.raises(ConfigError, match="cannot read the recipe"):
        read_settings(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="cannot read the recipe"):
        read_settings(tmp_path)
