"""Streams without a terminal, over real fifos: what is wrong is refused before anything runs, and nothing stays."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from shim.errors import InvalidArgument, NotFound
from shim.kernel.children import SubreaperChildren
from shim.model import lifecycle
from shim.task.loggers import Owner
from shim.task.process import Process, StdioPaths
from shim.task.stdio import open_streams
from tests.fakes.leaks import nothing_left
from tests.system.harness.fifos import open_reader, open_writer

if TYPE_CHECKING:
    from pathlib import Path

    from shim.task.streams import Streams

__all__ = ["nothing_left"]

pytestmark = pytest.mark.usefixtures("nothing_left")


async def _open(**paths: object) -> Streams:
    stdio = StdioPaths(**{name: value if isinstance(value, bool) else str(value) for name, value in paths.items()})  # type: ignore[arg-type]
    return await open_streams(
        stdio, children=SubreaperChildren(), owner=Owner("me", "ns", "/"), pipe_owner=(os.getuid(), os.getgid())
    )


def _fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


def _take(streams: Streams) -> dict[int, int]:
    """The runtime's copies."""
    taken = {number: os.dup(fd) for number, fd in streams.child_fds.items()}
    streams.release_child_ends()
    return taken


async def test_no_paths_are_no_streams(nursery: trio.Nursery) -> None:
    streams = await _open()
    assert streams.child_fds == {}
    assert streams.console_socket == ""
    streams.start(nursery)
    await streams.connected()
    streams.resize(80, 25)
    streams.close_stdin()
    streams.process_ended()
    await streams.drained()
    await streams.aclose()


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize(
    ("paths", "error"),
    [
        ({"stdin": "none"}, NotFound),
        ({"stdin": "file"}, InvalidArgument),
        ({"stdout": "none"}, NotFound),
        ({"stdin": "fifo", "stdout": "none"}, NotFound),
        ({"stdin": "fifo", "stdout": "directory"}, InvalidArgument),
    ],
)
async def test_a_path_that_cannot_be_used_is_refused(
    tmp_path: Path, paths: dict[str, str], error: type[Exception], terminal: bool
) -> None:
    _fifo(tmp_path / "fifo")
    (tmp_path / "file").touch()
    (tmp_path / "directory").mkdir()
    with pytest.raises(error):
        await _open(**{name: tmp_path / value for name, value in paths.items()}, terminal=terminal)


async def test_second_of_two_that_cannot_be_used_closes_the_first(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        await _open(stdout=f"file://{tmp_path}/made", stderr=tmp_path / "none")
    with pytest.raises(InvalidArgument):
        await _open(stdout=_fifo(tmp_path / "fifo"), stderr="npipe:///x")


async def test_all_three_are_copied(tmp_path: Path, nursery: trio.Nursery) -> None:
    stdin, stdout, stderr = (_fifo(tmp_path / name) for name in ("in", "out", "err"))
    streams = await _open(stdin=stdin, stdout=stdout, stderr=stderr)
    streams.start(nursery)
    await streams.connected()
    fds = _take(streams)
    async with open_reader(stdout) as out, open_reader(stderr) as err:
        async with open_writer(stdin) as writer:
            await writer.send(b"typed")
        await trio.lowlevel.wait_readable(fds[0])
        assert os.read(fds[0], 100) == b"typed"
        os.write(fds[1], b"said")
        os.write(fds[2], b"complained")
        streams.close_stdin()
        await trio.lowlevel.wait_readable(fds[0])
        assert os.read(fds[0], 100) == b""
        for fd in fds.values():
            os.close(fd)
        await streams.drained()
        assert (await out.read_all(), await err.read_all()) == (b"said", b"complained")
    await streams.aclose()


async def test_output_waits_for_its_reader_and_holds_up_no_deletion_without(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    streams = await _open(stdout=_fifo(tmp_path / "out"), stderr=_fifo(tmp_path / "err"))
    streams.start(nursery)
    await streams.connected()
    fds = _take(streams)
    os.close(fds[2])
    os.write(fds[1], b"x")
    os.close(fds[1])
    with trio.move_on_after(0.05) as scope:
        await streams.drained()
    assert scope.cancelled_caught
    async with open_reader(tmp_path / "out") as out:
        await streams.drained()  # nobody reads stderr, which said nothing
        assert await out.read_all() == b"x"
    await streams.aclose()


async def test_a_deletion_may_give_up_on_what_nobody_reads(tmp_path: Path, nursery: trio.Nursery) -> None:
    streams = await _open(stdin=_fifo(tmp_path / "in"), stdout=_fifo(tmp_path / "out"))
    streams.start(nursery)
    await streams.connected()
    fds = _take(streams)
    os.write(fds[1], b"x")
    await trio.testing.wait_all_tasks_blocked(0.01)
    with trio.fail_after(5):
        await streams.aclose()
        await streams.aclose()
    for fd in fds.values():
        os.close(fd)


async def test_streams_that_never_began_are_closed(tmp_path: Path) -> None:
    streams = await _open(stdin=_fifo(tmp_path / "in"), stdout=_fifo(tmp_path / "out"), stderr=f"file://{tmp_path}/log")
    await streams.aclose()


async def test_a_process_remembers_what_was_asked_before_its_streams(tmp_path: Path, nursery: trio.Nursery) -> None:
    process = Process("e", StdioPaths(), lifecycle.EXEC, lambda _process, _record: None)
    process.close_stdin()
    process.resize(120, 40)
    stdin = _fifo(tmp_path / "in")
    writer = os.open(stdin, os.O_RDWR)
    os.write(writer, b"data")
    streams = await _open(stdin=stdin)
    process.attach(streams)
    os.close(writer)
    fds = _take(streams)
    streams.start(nursery)
    await streams.connected()
    for expected in (b"data", b""):
        await trio.lowlevel.wait_readable(fds[0])
        assert os.read(fds[0], 100) == expected
    os.close(fds[0])
    await streams.aclose()
