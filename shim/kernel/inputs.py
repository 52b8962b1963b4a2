"""A client's stdin fifo: read by us, kept from EOF until it may come, patient with a client that opens it late.

The keeper is a write end of ours: while it is open, clients may come and go.  Once it is closed, the last client to
leave means EOF.  A client that nobody has seen yet when the keeper goes gets a moment to come (`wait_late_client`): its
open may be under way in a thread of its own, and what it writes must not be lost.  A kernel that lets nobody count the
writers of a fifo leaves two signs: whether one was there at the very first look, and a hang-up seen by a fresh reader.
"""

from __future__ import annotations

import os
from typing import Final

import trio

from shim.kernel.fds import OwnedFd
from shim.kernel.fifos import Fifo

LATE_CLIENT_SECONDS: Final = 1.0
"""How long EOF is put off for a client that has never been seen."""
_CHUNK: Final = 4096


class InputFifo:
    """The read end of a stdin fifo.  `head` is what was in it at the first look: the user's to hand on first."""

    def __init__(self, path: str) -> None:
        """Open without waiting for anybody.  Raises OSError if there is nothing there, InvalidArgument for no fifo."""
        self._client_seen = True
        with Fifo(path) as fifo:
            self.reader = fifo.open_nowait(os.O_RDONLY)
            try:
                self.head = self._look()
                self._keeper: Final = fifo.open_nowait(os.O_WRONLY)
            except BaseException:
                self.reader.close()
                raise

    def close_keeper(self) -> None:
        """From now on the last client to leave means EOF."""
        self._keeper.close()

    def close(self) -> None:
        """Let go of everything."""
        self.reader.close()
        self._keeper.close()

    async def wait_late_client(self) -> bool:
        """After an EOF without a byte: whether a client has come that was not there before, its data to be read."""
        if self._client_seen:
            return False
        self._client_seen = True
        # A reader that was opened while nobody writes is told of a hang-up only after somebody came.
        fresh = OwnedFd(os.open(f"/proc/self/fd/{self.reader.fileno()}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        self.reader.close()
        self.reader = fresh
        with trio.move_on_after(LATE_CLIENT_SECONDS) as scope:
            await trio.lowlevel.wait_readable(fresh.fileno())
        return not scope.cancelled_caught

    def _look(self) -> bytes:
        try:
            head = os.read(self.reader.fileno(), _CHUNK)
        except BlockingIOError:  # somebody has it open for writing, or stands in open(2)
            return b""
        self._client_seen = bool(head)
        return head
