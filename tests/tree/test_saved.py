"""A world that goes through a file must be the same world, and a file that is none must be refused."""

import dataclasses
import json

import pytest
import torch

from assay.errors import InputError
from assay.tree.saved import find_world, read_world, world_record
from assay.tree.world import default_world
from assay.tree.worlds import far_world, small_world, tool_world

WORLDS = {
    "default": default_world(),
    "off policy": default_world(off_policy=True),
    "tools": tool_world(),
    "a sampler that differs": far_world(),
    "full length": small_world(end=None),
    "one token, truncated or not": small_world(max_length=1, end=0),
    "a sampler without support": tuple(
        dataclasses.replace(problem, logits_sampler=problem.logits.masked_fill(problem.logits < -1, float("-inf")))
        for problem in small_world()
    ),
}


@pytest.mark.parametrize("name", WORLDS)
def test_a_world_comes_back_as_it_was(name, tmp_path):
    path, world = tmp_path / "world.json", WORLDS[name]
    path.write_text(json.dumps(world_record(world)))
    again = read_world(path)
    for before, after in zip(world, again, strict=True):
        assert before.name == after.name
        for field in ("logits", "logits_ref", "logits_old", "reward", "sampler_logp", "mask", "scored", "value"):
            assert torch.equal(getattr(before, field), getattr(after, field)), field
        for field in ("parent", "token", "inner", "allowed", "path", "mask", "truncated"):
            assert torch.equal(getattr(before.tree, field), getattr(after.tree, field)), field


def test_the_order_of_prefixes_and_responses_in_a_file_does_not_matter(tmp_path):
    world = small_world()
    record = world_record(world)
    for problem in record["problems"]:
        for names in (("prefixes", "allowed", "logits", "logits_ref", "logits_old", "critic"), ("responses", "reward")):
            for name in names:
                problem[name] = problem[name][::-1]
    path = tmp_path / "world.json"
    path.write_text(json.dumps(record))
    assert torch.equal(read_world(path)[0].logits, world[0].logits)
    assert torch.equal(read_world(path)[1].reward, world[1].reward)


def broken(change):
    record = world_record(small_world())
    change(record["problems"][0])
    return json.dumps(record)


BAD = {
    "no JSON": ("{", "cannot be read as JSON"),
    "something else": ("[1, 2]", "the file: Input should be"),
    "another format": ('{"format": "assay-world-9", "problems": []}', "format: Input should be 'assay-world-1'"),
    "no problem": ('{"format": "assay-world-1", "problems": []}', "problems: List should have at least 1 item"),
    "deeply nested": ("[" * 100_000, "cannot be read as JSON"),
    "no logits": (broken(lambda p: p.pop("logits")), "problems.0.logits: Field required"),
    "an unknown key": (broken(lambda p: p.update(logit=1)), "problems.0.logit: Extra inputs"),
    "a reward too few": (broken(lambda p: p["reward"].pop()), "each response once, and a reward for each"),
    "a response twice": (
        broken(lambda p: (p["responses"].append(p["responses"][0]), p["reward"].append(0.0))),
        "each response once",
    ),
    "a response that is none": (
        broken(lambda p: p["responses"].__setitem__(0, [2, 2, 2])),
        r"response \[0\] is in the",
    ),
    "a prefix too few": (
        broken(lambda p: [p[name].pop() for name in ("prefixes", "allowed", "logits", "logits_ref", "logits_old")]),
        "no row for the prefix",
    ),
    "a prefix twice": (broken(lambda p: p["prefixes"].__setitem__(1, [])), "each prefix once"),
    "rows of another width": (broken(lambda p: p.update(logits=[[0.0]] * 3)), "logits needs one row a prefix, of 3"),
    "a policy that never": (broken(lambda p: p["logits_ref"][0].__setitem__(0, None)), "logits_ref.0.0: Input should"),
    "a reward that is NaN": (
        broken(lambda p: p["reward"].__setitem__(0, float("nan"))),
        "reward.0: Input should be a f",
    ),
    "a huge vocabulary": (broken(lambda p: p.update(tokens=10**30)), "tokens: Input should be less than"),
    "a sampler without a token": (
        broken(lambda p: p.update(logits_sampler=[[None] * 3] * 3)),
        "logits_sampler leaves no token",
    ),
    "an environment with a choice": (broken(lambda p: p.update(observed=[True] * 3)), "a single token may follow"),
    "observations too few": (broken(lambda p: p.update(observed=[True])), "observed needs one entry a prefix"),
    "numbers for truths": (broken(lambda p: p.update(observed=[0, 1, 0])), "observed.0: Input should be a valid bool"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_no_world_is_refused(name, tmp_path):
    text, message = BAD[name]
    path = tmp_path / "world.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_world(path)


def test_problems_of_different_vocabularies_are_refused(tmp_path):
    record = world_record(small_world()[:1] + small_world(tokens=2)[1:])
    path = tmp_path / "world.json"
    path.write_text(json.dumps(record))
    with pytest.raises(InputError, match="vocabularies of different sizes"):
        read_world(path)


def test_worlds_are_found_by_name_or_path(tmp_path):
    assert torch.equal(find_world("default", off_policy=True)[0].logits_old, WORLDS["off policy"][0].logits_old)
    assert find_world("tools")[0].observed is not None
    with pytest.raises(InputError, match="no such file, and the worlds with a name are default, small"):
        find_world("tiny")
    with pytest.raises(InputError, match="only the default world is made off-policy"):
        find_world("tools", off_policy=True)
