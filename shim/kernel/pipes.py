"""Anonymous pipes, both ends owned, close-on-exec, made to measure."""

from __future__ import annotations

import array
import fcntl
import os
import termios
from typing import Final, Self

import attrs

from shim.kernel.fds import OwnedFd

WIDE_PIPE_BYTES: Final = 1 << 20
"""What a pipe of container output is widened to where the kernel allows (the usual limit without privilege)."""


@attrs.frozen
class Pipe:
    """A pipe; as a context manager it closes what is still open of it."""

    reader: OwnedFd
    writer: OwnedFd

    def close(self) -> None:
        """Close both ends."""
        self.reader.close()
        self.writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_pipe(*, wide: bool = False, owner: tuple[int, int] | None = None) -> Pipe:
    """Make a pipe with blocking ends; `wide` asks for 1 MiB, `owner` is the (uid, gid) it is given to.

    Raises OSError (EMFILE, EPERM for an owner).  A refused width is not an error: the pipe is then smaller.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    pipe = Pipe(OwnedFd(reader), OwnedFd(writer))
    try:
        if owner is not None and owner != (0, 0):
            os.fchown(writer, *owner)
        if wide:
            widen(writer)
    except BaseException:
        pipe.close()
        raise
    return pipe


def widen(fd: int, size: int = WIDE_PIPE_BYTES) -> int:
    """Ask for a capacity of `size` bytes and return the capacity there is now."""
    try:
        return fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, size)
    except PermissionError:  # above the system's limit, or the user's pages are spent
        return capacity(fd)


def capacity(fd: int) -> int:
    """How many bytes the pipe can hold.  Raises OSError if it is none."""
    return fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)


def bytes_in(fd: OwnedFd) -> int:
    """How many bytes wait in a pipe or fifo (FIONREAD, pipe(7)); none in a closed one."""
    if fd.closed:
        return 0
    count = array.array("i", [0])
    fcntl.ioctl(fd.fileno(), termios.FIONREAD, count)
    return count[0]
