"""The client's ends of a task's streams: fifos in the bundle, mode 0700 (protocol.md 7.1).

Invariants: both output fifos are open for reading before the shim is told of them, so that its open for writing does
not wait; the end of an output is the fifo's EOF, and all before it was handed on.  A fifo that nobody has written to
yet reads as empty, which is no EOF: so each read waits for readiness first, which the kernel does not report before the
first writer came.  The input fifo is held open in both directions: no write meets a fifo without reader, and the
container's input ends only when it is closed with `CloseIO`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Self

import attrs
import trio

from shim.kernel.fds import OwnedFd

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

CHUNK: Final = 1 << 16


@attrs.frozen
class Stdio:
    """The fifos of one process, opened; an empty path means that the stream is not wanted."""

    stdin_path: str
    stdout_path: str
    stderr_path: str
    stdin: OwnedFd | None
    stdout: OwnedFd
    stderr: OwnedFd | None

    def close(self) -> None:
        """Close our ends; the fifos themselves go with the bundle."""
        for end in (self.stdin, self.stdout, self.stderr):
            if end is not None:
                end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_stdio(directory: str, *, stdin: bool, terminal: bool) -> Stdio:
    """Make and open the fifos in `directory`; a terminal has no stderr of its own."""
    opened: list[OwnedFd] = []

    def make(name: str, flags: int) -> OwnedFd:
        path = f"{directory}/{name}"
        os.mkfifo(path, 0o700)
        os.chmod(path, 0o700)
        end = OwnedFd(os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW))
        opened.append(end)
        return end

    try:
        return Stdio(
            f"{directory}/stdin" if stdin else "",
            f"{directory}/stdout",
            "" if terminal else f"{directory}/stderr",
            make("stdin", os.O_RDWR) if stdin else None,
            make("stdout", os.O_RDONLY),
            None if terminal else make("stderr", os.O_RDONLY),
        )
    except BaseException:
        for end in opened:
            end.close()
        raise


async def copy_output(source: OwnedFd, write: Callable[[bytes], Awaitable[None]]) -> None:
    """Hand all that comes out of `source` to `write`, until EOF."""
    while True:
        await trio.lowlevel.wait_readable(source.fileno())
        try:
            data = os.read(source.fileno(), CHUNK)
        except BlockingIOError:
            continue
        if not data:
            return
        await write(data)


async def write_input(target: OwnedFd, data: bytes) -> None:
    """Write all of `data` to the container's input, waiting while it does not read."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(target.fileno(), view) :]
        except BlockingIOError:
            await trio.lowlevel.wait_writable(target.fileno())
