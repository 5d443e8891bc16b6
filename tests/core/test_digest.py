import hashlib

import numpy as np
import torch

from assay.core.digest import weights_digest


def test_it_is_the_sha256_of_name_type_shape_and_bytes():
    values = torch.tensor([[1.0, -2.0]])
    expected = hashlib.sha256(b"w <f4 (1, 2)\n" + np.array([[1.0, -2.0]], dtype="<f4").tobytes()).hexdigest()
    assert weights_digest([("w", values)]) == expected


def test_one_bit_a_name_a_shape_or_a_type_changes_it():
    base = torch.tensor([1.0, 2.0])
    nudged = torch.from_numpy(np.nextafter(base.numpy(), np.float32(9), dtype=np.float32))
    variants = [[("w", base)], [("w", nudged)], [("v", base)], [("w", base.view(1, 2))], [("w", base.double())], []]
    assert len({weights_digest(named) for named in variants}) == len(variants)
