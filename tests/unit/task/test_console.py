"""Terminals: this test plays the runtime, which sends the master, and the program behind it, which has the slave."""

from __future__ import annotations

import os
import socket
import termios
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from shim.errors import DeadlineExceeded, Unknown
from shim.kernel import pty
from shim.kernel.children import SubreaperChildren
from shim.kernel.fds import OwnedFd
from shim.task import consolesocket
from shim.task.consolesocket import ConsoleSocket
from shim.task.loggers import Owner
from shim.task.process import StdioPaths
from shim.task.stdio import open_streams
from tests.fakes.leaks import nothing_left
from tests.system.harness.fifos import open_reader, open_writer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shim.task.streams import Streams

__all__ = ["nothing_left"]

pytestmark = pytest.mark.usefixtures("nothing_left")


async def _open(*, stdin: object = "", stdout: object = "") -> Streams:
    return await open_streams(
        StdioPaths(str(stdin), str(stdout), terminal=True),
        children=SubreaperChildren(),
        owner=Owner("me", "ns", "/"),
        pipe_owner=(os.getuid(), os.getgid()),
    )


def _fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


def _send(path: str, fds: list[int], name: bytes = b"/dev/ptmx") -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sender:
        sender.connect(path)
        if fds:
            socket.send_fds(sender, [name], fds)


@pytest.fixture
def slave() -> Iterator[OwnedFd]:
    """The program's end; the master is sent by `_hand_over`."""
    master, slave = (OwnedFd(fd) for fd in os.openpty())
    _masters.append(master)
    with master, slave:
        yield slave
    _masters.clear()


_masters: list[OwnedFd] = []


async def _hand_over(streams: Streams) -> None:
    """What a runtime does: send the master and go."""
    (master,) = _masters
    _send(streams.console_socket, [master.fileno()])
    master.close()
    await streams.connected()


async def test_output_input_and_size(tmp_path: Path, slave: OwnedFd, nursery: trio.Nursery) -> None:
    stdin, stdout = _fifo(tmp_path / "in"), _fifo(tmp_path / "out")
    streams = await _open(stdin=stdin, stdout=stdout)
    assert streams.child_fds == {}
    streams.resize(120, 40)
    streams.start(nursery)
    place = Path(streams.console_socket).parent
    assert place.stat().st_mode & 0o777 == 0o700
    await _hand_over(streams)
    assert not place.exists()
    assert termios.tcgetwinsize(slave.fileno()) == (40, 120)
    streams.resize(100, 30)
    assert termios.tcgetwinsize(slave.fileno()) == (30, 100)
    async with open_reader(stdout) as output:
        async with open_writer(stdin) as writer:
            await writer.send(b"typed\n")
        await trio.lowlevel.wait_readable(slave.fileno())
        assert os.read(slave.fileno(), 100) == b"typed\n"
        os.write(slave.fileno(), b"said\n")
        slave.close()
        streams.process_ended()
        await streams.drained()
        assert await output.read_all() == b"typed\r\nsaid\r\n"
    streams.resize(10, 10)
    streams.close_stdin()
    await streams.aclose()


@pytest.mark.parametrize("text", [b"", b"line\n", b"half a line"])
async def test_the_end_of_input_is_typed(tmp_path: Path, slave: OwnedFd, nursery: trio.Nursery, text: bytes) -> None:
    stdin = _fifo(tmp_path / "in")
    streams = await _open(stdin=stdin)
    streams.start(nursery)
    await _hand_over(streams)
    async with open_writer(stdin) as writer:
        await writer.send(text)
    streams.close_stdin()
    seen = [await trio.to_thread.run_sync(os.read, slave.fileno(), 100) for _ in range(2 if text else 1)]
    assert seen == ([text, b""] if text else [b""])
    await streams.aclose()


async def test_a_program_may_close_its_last_slave_and_open_another(
    tmp_path: Path, slave: OwnedFd, nursery: trio.Nursery
) -> None:
    stdout = _fifo(tmp_path / "out")
    streams = await _open(stdout=stdout)
    streams.start(nursery)
    name = os.ttyname(slave.fileno())
    await _hand_over(streams)
    async with open_reader(stdout) as output:
        for word in (b"first", b"second"):
            os.write(slave.fileno(), word)
            slave.close()
            await output.wait_for(lambda data, word=word: data.endswith(word))  # type: ignore[misc]
            slave = OwnedFd(os.open(name, os.O_RDWR | os.O_NOCTTY))
        slave.close()
        assert not output.ended.is_set()
        streams.process_ended()
        assert await output.read_all() == b"firstsecond"
    await streams.aclose()


