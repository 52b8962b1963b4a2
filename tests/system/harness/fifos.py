"""The client's end of a container's stdio fifos, as containerd's own client opens them (protocol.md 7.1).

A reader collects in the background, so that a test never has to race the writer.  Nothing here blocks the loop:
the end that can only be opened once the other side is there is opened in a worker thread.
"""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs
import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

CHUNK = 65536


@attrs.define
class Reader:
    """Everything that came through one fifo so far."""

    path: Path
    data: bytearray = attrs.field(factory=bytearray)
    ended: trio.Event = attrs.field(factory=trio.Event)
    _changed: trio.Condition = attrs.field(factory=trio.Condition)

    async def wait_for(self, ready: Callable[[bytes], bool], *, timeout: float = 10) -> bytes:
        """What was read, as soon as `ready` says so; TooSlowError after `timeout` seconds."""
        with trio.fail_after(timeout):
            async with self._changed:
                while not ready(bytes(self.data)):
                    await self._changed.wait()
        return bytes(self.data)

    async def read_all(self, *, timeout: float = 10) -> bytes:
        """What was read up to the end of file."""
        with trio.fail_after(timeout):
            await self.ended.wait()
        return bytes(self.data)

    async def run(self, fd: int) -> None:
        """Collect until every writer has gone.  epoll does not report a hang-up before the first writer came."""
        while True:
            await trio.lowlevel.wait_readable(fd)
            try:
                chunk = os.read(fd, CHUNK)
            except BlockingIOError:
                continue
            async with self._changed:
                self.data += chunk
                if not chunk:
                    self.ended.set()
                self._changed.notify_all()
            if not chunk:
                return


def holds(word: bytes) -> Callable[[bytes], bool]:
    """For `Reader.wait_for`: until `word` was read."""
    return lambda data: word in data


def make_fifo(path: Path) -> Path:
    """A new fifo, mode 0700 as containerd's client makes them."""
    os.mkfifo(path, 0o700)
    return path


@asynccontextmanager
async def open_reader(path: Path) -> AsyncIterator[Reader]:
    """Read the fifo (made if missing) in the background until the block ends; the read end is open at once."""
    if not path.exists():
        make_fifo(path)
    reader = Reader(path)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader.run, fd)
            yield reader
            nursery.cancel_scope.cancel()
    finally:
        trio.lowlevel.notify_closing(fd)
        os.close(fd)


@attrs.define
class Writer:
    """The write end of a stdin fifo."""

    fd: int

    async def send(self, data: bytes, *, timeout: float = 10) -> None:
        """Write all of it, waiting for room."""
        view = memoryview(data)
        with trio.fail_after(timeout):
            while view:
                await trio.lowlevel.wait_writable(self.fd)
                view = view[os.write(self.fd, view) :]

    def close(self) -> None:
        """Close once; later calls do nothing."""
        if self.fd >= 0:
            trio.lowlevel.notify_closing(self.fd)
            os.close(self.fd)
            self.fd = -1


@asynccontextmanager
async def open_writer(path: Path, *, timeout: float = 10) -> AsyncIterator[Writer]:
    """The write end, open as soon as a reader is there, bounded by `timeout` seconds."""
    with trio.move_on_after(timeout) as scope:
        fd = await trio.to_thread.run_sync(os.open, path, os.O_WRONLY | os.O_CLOEXEC, abandon_on_cancel=True)
    if scope.cancelled_caught:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))  # lets the stuck thread go
        raise trio.TooSlowError(f"nobody opened {path} for reading")
    os.set_blocking(fd, False)
    writer = Writer(fd)
    try:
        yield writer
    finally:
        writer.close()


@attrs.define
class LogDrain:
    """Holds a shim's log fifo open for reading and writing, as containerd does, and keeps what came."""

    fd: int
    text: bytearray = attrs.field(factory=bytearray)

    def drain(self) -> str:
        """Take what is there now and return everything so far."""
        while True:
            try:
                chunk = os.read(self.fd, CHUNK)
            except BlockingIOError:
                return self.text.decode(errors="replace")
            self.text += chunk


async def run_drain(log: LogDrain) -> None:
    """Keep the log fifo from filling, until cancelled."""
    while True:
        await trio.lowlevel.wait_readable(log.fd)
        log.drain()
