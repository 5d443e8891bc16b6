"""A checkpoint's archive may be sound and its pickle hostile: it is read, or refused by name, whatever it holds."""

import io
import random
import zipfile

import pytest

from assay.errors import CheckpointError
from assay.runs.train import open_run
from assay.training import checkpoint

MUTATIONS = 200


@pytest.fixture(scope="module")
def recipe(finished):
    return open_run(finished)[0]


def with_pickle(archive, pickled):
    """Return a checkpoint with another pickle, its checksums as they should be."""
    replaced = io.BytesIO()
    with zipfile.ZipFile(replaced, "w") as new:
        for name in archive.namelist():
            new.writestr(name, pickled if name.endswith("/data.pkl") else archive.read(name))
    return replaced.getvalue()


def mutations(pickled, count):
    """Yield pickles with one to four bytes changed, then some cut short."""
    chance = random.Random(29)
    for _ in range(count):
        made = bytearray(pickled)
        for position in chance.sample(range(len(made)), chance.randint(1, 4)):
            made[position] = chance.randrange(256)
        yield bytes(made)
    for _ in range(count // 10):
        yield pickled[: chance.randrange(len(pickled))]


def test_whatever_the_pickle_holds_it_is_read_or_refused(finished, recipe):
    with zipfile.ZipFile(finished / "checkpoint.pt") as archive:
        pickled = archive.read(next(name for name in archive.namelist() if name.endswith("/data.pkl")))
        for made in mutations(pickled, MUTATIONS):
            try:
                checkpoint.from_bytes(with_pickle(archive, made), recipe, place="checkpoint.pt")
            except CheckpointError as error:
                assert str(error).startswith("checkpoint.pt: ")


@pytest.mark.parametrize("size", [0, 1, 10, 1000])
def test_noise_is_refused(recipe, size):
    noise = random.Random(size).randbytes(size)
    for head in (b"", b"PK\x03\x04", b"\x80\x02", b"\x80\x10"):
        with pytest.raises(CheckpointError, match="^checkpoint.pt: "):
            checkpoint.from_bytes(head + noise, recipe, place="checkpoint.pt")
