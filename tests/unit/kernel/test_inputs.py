"""A stdin fifo and its clients: before us, after us, after CloseIO, never."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from shim.errors import InvalidArgument
from shim.kernel.fds import OwnedFd
from shim.kernel.inputs import LATE_CLIENT_SECONDS, InputFifo

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> str:
    made = tmp_path / "in"
    os.mkfifo(made)
    return str(made)


@pytest.fixture
def fifo(path: str) -> Iterator[InputFifo]:
    opened = InputFifo(path)
    yield opened
    opened.close()


def client(path: str) -> OwnedFd:
    return OwnedFd(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))


def read(fifo: InputFifo) -> bytes:
    return os.read(fifo.reader.fileno(), 100)


def test_clients_may_come_and_go_until_the_keeper_is_closed(path: str, fifo: InputFifo) -> None:
    for word in (b"one", b"two"):
        with client(path) as writer:
            os.write(writer.fileno(), word)
        assert read(fifo) == word
        with pytest.raises(BlockingIOError):
            read(fifo)
    fifo.close_keeper()
    assert read(fifo) == b""


def test_what_is_there_at_the_first_look_is_kept(path: str) -> None:
    held = OwnedFd(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    os.write(held.fileno(), b"early")
    fifo = InputFifo(path)
    held.close()
    assert fifo.head == b"early"
    fifo.close()


async def test_a_client_that_stands_in_its_open_is_seen(path: str) -> None:
    opened: list[OwnedFd] = []

    def open_blocking() -> None:
        opened.append(OwnedFd(os.open(path, os.O_WRONLY | os.O_CLOEXEC)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, open_blocking)
        await trio.testing.wait_all_tasks_blocked(0.05)
        fifo = InputFifo(path)
    fifo.close_keeper()
    with pytest.raises(BlockingIOError):  # not the end: it is there
        read(fifo)
    opened[0].close()
    assert read(fifo) == b""
    assert not await fifo.wait_late_client()
    fifo.close()


async def test_a_client_that_comes_after_the_keeper_went_is_waited_for(path: str, fifo: InputFifo) -> None:
    fifo.close_keeper()
    assert read(fifo) == b""

    async def come() -> None:
        await trio.testing.wait_all_tasks_blocked()
        with client(path) as writer:
            os.write(writer.fileno(), b"late")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(come)
        assert await fifo.wait_late_client()
    assert read(fifo) == b"late"
    assert read(fifo) == b""
    assert not await fifo.wait_late_client()


async def test_a_client_that_never_comes_costs_a_moment(
    fifo: InputFifo, autojump_clock: trio.testing.MockClock
) -> None:
    fifo.close_keeper()
    began = trio.current_time()
    assert not await fifo.wait_late_client()
    assert trio.current_time() - began == LATE_CLIENT_SECONDS


def test_no_fifo_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        InputFifo(str(tmp_path / "none"))
    (tmp_path / "file").touch()
    with pytest.raises(InvalidArgument):
        InputFifo(str(tmp_path / "file"))


@pytest.mark.parametrize("there", ["gone before it is noted", "there when it is noted"])
def test_a_client_that_left_before_the_start_has_ended_its_input(path: str, fifo: InputFifo, there: str) -> None:
    writer = client(path)
    os.write(writer.fileno(), b"all")
    if there == "gone before it is noted":
        writer.close()
    fifo.note_client()
    writer.close()
    fifo.end_if_left()
    assert (read(fifo), read(fifo)) == (b"all", b"")


def test_a_client_that_stays_has_not_ended_its_input(path: str, fifo: InputFifo) -> None:
    with client(path) as writer:
        os.write(writer.fileno(), b"some")
        fifo.note_client()
        fifo.end_if_left()
        assert read(fifo) == b"some"
    with pytest.raises(BlockingIOError):
        read(fifo)


@pytest.mark.parametrize("text", [b"", b"some"])
def test_only_a_client_that_came_early_and_wrote_can_end_its_input(path: str, fifo: InputFifo, text: bytes) -> None:
    if not text:  # one that left without a word is as good as none
        client(path).close()
    fifo.note_client()
    with client(path) as writer:
        os.write(writer.fileno(), text)
    if text:
        fifo.end_if_left()
        assert read(fifo) == text
    with pytest.raises(BlockingIOError):
        read(fifo)
