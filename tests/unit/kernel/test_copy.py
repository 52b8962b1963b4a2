"""Bytes arrive in order and complete, by splice where it can be and by hand where not."""

from __future__ import annotations

import os
import pty
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from shim.kernel.copy import Copy
from shim.kernel.fds import OwnedFd
from shim.kernel.pipes import Pipe, capacity, open_pipe, widen

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def source() -> Iterator[Pipe]:
    with open_pipe(wide=True) as pipe:
        yield pipe


@pytest.fixture
def sink() -> Iterator[Pipe]:
    with open_pipe() as pipe:
        yield pipe


async def write_all(end: OwnedFd, data: bytes) -> None:
    os.set_blocking(end.fileno(), False)
    view = memoryview(data)
    with end:
        while view:
            try:
                view = view[os.write(end.fileno(), view) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(end.fileno())


async def read_all(end: OwnedFd) -> bytes:
    os.set_blocking(end.fileno(), False)
    found = bytearray()
    while True:
        try:
            data = os.read(end.fileno(), 1 << 16)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(end.fileno())
            continue
        if not data:
            return bytes(found)
        found += data


async def test_much_data_through_small_pipes(source: Pipe, sink: Pipe) -> None:
    data = os.urandom(5 << 20)
    copy = Copy(source.reader, sink.writer)

    async def copy_then_close() -> None:
        await copy.run()
        sink.writer.close()

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write_all, source.writer, data)
            nursery.start_soon(copy_then_close)
            assert await read_all(sink.reader) == data
    assert copy.moved == len(data)
    assert copy.spliced


async def test_many_small_writes(source: Pipe, sink: Pipe) -> None:
    async def trickle() -> None:
        for number in range(3000):
            os.write(source.writer.fileno(), b"%d\n" % number)
            if number % 7 == 0:
                await trio.lowlevel.checkpoint()
        source.writer.close()

    async def copy_then_close() -> None:
        await Copy(source.reader, sink.writer).run()
        sink.writer.close()

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trickle)
            nursery.start_soon(copy_then_close)
            assert await read_all(sink.reader) == b"".join(b"%d\n" % number for number in range(3000))


async def test_a_full_sink_makes_the_copy_wait(source: Pipe, sink: Pipe) -> None:
    copy = Copy(source.reader, sink.writer)
    os.write(source.writer.fileno(), bytes(200_000))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(copy.run)
        await trio.testing.wait_all_tasks_blocked()
        assert copy.moved == capacity(sink.writer.fileno())
        nursery.cancel_scope.cancel()


async def test_a_file_open_for_appending_gets_it_by_hand(source: Pipe, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("before ")
    os.write(source.writer.fileno(), b"after")
    source.writer.close()
    with OwnedFd(os.open(path, os.O_WRONLY | os.O_APPEND)) as file:
        copy = Copy(source.reader, file)
        await copy.run()
    assert path.read_text() == "before after"
    assert (copy.moved, copy.spliced) == (5, False)


async def test_to_a_terminal(source: Pipe) -> None:
    master, slave = pty.openpty()
    with OwnedFd(master), OwnedFd(slave) as terminal:
        os.write(source.writer.fileno(), b"line")
        source.writer.close()
        await Copy(source.reader, terminal).run()
        assert os.read(master, 100) == b"line"


async def test_a_sink_without_readers_is_broken(source: Pipe, sink: Pipe) -> None:
    sink.reader.close()
    os.write(source.writer.fileno(), b"data")
    with pytest.raises(BrokenPipeError):
        await Copy(source.reader, sink.writer).run()


@pytest.mark.parametrize("side", ["source", "sink"])
async def test_closing_an_end_ends_the_copy(source: Pipe, sink: Pipe, side: str) -> None:
    if side == "sink":
        os.write(source.writer.fileno(), bytes(200_000))
    with pytest.RaisesGroup(trio.ClosedResourceError):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Copy(source.reader, sink.writer).run)
            await trio.testing.wait_all_tasks_blocked()
            (source.reader if side == "source" else sink.writer).close()


async def test_an_endless_source_leaves_others_their_turn(source: Pipe) -> None:
    turns = 0
    with OwnedFd(os.open("/dev/null", os.O_WRONLY)) as null, OwnedFd(os.open("/dev/zero", os.O_RDONLY)) as zero:
        copy = Copy(zero, null)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(copy.run)
            while copy.moved < 64 << 20:
                turns += 1
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    assert turns > 4


def test_a_wide_pipe_and_its_owner() -> None:
    with open_pipe(wide=True, owner=(1234, 4321)) as pipe:
        assert capacity(pipe.reader.fileno()) == 1 << 20
        found = os.fstat(pipe.reader.fileno())
        assert (found.st_uid, found.st_gid) == (1234, 4321)
        assert widen(pipe.reader.fileno(), 4096) == 4096


def test_a_closed_descriptor_is_never_hit_again() -> None:
    reader, writer = os.pipe()
    owned = OwnedFd(reader)
    owned.close()
    owned.close()
    assert owned.closed
    with pytest.raises(trio.ClosedResourceError):
        owned.fileno()
    with OwnedFd(writer) as other:
        assert other.detach() == writer
        assert other.closed
    os.close(writer)
    with pytest.raises(ValueError, match="not a descriptor"):
        OwnedFd(-1)
