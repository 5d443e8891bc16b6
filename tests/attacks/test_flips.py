"""No byte of a sealed run changes unnoticed: in every file, at its ends, at random, and wherever hypothesis looks."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.evidence.manifest import FILES
from assay.evidence.sums import NAME, check_sums

POSITIONS = 20
EVERY_FILE = (*FILES, NAME)


def findings_after(path, position, flip):
    """Flip bits of one byte, return what is found, and put the byte back."""
    data = path.read_bytes()
    changed = bytearray(data)
    changed[position] ^= flip
    path.write_bytes(changed)
    findings = check_sums(path.parent)
    path.write_bytes(data)
    return findings


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_byte_is_found_and_its_file_named(run, name):
    size = (run / name).stat().st_size
    positions = {0, size - 1, *random.Random(29).sample(range(size), POSITIONS)}
    for position in positions:
        [finding] = findings_after(run / name, position, 1 << position % 8)
        assert finding.startswith(f"{name}: has sha256 ")


def test_a_flipped_byte_of_the_sums_is_found_wherever_it_is(run):
    """Whatever it becomes: part of another digest or name, or what some readers take for a line break."""
    for position in range((run / NAME).stat().st_size):
        findings = findings_after(run / NAME, position, 1)
        assert any(NAME in finding for finding in findings), (position, findings)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), name=st.sampled_from(EVERY_FILE), flip=st.integers(1, 255))
def test_any_change_of_any_byte_of_any_file_is_found(run, data, name, flip):
    position = data.draw(st.integers(0, (run / name).stat().st_size - 1))
    assert findings_after(run / name, position, flip)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), name=st.sampled_from(EVERY_FILE))
def test_any_truncation_of_any_file_is_found(run, data, name):
    whole = (run / name).read_bytes()
    (run / name).write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    findings = check_sums(run)
    (run / name).write_bytes(whole)
    assert any(name in finding for finding in findings)
