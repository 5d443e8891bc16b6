import io

import pytest
import torch

from assay.errors import CheckpointError
from assay.tasks.chain import draw_splits
from assay.training import checkpoint, loop
from assay.training.config import Recipe, build_recipe
from assay.training.state import begin_rl, start


@pytest.fixture
def state():
    made = start(Recipe())
    begin_rl(made, Recipe())
    return made


def altered(state, **changes) -> bytes:
    content = torch.load(io.BytesIO(checkpoint.to_bytes(state)), weights_only=True)
    for key, value in changes.items():
        if value is None:
            del content[key]
        else:
            content[key] = value
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def refuse(data: bytes, fragment: str, recipe: Recipe | None = None) -> None:
    with pytest.raises(CheckpointError, match=fragment) as caught:
        checkpoint.from_bytes(data, recipe or Recipe(), place="runs/x/checkpoint.pt")
    assert str(caught.value).startswith("runs/x/checkpoint.pt: ")


def test_it_opens_with_weights_only_and_round_trips_to_the_same_bytes(state):
    data = checkpoint.to_bytes(state)
    content = torch.load(io.BytesIO(data), weights_only=True)
    assert len(content["policy"]) == len(content["reference"]) == 17
    again = checkpoint.from_bytes(data, Recipe(), place="x")
    assert checkpoint.to_bytes(again) == data


def test_damage_is_refused(state):
    data = checkpoint.to_bytes(state)
    for bad in (b"", b"PK", data[: len(data) // 2], data[:-40], b"\x80\x04N."):
        refuse(bad, "checkpoint.pt")


@pytest.mark.parametrize("key", list(checkpoint.KEYS))
def test_every_entry_must_be_there_and_of_its_kind(state, key):
    refuse(altered(state, **{key: None}), "checkpoint.pt")
    refuse(altered(state, **{key: 1.5}), "checkpoint.pt")


def test_weights_must_fit_the_recipe(state):
    wide = build_recipe({"policy": {"width": 32}}, place="test")
    refuse(checkpoint.to_bytes(state), "token_embedding.weight should be a dense torch.float32", wide)
    policy = {name: value.clone() for name, value in state.policy.state_dict().items()}
    refuse(altered(state, policy={**policy, "extra": torch.zeros(1)}), "parameter extra is missing or unexpected")
    policy["head.weight"][0, 0] = float("nan")
    refuse(altered(state, policy=policy), "head.weight holds a value that is not finite")


def test_a_reference_other_than_the_one_rl_began_with_is_refused(state):
    with torch.no_grad():
        state.reference.head.weight[0, 0] += 1
    refuse(checkpoint.to_bytes(state), "RL began with")


def test_a_step_outside_the_plan_is_refused(state):
    refuse(altered(state, step=101), "rl step 101, which the plan does not contain")
    refuse(altered(state, phase="later"), "later step 0")


@pytest.fixture
def stepped():
    """A state after three warm-up steps, whose optimizer has moments."""
    made = start(Recipe())
    for _ in range(3):
        loop._warmup_step(made, Recipe(), draw_splits(29, train=20, test=20)["train"])()
    return made


def moment(entry, **values):
    entry.update(values)


FORGERIES = {
    "no groups": lambda saved: saved.update(param_groups=[]),
    "another learning rate": lambda saved: saved["param_groups"][0].update(lr=0.5),
    "another algorithm": lambda saved: saved["param_groups"][0].update(amsgrad=True),
    "forgotten moments": lambda saved: saved.update(state={}),
    "moments of some": lambda saved: saved["state"].pop(3),
    "a moment too short": lambda saved: moment(saved["state"][0], exp_avg=torch.zeros(3)),
    "a moment of another type": lambda saved: moment(saved["state"][0], exp_avg_sq=torch.zeros(13, 16).double()),
    "a moment that is no number": lambda saved: saved["state"][0]["exp_avg"].fill_(float("nan")),
    "a negative square": lambda saved: saved["state"][0]["exp_avg_sq"].fill_(-1.0),
    "another step count": lambda saved: saved["state"][0]["step"].fill_(2.0),
    "an entry too many": lambda saved: moment(saved["state"][0], extra=torch.zeros(1)),
    "text for a tensor": lambda saved: moment(saved["state"][0], exp_avg="<b>"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_an_optimizer_that_these_steps_cannot_have_left_is_refused(stepped, name):
    """It steers every later update, and the fused kernel writes where a moment's shape says."""
    assert checkpoint.from_bytes(checkpoint.to_bytes(stepped), Recipe(), place="x").step == 3
    content = torch.load(io.BytesIO(checkpoint.to_bytes(stepped)), weights_only=True)
    FORGERIES[name](content["optimizer"])
    refuse(altered(stepped, optimizer=content["optimizer"]), "the optimizer")


def test_recorded_norms_and_digests_must_be_what_they_are_called(state):
    refuse(altered(state, last_gradient={"a": "x"}), "last_gradient must hold a finite norm")
    refuse(altered(state, last_gradient={"head.weight": 1.0}), "last_gradient must hold a finite norm")
    refuse(altered(state, reference_digests={"rl 0": 3}), "RL began with|must map names to digests")


def test_every_flipped_byte_of_a_tensor_is_seen(state):
    """torch.load alone reads such a file without a word: the archive's own checksums must be compared."""
    data = checkpoint.to_bytes(state)
    values = state.policy.head.weight.detach().numpy().tobytes()
    at = data.index(values)
    for offset in range(0, len(values), 37):
        bad = bytearray(data)
        bad[at + offset] ^= 1
        torch.load(io.BytesIO(bytes(bad)), weights_only=True)
        refuse(bytes(bad), "does not match its checksum")


def test_a_compressed_archive_is_not_unpacked(state):
    """A small file of compressed zeros can fill the memory; ours are stored as they are."""
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(10**7))
    refuse(buffer.getvalue(), "compressed entries")
