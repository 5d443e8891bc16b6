"""Adapters whose library is missing or another release refuse with the remedy, before anything is imported."""

from importlib.metadata import PackageNotFoundError

import pytest

from assay.audit.check import SubjectError
from assay.audit.subjects import find


@pytest.mark.parametrize(
    ("subject", "other", "wrong", "absent"),
    [
        (
            "verl.rloo",
            "0.8.0",
            r"verl 0\.8\.0 is installed; this adapter was written for 0\.9\.1",
            r"not installed.*pip install --no-deps verl==0\.9\.1",
        ),
        (
            "openrlhf.rloo",
            "0.9.9",
            r"openrlhf 0\.9\.9 is installed; this adapter was written for 0\.11\.2",
            r"not installed.*pip install --no-deps openrlhf==0\.11\.2",
        ),
    ],
)
def test_another_version_and_no_version_are_errors_of_the_subject(monkeypatch, subject, other, wrong, absent):
    monkeypatch.setattr("importlib.metadata.version", lambda name: other)
    with pytest.raises(SubjectError, match=wrong):
        find(subject)

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    with pytest.raises(SubjectError, match=absent):
        find(subject)
