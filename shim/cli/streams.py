"""Our own standard streams and terminal, tied to a container's.

Reads and writes of our descriptors happen in worker threads, for they may be anything (a terminal, a file, a pipe that
others share) and must not be made non-blocking under the feet of whoever shares them.  An output that can no
longer be written (the reader of a pipe went away) is told once through `broken`; what still comes is thrown away, so
that the container is not blocked by it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import termios
import tty
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs
import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHUNK = 1 << 16


@attrs.define
class OutputWriter:
    """Writes one of the container's outputs to a descriptor of ours."""

    fd: int
    broken: Callable[[OSError], None]
    written: int = 0
    busy: bool = False
    """In a write that has not returned: a slow reader is no reason to give up."""
    _dead: bool = False

    async def write(self, data: bytes) -> None:
        """Write all of `data`, or throw it away once a write has failed."""
        self.written += len(data)
        if self._dead:
            return
        self.busy = True
        try:
            await trio.to_thread.run_sync(_write_all, self.fd, data, abandon_on_cancel=True)
        except OSError as error:
            self._dead = True
            self.broken(error)
        finally:
            self.busy = False


async def read_some(fd: int) -> bytes:
    """The next bytes of a descriptor of ours; empty at EOF, or when it cannot be read."""
    try:
        return await trio.to_thread.run_sync(os.read, fd, CHUNK, abandon_on_cancel=True)
    except OSError:
        return b""


def window_size(fd: int) -> tuple[int, int] | None:
    """Width and height of the terminal in characters; None when it is none or has no size."""
    try:
        rows, columns, _, _ = struct.unpack("4H", fcntl.ioctl(fd, termios.TIOCGWINSZ, b"\0" * 8))
    except OSError:
        return None
    return (columns, rows) if rows and columns else None


@contextmanager
def raw_terminal(fd: int) -> Iterator[None]:
    """Make the terminal behind `fd` hand every key through for the block; nothing when it is no terminal."""
    try:
        before = termios.tcgetattr(fd)
    except termios.error:
        yield
        return
    tty.setraw(fd)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
