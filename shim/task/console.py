"""A process with a terminal: its output copied out of the master, its input in, its size kept.

While the process lives we hold a slave of our own, so that the terminal never hangs up under us; when it has ended the
slave goes, and the master is emptied by the native drain until nobody has the terminal open any more.  A stray process
that does keep it open is waited for without a thread, until a Delete has no time left.

The end of the client's input is typed into the terminal as its user would type it, so that what was written before is
read and the program ends by itself; hanging the terminal up would cut off its last words.
"""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Protocol, Self

import trio

from shim.kernel import pty
from shim.kernel.fds import OwnedFd
from shim.kernel.fifos import Fifo
from shim.task.outlets import ENDED, unusable

if TYPE_CHECKING:
    from shim.kernel.inputs import InputFifo

_log = logging.getLogger("shim.task.stdio")

DRAIN_SECONDS: Final = 2.0
"""How long a thread empties an ended process's terminal before readiness takes over again."""
HANG_UP_SECONDS: Final = 0.1
"""Between two looks at a terminal that nobody has open, where the kernel gives us no slave."""
_CHUNK: Final = 1 << 16
_TURN: Final = 64


class ConsoleSink(Protocol):
    """Where a terminal's output goes."""

    @property
    def opened(self) -> bool:
        """Whether somebody takes what comes."""

    async def open(self, owned: ExitStack) -> OwnedFd:
        """The descriptor to write to, once somebody reads; what is opened belongs to `owned`."""

    def close(self) -> None:
        """Let go of it."""


class FifoSink:
    """A client's stdout fifo."""

    def __init__(self, path: str) -> None:
        """Raises NotFound or InvalidArgument for a path that cannot be used."""
        self.opened = False
        try:
            self._fifo: Final = Fifo(path)
        except OSError as error:
            raise unusable("stdio path", path, error) from error

    async def open(self, owned: ExitStack) -> OwnedFd:
        """See `ConsoleSink`."""
        sink = owned.enter_context(await self._fifo.open_writer())
        owned.enter_context(self._fifo.open_nowait(os.O_RDONLY))
        self._fifo.close()
        self.opened = True
        return sink

    def close(self) -> None:
        """See `ConsoleSink`."""
        self._fifo.close()


class FdSink:
    """A pipe to a log file or logger, or /dev/null."""

    opened = True

    def __init__(self, fd: OwnedFd) -> None:
        self._fd: Final = fd

    @classmethod
    def null(cls) -> Self:
        """Nowhere."""
        return cls(OwnedFd(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)))

    async def open(self, owned: ExitStack) -> OwnedFd:
        """See `ConsoleSink`."""
        await trio.lowlevel.checkpoint()
        os.set_blocking(self._fd.fileno(), False)
        return owned.enter_context(self._fd)

    def close(self) -> None:
        """See `ConsoleSink`."""
        self._fd.close()


class Console:
    """One terminal from the moment its master is here; `run_console` owns the master and closes it."""

    def __init__(self, sink: ConsoleSink, source: InputFifo | None) -> None:
        self._sink: Final = sink
        self._source: Final = source
        self._master: OwnedFd | None = None
        self._peer: OwnedFd | None = None
        self._pending = b""
        self._over = trio.Event()
        self._size: tuple[int, int] | None = None

    @property
    def has_pending(self) -> bool:
        """Whether a Delete should wait: for output that somebody reads, or that is there for somebody to come."""
        if self._master is None or self._master.closed:
            return False
        return self._sink.opened or bool(self._pending) or pty.has_output(self._master)

    def close_stdin(self) -> None:
        """The end of the input comes once the clients that write have left."""
        if self._source is not None:
            self._source.close_keeper()

    def resize(self, width: int, height: int) -> None:
        """Set columns and rows now, or as soon as there is a terminal; no-op once it is closed."""
        self._size = (width, height)
        if self._master is not None and not self._master.closed:
            pty.set_size(self._master, width, height)

    def process_ended(self) -> None:
        """The process has ended: what is left in the terminal is drained to its end."""
        self._over.set()
        if self._peer is not None:
            self._peer.close()

    def attach(self, master: OwnedFd) -> None:
        """Take the master over and give it the remembered size; `run_console` must follow."""
        self._master = master
        os.set_blocking(master.fileno(), False)
        if not self._over.is_set():
            self._peer = pty.open_peer(master)
        if self._size is not None:
            pty.set_size(master, *self._size)

    async def run_console(self) -> None:
        """Copy both ways until the terminal is empty and nobody has it open."""
        assert self._master is not None
        master = self._master
        try:
            async with trio.open_nursery() as nursery:
                if self._source is not None:
                    nursery.start_soon(self._feed, master, self._source)
                await self._empty(master)
                nursery.cancel_scope.cancel()
        except* ENDED:
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Let go of everything."""
        for owned in (self._master, self._peer, self._source, self._sink):
            if owned is not None:
                owned.close()

    async def _empty(self, master: OwnedFd) -> None:
        with ExitStack() as owned:
            sink = await self._sink.open(owned)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_after, self._over, nursery.cancel_scope)
                await self._copy(master, sink)
                nursery.cancel_scope.cancel()
            if master.closed:
                return
            await self._hand_over(sink)
            done = await pty.drain(master, sink, seconds=DRAIN_SECONDS)
            if done.ending is pty.Ending.OUT_OF_TIME:
                await self._copy(master, sink)

    async def _copy(self, master: OwnedFd, sink: OwnedFd) -> None:
        """Until the terminal hangs up after the end of the process; what was read stays pending when cancelled."""
        turns = 0
        while True:
            await self._hand_over(sink)
            try:
                self._pending = _read(master)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(master.fileno())
                continue
            turns += 1
            if turns % _TURN == 0:
                await trio.lowlevel.checkpoint()
            if self._pending:
                continue
            if self._over.is_set():
                return
            with trio.move_on_after(HANG_UP_SECONDS):
                await self._over.wait()

    async def _hand_over(self, sink: OwnedFd) -> None:
        while self._pending:
            try:
                self._pending = self._pending[os.write(sink.fileno(), self._pending) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(sink.fileno())

    async def _feed(self, master: OwnedFd, source: InputFifo) -> None:
        last = await _write(master, source.head)
        seen = bool(last)
        while True:
            try:
                data = os.read(source.reader.fileno(), _CHUNK)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(source.reader.fileno())
                continue
            if not data and not seen and await source.wait_late_client():
                continue
            if not data:
                break
            seen = True
            last = await _write(master, data)
        source.close()
        end = pty.end_of_input(master)
        # In the middle of a line the first one only sends the line off.
        await _write(master, end if last in (b"", b"\n", b"\r", end) else end + end)


async def _cancel_after(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _read(master: OwnedFd) -> bytes:
    """Some output; none where nobody has the terminal open.  Raises BlockingIOError."""
    try:
        return os.read(master.fileno(), _CHUNK)
    except OSError as error:
        if not pty.is_hang_up(error):
            raise
        return b""


async def _write(master: OwnedFd, data: bytes) -> bytes:
    """Type `data`; its last byte.  A terminal that hangs up takes nothing any more."""
    last = data[-1:]
    await trio.lowlevel.checkpoint()
    while data:
        try:
            data = data[os.write(master.fileno(), data) :]
        except BlockingIOError:
            await trio.lowlevel.wait_writable(master.fileno())
        except OSError as error:
            if not pty.is_hang_up(error):
                raise
            return last
    return last
