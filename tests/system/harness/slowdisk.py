"""The slow disk of `shim.verify` as the suite uses it: stopped for a block, and what the mount table says meanwhile."""

from __future__ import annotations

import os
import select
import time
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from shim.kernel.children import open_children
from shim.verify import slowdisk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from shim.verify.slowdisk import SlowDisk


@asynccontextmanager
async def open_slow_disk(directory: Path) -> AsyncIterator[SlowDisk]:
    """A disk of its own in the new `directory`."""
    directory.mkdir()
    async with open_children() as children, slowdisk.open_slow_disk(children, directory) as disk:
        yield disk


@contextmanager
def frozen(*disks: SlowDisk) -> Iterator[None]:
    """The disks stopped for the block."""
    try:
        for disk in disks:
            disk.freeze()
        yield
    finally:
        for disk in disks:
            disk.thaw()


def is_mounted(place: Path) -> bool:
    """Whether anything is mounted at or below `place`."""
    with open("/proc/self/mountinfo", "rb") as table:
        return _mentions(table.read(), place)


def wait_unmounted(place: Path, seconds: float) -> bool:
    """Block until nothing is mounted at or below `place`; False when that took longer.

    The kernel says when the table changes (proc_pid_mountinfo(5), POLLPRI).
    """
    until = time.monotonic() + seconds
    with open("/proc/self/mountinfo", "rb") as table:
        poll = select.poll()
        poll.register(table, select.POLLPRI | select.POLLERR)
        while True:
            table.seek(0)
            if not _mentions(table.read(), place):
                return True
            left = until - time.monotonic()
            if left <= 0:
                return False
            poll.poll(left * 1000)


def _mentions(table: bytes, place: Path) -> bool:
    points = [os.fsdecode(line.split()[4]) for line in table.splitlines()]
    return any(point == str(place) or point.startswith(f"{place}/") for point in points)
