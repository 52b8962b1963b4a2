"""The log fifo of a bundle, held and read by the manager (protocol.md 2.8 and 2.10).

The fifo is opened for reading *and* writing before the shim starts: the shim's own open never blocks, and there is no
EOF when one shim closes it and another opens it.  Lines go to a callback with the task's id; a line without end is cut,
so that a shim that writes no newline costs a bounded amount.
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import TYPE_CHECKING, Final

import trio

from shim.kernel.fds import OwnedFd

if TYPE_CHECKING:
    from collections.abc import Callable

LOG: Final = logging.getLogger("shim.manager.shimlog")
LONGEST_LINE: Final = 16 << 10
_CHUNK: Final = 1 << 16


def to_logger(task_id: str, line: str) -> None:
    """The sink used when none is given."""
    LOG.debug("%s: %s", task_id, line)


def open_log(path: str) -> OwnedFd:
    """Make the fifo when it is missing, mode 0700 whatever the umask, and hold it."""
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path, 0o700)
        os.chmod(path, 0o700)
    return OwnedFd(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW))


async def run_log(
    log: OwnedFd,
    task_id: str,
    sink: Callable[[str, str], None],
    *,
    task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Copy lines to `sink` until cancelled, then what is still in the fifo; closes it."""
    pending = bytearray()
    with log, trio.CancelScope() as scope:
        task_status.started(scope)
        try:
            while True:
                await trio.lowlevel.wait_readable(log.fileno())
                _take(log, pending, task_id, sink)
        finally:
            _take(log, pending, task_id, sink)
            if pending:
                sink(task_id, pending.decode(errors="backslashreplace"))


def _take(log: OwnedFd, pending: bytearray, task_id: str, sink: Callable[[str, str], None]) -> None:
    try:
        pending += os.read(log.fileno(), _CHUNK)
    except BlockingIOError:
        return
    *lines, rest = bytes(pending).split(b"\n")
    for line in lines:
        sink(task_id, line.decode(errors="backslashreplace"))
    while len(rest) > LONGEST_LINE:
        sink(task_id, rest[:LONGEST_LINE].decode(errors="backslashreplace"))
        rest = rest[LONGEST_LINE:]
    pending[:] = rest
