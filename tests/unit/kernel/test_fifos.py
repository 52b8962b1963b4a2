"""Clients may come late, go, come again, rename their fifo, or never come."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from shim.errors import InvalidArgument
from shim.kernel.fds import OwnedFd
from shim.kernel.fifos import Fifo, FifoEnds, is_fifo, open_input, open_output, waiting_opens

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> str:
    made = tmp_path / "out"
    os.mkfifo(made)
    return str(made)


def client(path: str, flags: int = os.O_RDONLY) -> OwnedFd:
    return OwnedFd(os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC))


async def come_back() -> None:
    """Until every abandoned thread has ended."""
    with trio.fail_after(10):
        while waiting_opens().stuck():
            await trio.lowlevel.checkpoint()


async def test_a_client_that_reads_already_costs_no_thread(path: str) -> None:
    with client(path) as reader, await open_output(path) as ends:
        os.write(ends.end.fileno(), b"data")
        assert os.read(reader.fileno(), 10) == b"data"
        assert not os.get_blocking(ends.end.fileno())


async def test_a_client_that_comes_later_is_waited_for(path: str) -> None:
    opened: list[FifoEnds] = []

    async def wait() -> None:
        opened.append(await open_output(path))

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            assert not opened
            reader = client(path)
    with reader, opened[0] as ends:
        assert not os.get_blocking(ends.end.fileno())
        os.write(ends.end.fileno(), b"data")
        assert os.read(reader.fileno(), 10) == b"data"


async def test_a_client_may_go_and_another_come(path: str) -> None:
    with client(path) as first, await open_output(path) as ends:
        first.close()
        os.write(ends.end.fileno(), b"kept")
        with client(path) as second:
            assert os.read(second.fileno(), 10) == b"kept"
            ends.close()
            assert os.read(second.fileno(), 10) == b""


async def test_a_renamed_fifo_is_still_the_one(path: str) -> None:
    opened: list[OwnedFd] = []
    with Fifo(path) as fifo, trio.fail_after(10):

        async def wait() -> None:
            opened.append(await fifo.open_writer())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            os.rename(path, path + ".new")
            os.mkfifo(path)
            reader = client(path + ".new")
    with reader, opened[0] as writer:
        os.write(writer.fileno(), b"x")
        assert os.read(reader.fileno(), 10) == b"x"


async def test_a_cancelled_wait_leaves_nothing_open(path: str) -> None:
    for _ in range(20):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(open_output, path)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        await come_back()


async def test_a_wait_cancelled_before_it_began_leaves_nothing_open(path: str) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await open_output(path)
    assert scope.cancelled_caught


async def test_a_wait_cancelled_at_once_leaves_nothing_open(path: str) -> None:
    """The thread may stand anywhere between its start and open(2)."""
    for turns in range(12):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(open_output, path)
                for _ in range(turns):
                    await trio.lowlevel.checkpoint()
                scope.cancel()
        await come_back()


async def test_the_handle_may_go_while_an_open_waits(path: str) -> None:
    fifo = Fifo(path)
    opened: list[OwnedFd] = []

    async def wait() -> None:
        opened.append(await fifo.open_writer())

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            fifo.close()
            reader = client(path)
    reader.close()
    opened[0].close()


async def test_input_reads_before_and_after_its_client(path: str) -> None:
    with open_input(path) as ends:
        with pytest.raises(BlockingIOError):
            os.read(ends.end.fileno(), 10)
        with client(path, os.O_WRONLY) as writer:
            os.write(writer.fileno(), b"typed")
        assert os.read(ends.end.fileno(), 10) == b"typed"
        with pytest.raises(BlockingIOError):
            os.read(ends.end.fileno(), 10)
        ends.keeper.close()
        assert os.read(ends.end.fileno(), 10) == b""


async def test_what_is_no_fifo_is_refused(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    assert not is_fifo(str(plain))
    with pytest.raises(InvalidArgument, match="is not a fifo"):
        await open_output(str(plain))
    with pytest.raises(InvalidArgument, match="is not a fifo"):
        open_input(str(plain))
    with pytest.raises(FileNotFoundError):
        await open_output(str(tmp_path / "nothing"))


async def test_writing_without_a_reader_says_so(path: str) -> None:
    assert is_fifo(path)
    with Fifo(path) as fifo, pytest.raises(OSError, match="No such device") as caught:
        fifo.open_nowait(os.O_WRONLY)
    assert caught.value.errno == errno.ENXIO
