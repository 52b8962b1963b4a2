"""Who asked for a start, and whether it still waits for the answer.

A caller that started this very program and goes away is not noticed, as with any command.  One that asked a template
through the launcher is: its death must undo what was begun for it, just as killing the program itself would.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from shim.errors import Canceled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from socket import socket


class Caller:
    """The pid of who asked, and the launcher's connection when a template was asked."""

    def __init__(self, pid: int, launcher: socket | None = None) -> None:
        self.pid: Final = pid
        self._launcher: Final = launcher

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around the delivery of the answer: Canceled when the launcher is gone before, during or just after it.

        The delivery may block on a pipe that nobody reads, so the kernel says with SIGIO when the launcher hangs up.
        Only here: anywhere else the exception could fall between making a thing and knowing of it.
        """
        if self._launcher is None:
            yield
            return
        fd = self._launcher.fileno()
        before = signal.signal(signal.SIGIO, _gone)
        fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_ASYNC)
        try:
            _check(fd)
            yield
            _check(fd)
        finally:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags)
            signal.signal(signal.SIGIO, before)


def _check(launcher_fd: int) -> None:
    if select.select([launcher_fd], [], [], 0)[0]:  # it has nothing more to say
        raise Canceled("the launcher went away before its answer was delivered")


def _gone(signum: int, frame: object) -> None:
    del signum, frame
    raise Canceled("the launcher went away while its answer was delivered")
