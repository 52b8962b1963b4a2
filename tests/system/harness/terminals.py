"""A client on a terminal that the test allocates, as a person sits at it: what is shown, typed, resized."""

from __future__ import annotations

import os
import pty
import termios
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs
import trio

from tests.system.harness.processes import is_running, kill_now

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path

CHUNK = 65536
WIDTH, HEIGHT = 117, 43
"""Columns and rows that nobody would guess."""


@attrs.define
class Terminal:
    """The master's side, and the program on the other one."""

    master: int
    process: trio.Process
    shown: bytearray = attrs.field(factory=bytearray)
    _ended: trio.Event = attrs.field(factory=trio.Event)
    _changed: trio.Condition = attrs.field(factory=trio.Condition)

    async def wait_for(self, ready: Callable[[bytes], bool], *, timeout: float = 20) -> bytes:
        """What was shown, as soon as `ready` says so."""
        with trio.move_on_after(timeout):
            async with self._changed:
                while not ready(bytes(self.shown)):
                    await self._changed.wait()
                return bytes(self.shown)
        raise trio.TooSlowError(f"only {bytes(self.shown)[-500:]!r} was shown")

    async def type(self, data: bytes) -> None:
        """Press keys."""
        view = memoryview(data)
        with trio.fail_after(10):
            while view:
                await trio.lowlevel.wait_writable(self.master)
                view = view[os.write(self.master, view) :]

    def resize(self, width: int, height: int) -> None:
        """Give it another size; the program is told by SIGWINCH."""
        termios.tcsetwinsize(self.master, (height, width))

    async def end(self, *, timeout: float = 20) -> tuple[int, bytes]:
        """The program's exit status and all that was shown."""
        with trio.move_on_after(timeout):
            status = await self.process.wait()
            await self._ended.wait()
            return status, bytes(self.shown)
        raise trio.TooSlowError(f"still running, {bytes(self.shown)[-500:]!r} was shown")

    async def watch(self) -> None:
        """Collect until nobody has the other side open, which is EIO."""
        while True:
            await trio.lowlevel.wait_readable(self.master)
            try:
                chunk = os.read(self.master, CHUNK)
            except BlockingIOError:
                continue
            except OSError:
                chunk = b""
            async with self._changed:
                self.shown += chunk
                self._changed.notify_all()
            if not chunk:
                self._ended.set()
                return


@asynccontextmanager
async def open_terminal(command: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> AsyncIterator[Terminal]:
    """Run the program on a new terminal, its controlling one, until the block ends; it is killed if it still runs."""
    master, slave = pty.openpty()
    try:
        os.set_blocking(master, False)
        termios.tcsetwinsize(slave, (HEIGHT, WIDTH))
        try:
            process = await trio.lowlevel.open_process(
                ["setsid", "--ctty", *command], stdin=slave, stdout=slave, stderr=slave, cwd=cwd, env=env
            )
        finally:
            os.close(slave)
        terminal = Terminal(master, process)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(terminal.watch)
                yield terminal
                nursery.cancel_scope.cancel()
        finally:
            if is_running(process.pid):
                kill_now(process.pid)
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
                await process.wait()
    finally:
        os.close(master)
