"""One lock for each task, between managers and within one (design section 13).

Who changes a task (creates, starts, deletes, loads or cleans it up) holds its lock; who only asks or signals does not,
so that a deletion which hangs can still be looked at and its container killed.

Invariants: the lock is a flock on a file outside of the bundle and dies with its holder; the file goes with the last
holder once there is no bundle, and who waited for a file that was removed meanwhile takes the new one.
"""

from __future__ import annotations

import contextlib
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import trio

from shim.kernel.fds import OwnedFd
from shim.kernel.locks import try_lock
from shim.manager.layout import disk_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from shim.manager.layout import Layout
    from shim.model.budgets import Budget

_FIRST_PAUSE: Final = 0.002
_LONGEST_PAUSE: Final = 0.05


class TaskLock:
    """The lock of one task while it is held."""

    def __init__(self, held: OwnedFd, path: str, bundle: str) -> None:
        self._held: Final = held
        self._path: Final = path
        self._bundle: Final = bundle

    def release(self) -> None:
        """Let go; a second time is a no-op."""
        if self._held.closed:
            return
        if not os.path.lexists(self._bundle):
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        self._held.close()


def try_task_lock(layout: Layout, namespace: str, task_id: str) -> TaskLock | None:
    """The lock of a task, None while somebody else holds it.  InvalidArgument for what is no identifier."""
    path = layout.lock_file(namespace, task_id)
    bundle = layout.bundle(namespace, task_id)
    while True:
        try:
            held = OwnedFd(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise disk_error(error, f"task {task_id} cannot be changed") from error
        try:
            if not try_lock(held):
                held.close()
                return None
            if _is_at(held, path):
                return TaskLock(held, path, bundle)
        except BaseException:
            held.close()
            raise
        held.close()  # its last holder removed it between our open and our lock


@asynccontextmanager
async def open_task_lock(layout: Layout, namespace: str, task_id: str, budget: Budget) -> AsyncIterator[TaskLock]:
    """Hold the lock in the block; DeadlineExceeded when another keeps it for longer than `budget`.

    The kernel offers no wait that can be cancelled, so it is asked again, at growing intervals.
    """
    deadline = trio.current_time() + budget.seconds
    pause = _FIRST_PAUSE
    await trio.lowlevel.checkpoint()
    while (lock := try_task_lock(layout, namespace, task_id)) is None:
        left = deadline - trio.current_time()
        if left <= 0:
            raise budget.exceeded(f"task {task_id} is being changed by somebody else, who did not finish")
        await trio.sleep(min(pause, left))
        pause = min(pause * 2, _LONGEST_PAUSE)
    try:
        yield lock
    finally:
        lock.release()


def _is_at(held: OwnedFd, path: str) -> bool:
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    here = os.fstat(held.fileno())
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
