"""The digest of a whole model: every stored tensor once, in any type, in the order of the names."""

import hashlib
import struct

import torch
from torch import nn

from assay.core.digest import model_digest, weights_digest


class Tied(nn.Module):
    """An embedding and a head that share one matrix, a persistent buffer and one that is not stored."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2, bias=False)
        self.embedding = nn.Embedding(2, 2)
        with torch.no_grad():
            self.head.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
            self.embedding.weight.copy_(self.head.weight)
        if tied:
            self.embedding.weight = self.head.weight
        self.register_buffer("count", torch.tensor(7))
        self.register_buffer("cache", torch.tensor(8), persistent=False)


WEIGHT = struct.pack("<4f", 1, 2, 3, 4)
COUNT = b"count <i8 ()\n" + struct.pack("<q", 7)


def test_a_tied_tensor_counts_once_under_the_first_of_its_names():
    assert model_digest(Tied()) == hashlib.sha256(COUNT + b"head.weight <f4 (2, 2)\n" + WEIGHT).hexdigest()


def test_equal_tensors_that_are_not_tied_count_each():
    expected = COUNT + b"embedding.weight <f4 (2, 2)\n" + WEIGHT + b"head.weight <f4 (2, 2)\n" + WEIGHT
    assert model_digest(Tied(tied=False)) == hashlib.sha256(expected).hexdigest()


def test_a_buffer_that_is_not_stored_does_not_count_and_one_that_is_does():
    model, before = Tied(), model_digest(Tied())
    model.cache += 1
    assert model_digest(model) == before
    model.count += 1
    assert model_digest(model) != before


def test_bfloat16_is_digested_by_its_bytes():
    values = torch.tensor([[1.0, -2.0]], dtype=torch.bfloat16)
    expected = hashlib.sha256(b"w bfloat16 (1, 2)\n\x80\x3f\x00\xc0").hexdigest()
    assert weights_digest([("w", values)]) == expected


def test_a_view_is_digested_by_what_it_shows():
    values = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    expected = hashlib.sha256(b"w <f4 (3, 2)\n" + struct.pack("<6f", 0, 3, 1, 4, 2, 5)).hexdigest()
    assert weights_digest([("w", values.t())]) == expected


def test_a_digest_holds_one_tensor_at_a_time():
    """Names and tensors may come from a generator that makes each only when it is asked for."""
    made = []

    def named():
        for n in range(3):
            made.append(n)
            yield f"w{n}", torch.tensor([float(n)])

    each = b"".join(f"w{n} <f4 (1,)\n".encode() + struct.pack("<f", n) for n in range(3))
    assert weights_digest(named()) == hashlib.sha256(each).hexdigest()
    assert made == [0, 1, 2]
