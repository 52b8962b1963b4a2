"""A fixture for tests that open descriptors or start children: none may be left.

A thread that was given up closes what it had on its own, so the end is waited for, for a bounded time.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

import pytest

from shim.kernel import procfs

if TYPE_CHECKING:
    from collections.abc import Iterator

COME_BACK_SECONDS: Final = 2.0


def open_fds() -> dict[int, str]:
    """Our descriptors and what they are, the one that lists them left out."""
    found: dict[int, str] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
    return found


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fails the test that leaves a descriptor or a child."""
    before = open_fds()
    yield
    until = time.monotonic() + COME_BACK_SECONDS
    while open_fds() != before and time.monotonic() < until:
        os.sched_yield()
    assert open_fds() == before
    assert procfs.children(os.getpid()) == []
