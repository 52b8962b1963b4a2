"""Run a command to its end and keep a bounded part of what it said.

A run ends with the command's *exit*, never with EOF: a child of the command may have inherited its output and keep it
open for ever.  What is in the pipes at the exit is still taken.  Output beyond the limit is read and thrown away, so
that the command does not block on it.  A cancelled run kills its command and waits for its end for a bounded time.
"""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import attrs
import trio

from shim.errors import NotFound
from shim.kernel.pipes import capacity, open_pipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from shim.kernel.children import Child, Children, Command, Exit
    from shim.kernel.fds import OwnedFd

KILL_SECONDS: Final = 5.0
"""How long a cancelled run waits for its killed command: longer means that it hangs in the kernel."""
OUTPUT_LIMIT: Final = 1 << 20
_CHUNK: Final = 1 << 16


@attrs.frozen
class Completed:
    """A command's end and the first bytes of its output."""

    exit: Exit
    stdout: bytes
    stderr: bytes


class _Capture:
    """One output of the command: its pipe and what was kept."""

    def __init__(self, limit: int) -> None:
        self.limit: Final = limit
        self.pipe: Final = open_pipe()
        self.kept: Final = bytearray()
        os.set_blocking(self.pipe.reader.fileno(), False)

    def take(self) -> int:
        """Read once without blocking; the number of bytes, 0 at EOF.  Raises BlockingIOError."""
        data = os.read(self.pipe.reader.fileno(), _CHUNK)
        self.kept.extend(data[: max(0, self.limit - len(self.kept))])
        return len(data)

    async def collect(self) -> None:
        """Read until EOF."""
        while True:
            try:
                if self.take() == 0:
                    return
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self.pipe.reader.fileno())

    def drain(self) -> None:
        """Take what is there now: at most what the pipe can hold, for somebody may go on writing."""
        left = capacity(self.pipe.reader.fileno())
        while left > 0:
            try:
                count = self.take()
            except BlockingIOError:
                return
            if count == 0:
                return
            left -= count


async def run(
    children: Children,
    command: Command,
    *,
    stdin: bytes | None = None,
    stdout_limit: int = OUTPUT_LIMIT,
    stderr_limit: int = OUTPUT_LIMIT,
) -> Completed:
    """Run `command` and return its exit and output; a nonzero status is the caller's to judge.

    A descriptor 0, 1 or 2 that the command maps itself is left to it, and that output is then empty.  Limits are in
    bytes.  Raises OSError when it cannot be started.
    """
    with ExitStack() as owned:
        captures: dict[int, _Capture] = {}
        for number, limit in ((1, stdout_limit), (2, stderr_limit)):
            if number not in command.fds:
                captures[number] = _Capture(limit)
                owned.callback(captures[number].pipe.close)
        fds = {number: capture.pipe.writer.fileno() for number, capture in captures.items()}
        feed = owned.enter_context(open_pipe()) if stdin is not None and 0 not in command.fds else None
        if feed is not None:
            fds[0] = feed.reader.fileno()
        child = children.spawn(attrs.evolve(command, fds={**fds, **command.fds}))
        try:
            async with trio.open_nursery() as nursery:
                for capture in captures.values():
                    capture.pipe.writer.close()
                    nursery.start_soon(capture.collect)
                if feed is not None and stdin is not None:
                    feed.reader.close()
                    nursery.start_soon(_feed, feed.writer, stdin)
                end = await child.wait()
                nursery.cancel_scope.cancel()
        finally:
            if child.exit is None:
                await _end(child)
        for capture in captures.values():
            capture.drain()
        kept = {number: bytes(capture.kept) for number, capture in captures.items()}
        return Completed(end, kept.get(1, b""), kept.get(2, b""))


async def run_uncaptured(children: Children, command: Command, *, on_spawn: Callable[[], None]) -> Exit:
    """Run a command that hands its stdio on to a process it leaves behind, and return its exit.

    `on_spawn` is called as soon as the command holds its descriptors, so that ours can be closed.  Raises OSError when
    it cannot be started.
    """
    child = children.spawn(command)
    try:
        on_spawn()
        return await child.wait()
    finally:
        if child.exit is None:
            await _end(child)


async def _feed(writer: OwnedFd, data: bytes) -> None:
    """Write all of `data`, then EOF; a command that does not read it has its reasons."""
    view = memoryview(data)
    os.set_blocking(writer.fileno(), False)
    with writer:
        while view:
            try:
                view = view[os.write(writer.fileno(), view) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(writer.fileno())
            except BrokenPipeError:
                return


async def _end(child: Child) -> None:
    try:
        child.send_signal(signal.SIGKILL)
    except NotFound:
        return
    with trio.move_on_after(KILL_SECONDS, shield=True):
        await child.wait()
