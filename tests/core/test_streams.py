import numpy as np
import pytest
import torch

from assay.core.streams import Stream, normals, philox, uniforms


def philox_by_definition(counter: list[int], key: list[int]) -> list[int]:
    """The block function from the paper's definition, in Python integers, with none of the vector code's tricks."""
    word = 2**32
    for round_number in range(10):
        k0 = (key[0] + round_number * 0x9E3779B9) % word
        k1 = (key[1] + round_number * 0xBB67AE85) % word
        high0, low0 = divmod(0xD2511F53 * counter[0], word)
        high1, low1 = divmod(0xCD9E8D57 * counter[2], word)
        counter = [high1 ^ counter[1] ^ k0, low1, high0 ^ counter[3] ^ k1, low0]
    return counter


# The three known-answer vectors that the authors publish with Random123 (kat_vectors, philox4x32-10).
PUBLISHED = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), PUBLISHED)
def test_the_published_vectors_come_out(counter, key, expected):
    made = philox(np.array(counter, dtype=np.uint64)[:, None], (key[0], key[1]))
    assert made[:, 0].tolist() == expected
    assert philox_by_definition(counter, key) == expected


def test_an_address_gives_the_same_numbers_in_any_batch():
    whole = uniforms(29, Stream.ROLLOUT, 3, step=7, problem=[0, 0, 1, 4], sample=[0, 1, 0, 2])
    for row, (problem, sample) in enumerate([(0, 0), (0, 1), (1, 0), (4, 2)]):
        alone = uniforms(29, Stream.ROLLOUT, 3, step=7, problem=[problem], sample=[sample])
        assert torch.equal(alone[0], whole[row])
    more = uniforms(29, Stream.ROLLOUT, 8, step=7, problem=[1], sample=[0])
    assert torch.equal(more[0, :3], whole[2])


def test_numbers_follow_from_seed_stream_step_problem_sample_and_index():
    made = uniforms(5, Stream.EVALUATION, 4, step=6, problem=[7], sample=[8])[0].tolist()
    expected = []
    for block in range(2):
        a, b, c, d = philox_by_definition([block, 8, 7, 6], [5, int(Stream.EVALUATION)])
        expected += [((high >> 5) * 2**26 + (low >> 6)) / 2**53 for high, low in ((a, b), (c, d))]
    assert made == expected


def test_no_address_shares_a_number_with_another():
    """Change one coordinate at a time: every number of every address is different."""
    seen = [
        uniforms(seed, stream, 2, step=step, problem=[problem], sample=[sample])
        for seed in (0, 1)
        for stream in Stream
        for step in (0, 1)
        for problem in (0, 1)
        for sample in (0, 1)
    ]
    numbers = torch.cat(seen).flatten().tolist()
    assert len(set(numbers)) == len(numbers) == 2 * 4 * 8 * 2


def test_uniforms_are_uniform_and_normals_normal():
    """Kolmogorov-Smirnov at 1e-6: false alarms are one in a million, a wrong bit layout fails."""
    from scipy.stats import kstest

    drawn = uniforms(3, Stream.ROLLOUT, 1, problem=list(range(20_000)), sample=[0] * 20_000)[:, 0]
    assert 0 <= float(drawn.min()) and float(drawn.max()) < 1
    assert kstest(drawn.numpy(), "uniform").pvalue > 1e-6
    assert kstest(normals(3, Stream.INIT, 20_000).numpy(), "norm").pvalue > 1e-6
