"""Moving bytes from one descriptor to another until the first one ends.

Where the kernel can, by splice(2), without the bytes ever being here; where it says that it cannot (a terminal, a file
open for appending), by reading and writing.  Driven by readiness: nothing blocks the loop, and a full sink makes the
copy wait, never drop.  Both descriptors are made non-blocking; they stay the caller's, who may close either one to end
the copy.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from shim.kernel.fds import OwnedFd

SPLICE_BYTES: Final = 1 << 20
"""Asked of one splice: what the widest pipe holds."""
CHUNK_BYTES: Final = 1 << 16
_TURN_BYTES: Final = 1 << 22
"""Moved before the other tasks of the loop get their turn, if the source never runs dry."""


class Copy:
    """One copy, with what it has moved so far in `moved` (bytes)."""

    def __init__(self, source: OwnedFd, sink: OwnedFd) -> None:
        self.moved = 0
        self.spliced = True
        self._source: Final = source
        self._sink: Final = sink
        self._in_turn = 0

    async def run(self) -> None:
        """Copy to the end of the source.

        Raises BrokenPipeError when nobody can read the sink any more, ClosedResourceError when one of the two was
        closed here, OSError for other refusals.
        """
        os.set_blocking(self._source.fileno(), False)
        os.set_blocking(self._sink.fileno(), False)
        await trio.lowlevel.checkpoint()
        try:
            await self._splice()
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self.spliced = False
            await self._read_and_write()

    async def _splice(self) -> None:
        flags = os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE
        source_waited = False
        while True:
            try:
                count = os.splice(self._source.fileno(), self._sink.fileno(), SPLICE_BYTES, flags=flags)
            except BlockingIOError:
                # One answer for an empty source and a full sink: it is the sink if the source was ready just now.
                if source_waited:
                    await trio.lowlevel.wait_writable(self._sink.fileno())
                else:
                    await trio.lowlevel.wait_readable(self._source.fileno())
                source_waited = not source_waited
                continue
            source_waited = False
            if count == 0:
                return
            await self._count(count)

    async def _read_and_write(self) -> None:
        while True:
            try:
                data = memoryview(os.read(self._source.fileno(), CHUNK_BYTES))
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._source.fileno())
                continue
            if not data:
                return
            while data:
                try:
                    written = os.write(self._sink.fileno(), data)
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(self._sink.fileno())
                    continue
                data = data[written:]
                await self._count(written)

    async def _count(self, count: int) -> None:
        self.moved += count
        self._in_turn += count
        if self._in_turn >= _TURN_BYTES:
            self._in_turn = 0
            await trio.lowlevel.checkpoint()
