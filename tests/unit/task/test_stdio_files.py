"""Log files: whole lines, two outputs, full and hanging disks, places that must be made."""

from __future__ import annotations

import errno
import os
import stat
import threading
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from shim.errors import InvalidArgument, NotFound
from shim.kernel.pipes import Pipe, open_pipe
from shim.task import logfile
from shim.task.logfile import FileOutlet, LogFile, open_log_file
from tests.fakes.leaks import nothing_left

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from typing_extensions import Buffer

__all__ = ["nothing_left"]

pytestmark = pytest.mark.usefixtures("nothing_left")


class Disk:
    """Stands in for write(2): `room` bytes are left, None for plenty."""

    def __init__(self, write: Callable[[int, Buffer], int]) -> None:
        self.room: int | None = None
        self._write = write

    def write(self, fd: int, data: Buffer) -> int:
        """As much as there is room for; ENOSPC without any."""
        view = memoryview(data)
        if self.room is None:
            return self._write(fd, view)
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self._write(fd, view[: self.room])
        self.room -= written
        return written


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk(os.write)
    monkeypatch.setattr(logfile.os, "write", made.write)  # type: ignore[attr-defined]
    return made


async def test_file_and_parents_are_made_with_their_modes_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        path = tmp_path / "a" / "b" / "log"
        (await open_log_file(str(path), create=True, outputs=1)).close()
    finally:
        os.umask(before)
    assert [stat.S_IMODE(place.stat().st_mode) for place in (path, path.parent, path.parent.parent)] == [
        0o644,
        0o755,
        0o755,
    ]


async def test_paths_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").touch()
    with pytest.raises(NotFound):
        await open_log_file(str(tmp_path / "none"), create=False, outputs=1)
    for name in ("", "fifo", "file/x"):
        with pytest.raises(InvalidArgument):
            await open_log_file(str(tmp_path / name), create=True, outputs=1)


async def test_what_is_there_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"before\n")
    path.chmod(0o600)
    file = await open_log_file(str(path), create=True, outputs=1)
    await file.append(b"after\n")
    file.close()
    assert path.read_bytes() == b"before\nafter\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def _run(file: LogFile, *writes: tuple[int, bytes]) -> None:
    """Outputs 0 and 1 in one file, fed in that order, each write seen before the next."""
    pipes: list[Pipe] = [open_pipe(), open_pipe()]
    async with trio.open_nursery() as nursery:
        for pipe in pipes:
            nursery.start_soon(FileOutlet(pipe.reader, file).run)
        for number, data in writes:
            if data:
                os.write(pipes[number].writer.fileno(), data)
            else:
                pipes[number].writer.close()
            await trio.testing.wait_all_tasks_blocked(0.01)
        for pipe in pipes:
            pipe.writer.close()
    file.close()


async def test_lines_of_two_outputs_are_not_mixed(tmp_path: Path) -> None:
    file = await open_log_file(str(tmp_path / "log"), create=True, outputs=2)
    await _run(file, (0, b"one\ntw"), (1, b"ONE\nTWO\nTH"), (0, b"o\n"), (1, b"REE\n"))
    assert (tmp_path / "log").read_bytes() == b"one\nONE\nTWO\ntwo\nTHREE\n"


async def test_unfinished_lines_come_last_and_as_they_are(tmp_path: Path) -> None:
    file = await open_log_file(str(tmp_path / "log"), create=True, outputs=2)
    await _run(file, (0, b"one\nx"), (0, b""), (1, b"ONE\n"), (1, b"y"))
    assert (tmp_path / "log").read_bytes() == b"one\nONE\nxy"


async def test_a_line_beyond_the_limit_is_written_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logfile, "LINE_LIMIT", 10)
    file = await open_log_file(str(tmp_path / "log"), create=True, outputs=2)
    await _run(file, (0, b"0123456"), (0, b"789abc"), (1, b"X\n"), (0, b"d\n"))
    assert (tmp_path / "log").read_bytes() == b"0123456789abcX\nd\n"


async def test_a_single_output_is_written_as_it_comes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = await open_log_file(str(path), create=True, outputs=1)
    pipe = open_pipe()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(FileOutlet(pipe.reader, file).run)
        os.write(pipe.writer.fileno(), b"prompt> ")
        with trio.fail_after(5):
            while path.read_bytes() != b"prompt> ":
                await trio.lowlevel.checkpoint()
        pipe.writer.close()
    file.close()


@pytest.mark.parametrize("outputs", [1, 2])
async def test_full_disk_drops_whole_lines_and_goes_on(tmp_path: Path, disk: Disk, outputs: int) -> None:
    path = tmp_path / "log"
    file = await open_log_file(str(path), create=True, outputs=outputs)
    disk.room = 6
    await file.append(b"one\ntwo\nthree\n")  # two is in by half
    await file.append(b"four\n")
    await file.append(b"five\n")
    assert path.read_bytes() == b"one\ntw"
    assert file.dropped == len(b"three\nfour\nfive\n")
    disk.room = None
    await file.append(b"six\n")
    assert path.read_bytes() == b"one\ntwo\nsix\n"
    file.close()


async def test_lines_in_pieces_are_dropped_whole_or_kept_whole(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "log"
    file = await open_log_file(str(path), create=True, outputs=1)
    await file.append(b"kept ")
    disk.room = 0
    await file.append(b"in ")
    await file.append(b"pieces\nlost ")
    await file.append(b"in pieces\nlost too ")
    disk.room = None
    await file.append(b"and this\nlast\n")
    file.close()
    assert path.read_bytes() == b"kept in pieces\nlast\n"


async def test_a_disk_that_hangs_costs_lines_and_no_thread_more_than_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logfile, "WRITE_SECONDS", 0.1)
    path = tmp_path / "log"
    file = await open_log_file(str(path), create=True, outputs=1)
    go_on = threading.Event()
    real = os.write

    def hang(fd: int, data: Buffer) -> int:
        go_on.wait(10)
        return real(fd, data)

    monkeypatch.setattr(logfile.os, "write", hang)  # type: ignore[attr-defined]
    await file.append(b"one\n")
    assert len(logfile.writers().stuck()) == 1
    for _ in range(100):
        await file.append(b"two\n")
    assert len(logfile.writers().stuck()) == 1
    assert file.dropped == len(b"one\n" + b"two\n" * 100)
    file.close()  # the thread still has it
    go_on.set()
    while logfile.writers().stuck():
        await trio.lowlevel.checkpoint()
    assert path.read_bytes() == b"one\n"


async def test_a_cancelled_copy_writes_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = await open_log_file(str(path), create=True, outputs=2)
    pipes = [open_pipe(), open_pipe()]
    async with trio.open_nursery() as nursery:
        for pipe in pipes:
            nursery.start_soon(FileOutlet(pipe.reader, file).run)
        os.write(pipes[0].writer.fileno(), b"a\nb")
        await trio.testing.wait_all_tasks_blocked(0.01)
        nursery.cancel_scope.cancel()
    file.close()
    for pipe in pipes:
        pipe.close()
    assert path.read_bytes() == b"a\nb"


async def test_an_output_that_never_pauses_can_be_cancelled(tmp_path: Path) -> None:
    file = await open_log_file(str(tmp_path / "log"), create=True, outputs=1)
    with open_pipe(wide=True) as pipe, trio.fail_after(5):
        os.set_blocking(pipe.writer.fileno(), False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(FileOutlet(pipe.reader, file).run)
            for _ in range(50):
                os.write(pipe.writer.fileno(), b"y\n" * 1000)
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    file.close()
