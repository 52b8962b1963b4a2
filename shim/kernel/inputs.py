"""A client's stdin fifo: read by us, kept from EOF until it may come, patient with a client that opens it late.

The keeper is a write end of ours: while it is open, clients may come and go.  Once it is closed, the last client to
leave means EOF.  A client that nobody has seen yet when the keeper goes gets a moment to come (`wait_late_client`): its
open may be under way in a thread of its own, and what it writes must not be lost.  A kernel that lets nobody count the
writers of a fifo leaves two signs: whether one was there at the very first look, and a hang-up seen by a fresh reader.

A client that was there before its task was, wrote, and has left before the task starts has ended its input, whether it
says so or not: ctr has no task yet that it could tell, and forgets (`note_client`, `end_if_left`).
"""

from __future__ import annotations

import os
import select
from typing import Final

import trio

from shim.kernel.fds import OwnedFd
from shim.kernel.fifos import Fifo
from shim.kernel.pipes import bytes_in

LATE_CLIENT_SECONDS: Final = 1.0
"""How long EOF is put off for a client that has never been seen."""
_CHUNK: Final = 4096
_WRITE: Final = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC


class InputFifo:
    """The read end of a stdin fifo.  `head` is what was in it at the first look: the user's to hand on first."""

    def __init__(self, path: str) -> None:
        """Open without waiting for anybody.  Raises OSError if there is nothing there, InvalidArgument for no fifo."""
        self._client_seen = True
        self._early_client = False
        with Fifo(path) as fifo:
            self.reader = fifo.open_nowait(os.O_RDONLY)
            try:
                self.head = self._look()
                self._keeper = fifo.open_nowait(os.O_WRONLY)
            except BaseException:
                self.reader.close()
                raise

    def close_keeper(self) -> None:
        """From now on the last client to leave means EOF."""
        self._keeper.close()

    def note_client(self) -> None:
        """Remember whether a client has come by now; nothing may have been read yet but `head`."""
        self._early_client = not self._keeper.closed and (self._has_data() or not self._is_left())

    def end_if_left(self) -> None:
        """Close the keeper if the client that was noted has written something and left."""
        if self._early_client and not self._keeper.closed and self._has_data() and self._is_left():
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

    def _has_data(self) -> bool:
        return bool(self.head) or bytes_in(self.reader) > 0

    def _is_left(self) -> bool:
        """Whether no client has it open for writing; the keeper steps aside for the look, while nobody reads."""
        self._keeper.close()
        poll = select.poll()
        poll.register(self.reader.fileno(), 0)  # a hang-up is always told
        left = bool(poll.poll(0))
        self._keeper = OwnedFd(os.open(f"/proc/self/fd/{self.reader.fileno()}", _WRITE))
        return left

    def _look(self) -> bytes:
        try:
            head = os.read(self.reader.fileno(), _CHUNK)
        except BlockingIOError:  # somebody has it open for writing, or stands in open(2)
            return b""
        self._client_seen = bool(head)
        return head