async def test_without_a_slave_of_our_own_the_end_is_the_process(
    tmp_path: Path, slave: OwnedFd, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pty, "open_peer", lambda _master: None)
    streams = await _open(stdout=_fifo(tmp_path / "out"))
    streams.start(nursery)
    name = os.ttyname(slave.fileno())
    await _hand_over(streams)
    async with open_reader(tmp_path / "out") as output:
        slave.close()
        await trio.testing.wait_all_tasks_blocked(0.02)
        with OwnedFd(os.open(name, os.O_RDWR | os.O_NOCTTY)) as again:
            os.write(again.fileno(), b"again")
            await output.wait_for(lambda data: data == b"again")
        streams.process_ended()
        assert await output.read_all() == b"again"
    await streams.aclose()


async def test_a_stray_holder_is_waited_for_until_the_deletion_gives_up(
    tmp_path: Path, slave: OwnedFd, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shim.task.console.DRAIN_SECONDS", 0.05)
    streams = await _open(stdout=_fifo(tmp_path / "out"))
    streams.start(nursery)
    await _hand_over(streams)
    async with open_reader(tmp_path / "out") as output:
        os.write(slave.fileno(), b"first ")
        await output.wait_for(lambda data: data == b"first ")
        streams.process_ended()
        with trio.move_on_after(0.2) as scope:
            await streams.drained()
        assert scope.cancelled_caught
        os.write(slave.fileno(), b"late")
        await output.wait_for(lambda data: data == b"first late")
        await streams.aclose()
        assert await output.read_all() == b"first late"


async def test_nothing_is_lost_while_nobody_reads(tmp_path: Path, slave: OwnedFd, nursery: trio.Nursery) -> None:
    data = b"".join(b"%06d\n" % number for number in range(60_000))
    streams = await _open(stdout=_fifo(tmp_path / "out"))
    streams.start(nursery)
    await _hand_over(streams)

    def write() -> None:
        with slave:
            view = memoryview(data)
            while view:
                view = view[os.write(slave.fileno(), view) :]

    # The reader comes, stops reading with everything full, and the process ends then.
    reader = os.open(tmp_path / "out", os.O_RDONLY | os.O_NONBLOCK)
    with trio.fail_after(20):
        async with trio.open_nursery() as inner:
            inner.start_soon(trio.to_thread.run_sync, write)
            await trio.testing.wait_all_tasks_blocked(0.1)
            streams.process_ended()
            await trio.testing.wait_all_tasks_blocked(0.1)
            async with open_reader(tmp_path / "out") as output:
                os.close(reader)
                assert await output.read_all(timeout=20) == data.replace(b"\n", b"\r\n")
        await streams.drained()
    await streams.aclose()


async def test_output_without_a_path_is_taken_and_thrown_away(slave: OwnedFd, nursery: trio.Nursery) -> None:
    streams = await _open()
    streams.start(nursery)
    await _hand_over(streams)
    with trio.fail_after(10):
        await trio.to_thread.run_sync(os.write, slave.fileno(), b"x" * 500_000)
        slave.close()
        streams.process_ended()
        await streams.drained()
    await streams.aclose()


async def test_output_to_a_file(tmp_path: Path, slave: OwnedFd, nursery: trio.Nursery) -> None:
    streams = await _open(stdout=f"file://{tmp_path}/log")
    streams.start(nursery)
    streams.release_child_ends()
    await _hand_over(streams)
    os.write(slave.fileno(), b"no newline")
    slave.close()
    streams.process_ended()
    await streams.drained()
    assert (tmp_path / "log").read_bytes() == b"no newline"
    await streams.aclose()


@pytest.mark.parametrize("what", ["nothing", "pipe", "two"])
async def test_what_is_no_console_is_told(slave: OwnedFd, nursery: trio.Nursery, what: str) -> None:
    streams = await _open()
    streams.start(nursery)
    place = Path(streams.console_socket).parent
    reader, writer = os.pipe()
    _send(streams.console_socket, {"nothing": [], "pipe": [reader], "two": [slave.fileno()] * 2}[what])
    os.close(reader)
    os.close(writer)
    with pytest.raises(Unknown, match="failed to retrieve console master: "):
        await streams.connected()
    assert not place.exists()
    await streams.aclose()


async def test_a_console_that_does_not_come_is_waited_for_in_bounds(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    streams = await _open()
    streams.start(nursery)
    place = Path(streams.console_socket).parent
    with pytest.raises(DeadlineExceeded, match="within 30 s"):
        await streams.connected()
    await streams.aclose()
    assert not place.exists()


async def test_the_socket_is_somewhere_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for base in (str(tmp_path / ("x" * 100)), "relative", "", str(tmp_path / "none")):
        monkeypatch.setenv("TMPDIR", base)
        with closing(ConsoleSocket.open()) as opened:
            assert len(os.fsencode(opened.path)) <= consolesocket.PATH_LIMIT
            assert Path(opened.path).is_socket()
        assert not Path(opened.path).parent.exists()
