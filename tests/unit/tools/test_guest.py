"""The guest runner: what the first process does, and how its end is read."""

from __future__ import annotations

import pytest

from tools.guest import init_script, status_of


def test_arguments_reach_pytest_as_they_are() -> None:
    assert "-m pytest -p no:cacheprovider -k 'a or b' tests/system\n" in init_script(["-k", "a or b", "tests/system"])


@pytest.mark.parametrize(
    ("output", "status"),
    [
        ("1 passed\nguest status: 0\nreboot: System halted\n", 0),
        ("1 failed\nguest status: 1\n", 1),
        ("panic\n", 1),
        ("guest status: \n", 1),
        ("", 1),
    ],
)
def test_status(output: str, status: int) -> None:
    assert status_of(output) == status
