"""Safetensors headers from a stranger: read without the tensors, refused when they could mean two things."""

import hashlib
import json
import os
import struct

import pytest
import torch
from language_runs import safetensors
from safetensors.torch import save_file
from torch import nn

from assay.core.digest import model_digest
from assay.errors import EvidenceError, RunError
from assay.evidence import tensors
from assay.evidence.tensors import DTYPES, Entry, read_header, tensors_digest


def raw(header: object, data: bytes = b"") -> bytes:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype="F32", shape=(2,), offsets=(0, 8), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def test_a_header_gives_names_types_shapes_and_places(path):
    path.write_bytes(
        safetensors({"a": ("F32", (1, 2), bytes(8)), "b": ("BF16", (), bytes(2)), "c": ("I64", (0,), b"")})
    )
    header = read_header(path)
    start = path.stat().st_size - 10
    assert header == {
        "a": Entry("F32", (1, 2), start, 8),
        "b": Entry("BF16", (), start + 8, 2),
        "c": Entry("I64", (0,), start + 10, 0),
    }


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "header of 0 bytes does not fit in 0 bytes"),
        (b"\x08\0\0", "does not fit in 3 bytes"),
        (struct.pack("<Q", 9) + b"{}", "header of 9 bytes does not fit in 10 bytes"),
        (struct.pack("<Q", 2**63) + b"{}", "header of 9223372036854775808 bytes does not fit"),
        (raw("{"), "not a safetensors header"),
        (raw("[]"), "not a safetensors header"),
        (raw('{"a": NaN}'), "not a finite number"),
        (raw("[" * 100_000), "not a safetensors header"),
        (struct.pack("<Q", 1) + b"\xff", "utf-8"),
        (raw('{"a": {}, "a": {}}'), "'a' occurs 2 times"),
        (raw({"a": 1}), "not a safetensors header"),
        (raw({"a": entry(more=1)}, bytes(8)), "must have dtype, shape and data_offsets"),
        (raw({"a": entry("F4")}, bytes(8)), "has type 'F4'"),
        (raw({"a": entry(["F32"])}, bytes(8)), "not a safetensors header"),
        (raw({"a": entry(shape=(-2,))}, bytes(8)), "must be counts"),
        (raw({"a": entry(shape=(True, 2))}, bytes(8)), "must be counts"),
        (raw({"a": entry(shape=(2.0,))}, bytes(8)), "must be counts"),
        (raw({"a": entry(shape=(2**60, 0), offsets=(0, 0))}), "must be counts"),
        (raw({"a": entry(shape=(1,) * 17, offsets=(0, 4))}, bytes(4)), "do not fill bytes"),
        (raw({"a": entry(shape=(3,))}, bytes(8)), "do not fill bytes 0 to 8"),
        (raw({"a": entry(offsets=(8, 0))}, bytes(8)), "do not fill bytes 8 to 0"),
        (raw({"a": entry(offsets=(0, 8, 8))}, bytes(8)), "not a safetensors header"),
        (raw({"a": entry()}, bytes(7)), "its tensors end at byte"),
        (raw({"a": entry()}, bytes(9)), "its tensors end at byte"),
        (raw({"a": entry(offsets=(1, 9))}, bytes(9)), "'a' starts at byte"),
        (raw({"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12)), "'b' starts at byte"),
        (raw({"a": entry(), "b": entry(offsets=(12, 20))}, bytes(20)), "'b' starts at byte"),
        (raw({"__metadata__": {"format": 1}}), "must hold text alone"),
        (raw({"__metadata__": []}), "not a safetensors header"),
    ],
)
def test_an_odd_header_is_refused(path, data, complaint):
    path.write_bytes(data)
    with pytest.raises(EvidenceError, match=complaint) as caught:
        read_header(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value)) < 1000


def test_a_header_beyond_the_formats_limit_is_not_read(path, monkeypatch):
    monkeypatch.setattr(tensors, "HEADER_LIMIT", 100)
    path.write_bytes(raw(" " * 101, bytes(200)))
    with pytest.raises(EvidenceError, match="header of 101 bytes does not fit"):
        read_header(path)


def test_a_huge_file_is_not_read_for_its_header(path):
    """Three tebibytes that a sparse file claims to hold, and one kilobyte on the disk."""
    count = 3 * 2**40
    path.write_bytes(raw({"a": entry("U8", (count,), (0, count))}))
    os.truncate(path, path.stat().st_size + count)
    assert read_header(path)["a"].size == count


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_regular_file_is_never_opened(path, make):
    make(path)
    with pytest.raises(EvidenceError, match="not opened"):
        read_header(path)


def test_a_missing_file_is_named(path):
    with pytest.raises(RunError, match="model.safetensors: cannot read"):
        read_header(path)


def test_the_digest_is_over_the_tensors_in_the_order_of_their_names_wherever_they_lie(tmp_path, monkeypatch):
    monkeypatch.setattr(tensors, "_CHUNK", 3)
    a, b = struct.pack("<2f", 1, -2), b"\x80\x3f"
    expected = hashlib.sha256(b"a <f4 (1, 2)\n" + a + b"b bfloat16 (1,)\n" + b).hexdigest()
    layouts = [
        [{"a": ("F32", (1, 2), a), "b": ("BF16", (1,), b)}],
        [{"b": ("BF16", (1,), b), "a": ("F32", (1, 2), a)}],
        [{"b": ("BF16", (1,), b)}, {"a": ("F32", (1, 2), a)}],
    ]
    for files in layouts:
        paths = [tmp_path / f"{number}.safetensors" for number in range(len(files))]
        for path, content in zip(paths, files, strict=True):
            path.write_bytes(safetensors(content))
        assert tensors_digest(paths) == expected


def test_a_tensor_that_two_files_hold_has_no_digest(tmp_path):
    for name in "xy":
        (tmp_path / name).write_bytes(safetensors({"a": ("U8", (1,), b"1")}))
    with pytest.raises(EvidenceError, match="holds 'a', which x holds too"):
        tensors_digest([tmp_path / "x", tmp_path / "y"])


@pytest.mark.parametrize("dtype", DTYPES)
def test_files_and_models_have_one_digest_in_every_type(path, dtype):
    """The file is written by the safetensors package, the model's digest computed in memory."""
    kinds = {
        "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
        "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "I64": torch.int64, "I32": torch.int32,
        "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    }  # fmt: skip
    model = nn.Module()
    values = torch.arange(6).reshape(2, 3).to(kinds[dtype])
    model.register_buffer("z", values)
    model.register_buffer("a", values.t())  # not contiguous
    model.register_buffer("m", values[0, 0].clone())
    model.register_buffer("empty", values[:0].clone())
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, path)
    assert {entry.dtype for entry in read_header(path).values()} == {dtype}
    assert tensors_digest([path]) == model_digest(model)
