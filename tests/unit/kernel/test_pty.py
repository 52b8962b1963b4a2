"""Real terminals: received over a socket, sized, emptied until their end."""

from __future__ import annotations

import contextlib
import os
import socket
import termios
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from shim.errors import InvalidArgument
from shim.kernel import pty
from shim.kernel.fds import OwnedFd
from shim.kernel.pipes import Pipe, open_pipe

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def terminal() -> Iterator[tuple[OwnedFd, OwnedFd]]:
    """Master and slave; the slave passes bytes on as they are."""
    master, slave = (OwnedFd(fd) for fd in os.openpty())
    mode = termios.tcgetattr(slave.fileno())
    mode[1] &= ~termios.OPOST
    termios.tcsetattr(slave.fileno(), termios.TCSANOW, mode)
    os.set_blocking(master.fileno(), False)
    with master, slave:
        yield master, slave


@pytest.fixture
def sink() -> Iterator[Pipe]:
    with open_pipe() as pipe:
        os.set_blocking(pipe.writer.fileno(), False)
        os.set_blocking(pipe.reader.fileno(), False)
        yield pipe


async def _send(data: bytes, fds: list[int]) -> OwnedFd:
    left, right = socket.socketpair()
    with left, right:
        socket.send_fds(left, [data], fds) if fds else left.send(data) if data else None
        left.close()
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(right.dup()))
        async with stream:
            return await pty.receive_master(stream)


async def test_one_terminal_with_a_name_is_taken(terminal: tuple[OwnedFd, OwnedFd]) -> None:
    master, _ = terminal
    with await _send(b"/dev/ptmx", [master.fileno()]) as received:
        assert os.path.sameopenfile(received.fileno(), master.fileno())
        assert not os.get_inheritable(received.fileno())


@pytest.mark.parametrize(
    ("data", "what", "text"),
    [
        (b"x" * 4096, "master", "4096 bytes"),
        (b"x", "two", "exactly one"),
        (b"x", "many", "exactly one"),
        (b"x", "none", "exactly one"),
        (b"x", "pipe", "no terminal"),
        (b"", "none", "hung up"),
    ],
)
async def test_anything_else_is_refused_and_closed(
    terminal: tuple[OwnedFd, OwnedFd], sink: Pipe, data: bytes, what: str, text: str
) -> None:
    master, slave = (fd.fileno() for fd in terminal)
    fds = {
        "master": [master],
        "two": [master, slave],
        "many": [master] * 20,
        "none": [],
        "pipe": [sink.reader.fileno()],
    }
    with pytest.raises(InvalidArgument, match=text):
        await _send(data, fds[what])


def test_a_size_is_cut_to_sixteen_bits(terminal: tuple[OwnedFd, OwnedFd]) -> None:
    master, slave = terminal
    for given, seen in (
        ((120, 40), (120, 40)),
        ((65536, 65537), (0, 1)),
        ((0, 0), (0, 0)),
        ((2**32 - 1, 1), (65535, 1)),
    ):
        pty.set_size(master, *given)
        assert termios.tcgetwinsize(slave.fileno()) == seen[::-1]


def test_the_end_of_input_is_the_terminals_own_character(terminal: tuple[OwnedFd, OwnedFd]) -> None:
    master, slave = terminal
    assert pty.end_of_input(master) == b"\x04"
    mode = termios.tcgetattr(slave.fileno())
    mode[6][termios.VEOF] = b"\0"
    termios.tcsetattr(slave.fileno(), termios.TCSANOW, mode)
    assert pty.end_of_input(master) == b""


def test_a_peer_keeps_the_terminal_from_hanging_up(terminal: tuple[OwnedFd, OwnedFd]) -> None:
    master, slave = terminal
    peer = pty.open_peer(master)
    assert peer is not None
    with peer:
        os.write(slave.fileno(), b"x")
        slave.close()
        assert pty.has_output(master)
        assert os.read(master.fileno(), 10) == b"x"
        with pytest.raises(BlockingIOError):
            os.read(master.fileno(), 10)
    with pytest.raises(OSError, match="Input/output error") as caught:
        os.read(master.fileno(), 10)
    assert pty.is_hang_up(caught.value)


async def test_drain_moves_everything_until_the_last_slave_is_closed(
    terminal: tuple[OwnedFd, OwnedFd], sink: Pipe
) -> None:
    master, slave = terminal
    data = bytes(range(1, 256)) * 4000  # ten times what sink and terminal hold together

    def write() -> None:
        with slave:
            view = memoryview(data)
            while view:
                view = view[os.write(slave.fileno(), view) :]

    got = bytearray()

    async def read() -> None:
        while len(got) < len(data):
            await trio.lowlevel.wait_readable(sink.reader.fileno())
            got.extend(os.read(sink.reader.fileno(), 65536))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, write)
        nursery.start_soon(read)
        with trio.fail_after(20):
            done = await pty.drain(master, sink.writer, seconds=20)
    assert done == pty.Drained(len(data), 0, pty.Ending.HUNG_UP)
    assert bytes(got) == data


async def test_drain_ends_in_time_when_somebody_keeps_the_terminal(
    terminal: tuple[OwnedFd, OwnedFd], sink: Pipe
) -> None:
    master, slave = terminal
    os.write(slave.fileno(), b"abc")
    assert await pty.drain(master, sink.writer, seconds=0.05) == pty.Drained(3, 0, pty.Ending.OUT_OF_TIME)
    assert os.read(sink.reader.fileno(), 10) == b"abc"


async def test_drain_reads_nothing_that_a_full_sink_cannot_take(terminal: tuple[OwnedFd, OwnedFd], sink: Pipe) -> None:
    master, slave = terminal
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(sink.writer.fileno(), b"\0" * 4096)
    os.write(slave.fileno(), b"abc")
    assert await pty.drain(master, sink.writer, seconds=0.05) == pty.Drained(0, 0, pty.Ending.OUT_OF_TIME)
    assert os.read(master.fileno(), 10) == b"abc"


async def test_drain_says_when_nobody_can_read_the_sink(terminal: tuple[OwnedFd, OwnedFd], sink: Pipe) -> None:
    master, slave = terminal
    sink.reader.close()
    os.write(slave.fileno(), b"abc")
    assert await pty.drain(master, sink.writer, seconds=5) == pty.Drained(0, 3, pty.Ending.SINK_GONE)


async def test_a_cancelled_drain_lets_its_thread_go(terminal: tuple[OwnedFd, OwnedFd], sink: Pipe) -> None:
    master, _ = terminal
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: pty.drain(master, sink.writer, seconds=100))
        await trio.testing.wait_all_tasks_blocked(0.02)
        nursery.cancel_scope.cancel()
    with trio.fail_after(5):
        while pty.drains().stuck():
            await trio.lowlevel.checkpoint()
