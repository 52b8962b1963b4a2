"""A lock that other processes respect and that dies with its holder: flock(2) on a directory that exists anyway."""

from __future__ import annotations

import fcntl
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import trio

from shim.errors import DeadlineExceeded
from shim.kernel.fds import OwnedFd

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_FIRST_PAUSE: Final = 0.002
_LONGEST_PAUSE: Final = 0.05


@asynccontextmanager
async def open_directory_lock(directory: str, *, seconds: float) -> AsyncIterator[OwnedFd]:
    """Hold the lock of `directory` in the block; yields its descriptor.

    Raises DeadlineExceeded if another holder keeps it for longer than `seconds`, OSError if there is no such directory.
    The kernel offers no wait that can be cancelled, so it is asked again, at growing intervals.
    """
    with OwnedFd(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as held:
        deadline = trio.current_time() + seconds
        pause = _FIRST_PAUSE
        await trio.lowlevel.checkpoint()
        while not try_lock(held):
            left = deadline - trio.current_time()
            if left <= 0:
                raise DeadlineExceeded(f"{directory} is locked by another process for more than {seconds:g} s")
            await trio.sleep(min(pause, left))
            pause = min(pause * 2, _LONGEST_PAUSE)
        yield held


def try_lock(held: OwnedFd) -> bool:
    """Take the exclusive lock of an open directory or file if it is free; it goes with the descriptor."""
    try:
        fcntl.flock(held.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
