"""Every test of this room leaves the descriptors and children of the process as it found them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from shim.kernel import native, procfs
from shim.kernel.children import SubreaperChildren

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    import trio


def open_fds() -> dict[int, str]:
    """Our descriptors and what they are, the one that lists them left out."""
    found: dict[int, str] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
    return found


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    before = open_fds()
    yield
    assert open_fds() == before
    assert procfs.children(os.getpid()) == []


@pytest.fixture
async def children(nursery: trio.Nursery) -> AsyncIterator[SubreaperChildren]:
    """The shim's kind of children, with a running reaper in a process that adopts orphans."""
    native.set_subreaper(True)
    made = SubreaperChildren()
    await nursery.start(made.run_reaper)
    yield made
    native.set_subreaper(False)
