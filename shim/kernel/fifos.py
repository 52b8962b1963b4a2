"""Opening the fifos that a client made (protocol.md 7.1).

A fifo is held by an O_PATH descriptor from the first look on and opened through it, so that a renamed or removed one
still works and a path cannot turn into something else in between.  An output is opened for writing only when a client
reads: at once if one does already, else by a thread that blocks in open(2) until one comes.  Cancelling the wait lets
that thread go by opening the other end for a moment; what it opened is closed by the thread itself.

Then, and not before, the other end is opened as well ("the keeper"): the client may leave and another may come, without
EPIPE for us on an output and without EOF for the container on its input.
"""

from __future__ import annotations

import errno
import math
import os
import stat
from typing import TYPE_CHECKING, Final, Self

import attrs
import trio

from shim.errors import InvalidArgument
from shim.kernel.fds import OwnedFd
from shim.kernel.threads import Threads

if TYPE_CHECKING:
    from types import TracebackType

    from shim.kernel.threads import Job

_threads: Final = trio.lowlevel.RunVar[Threads]("shim.kernel.fifos.threads")


def waiting_opens() -> Threads:
    """The threads that wait for clients in this run of the loop: as many as there are outputs without a reader."""
    try:
        return _threads.get()
    except LookupError:
        made = Threads("fifos", math.inf)
        _threads.set(made)
        return made


@attrs.frozen
class FifoEnds:
    """An open fifo: the end that is used, and the other end, which keeps it usable while no client is there."""

    end: OwnedFd
    keeper: OwnedFd

    def close(self) -> None:
        """Close both, the used end first: a reader then sees EOF when the last writer is gone."""
        self.end.close()
        self.keeper.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Fifo:
    """A fifo that exists, held by what it is and not by its name."""

    def __init__(self, path: str) -> None:
        """Raises OSError if there is nothing at `path`, InvalidArgument if it is no fifo."""
        self.path: Final = path
        self._handle: Final = OwnedFd(os.open(path, os.O_PATH | os.O_CLOEXEC))
        if not stat.S_ISFIFO(os.fstat(self._handle.fileno()).st_mode):
            self._handle.close()
            raise InvalidArgument(f"{path} is not a fifo")

    def close(self) -> None:
        """Let the handle go; what was opened through it stays open."""
        self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open_nowait(self, flags: int) -> OwnedFd:
        """Open it with `flags`, never blocking; for writing, OSError ENXIO says that nobody reads."""
        return OwnedFd(_reopen(self._handle.fileno(), flags | os.O_NONBLOCK))

    async def open_writer(self) -> OwnedFd:
        """A non-blocking write end, as soon as somebody has the fifo open for reading.

        May wait for ever; a cancelled wait leaves nothing open.
        """
        await trio.lowlevel.checkpoint()
        try:
            return self.open_nowait(os.O_WRONLY)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        # The thread has a handle of its own: this object may be closed while it still stands in open(2).
        handle = OwnedFd(os.dup(self._handle.fileno()))
        opened = await self._open_blocking(handle)
        os.set_blocking(opened, False)
        return OwnedFd(opened)

    async def _open_blocking(self, handle: OwnedFd) -> int:
        # Owned by the thread from here on: `at_end` closes it whether or not anybody still waits.
        def work(job: Job[int]) -> int:
            return _reopen(handle.fileno(), os.O_WRONLY)

        def release(job: Job[int]) -> None:
            # Held until the thread is back: it may not have reached open(2) yet.
            other = OwnedFd(_reopen(handle.fileno(), os.O_RDONLY | os.O_NONBLOCK))
            job.at_end(other.close)

        return await waiting_opens().run(
            f"open {self.path}", work, undo=os.close, on_abandon=release, at_end=handle.close
        )


def is_fifo(path: str) -> bool:
    """Whether `path` is a fifo now.  Raises OSError if there is nothing."""
    return stat.S_ISFIFO(os.stat(path).st_mode)


async def open_output(path: str) -> FifoEnds:
    """Open a client's stdout or stderr fifo once somebody reads it, then keep it open for the next reader.

    Raises OSError or InvalidArgument if there is no fifo at `path`.  May wait for ever.
    """
    with Fifo(path) as fifo:
        writer = await fifo.open_writer()
        try:
            return FifoEnds(writer, fifo.open_nowait(os.O_RDONLY))
        except BaseException:
            writer.close()
            raise


def open_input(path: str) -> FifoEnds:
    """Open a client's stdin fifo without waiting for it, and keep it from EOF until the keeper is closed.

    The used end reads, non-blocking.  Raises OSError or InvalidArgument if there is no fifo at `path`.
    """
    with Fifo(path) as fifo:
        reader = fifo.open_nowait(os.O_RDONLY)
        try:
            return FifoEnds(reader, fifo.open_nowait(os.O_WRONLY))
        except BaseException:
            reader.close()
            raise


def _reopen(handle: int, flags: int) -> int:
    return os.open(f"/proc/self/fd/{handle}", flags | os.O_CLOEXEC)
