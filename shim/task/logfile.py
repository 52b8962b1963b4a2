"""A file as the sink of one or two outputs: whole lines appended by one writer (protocol.md 7.2).

A disk that is full, or hangs, costs lines and never the container: what cannot be written is dropped and counted, and
the next output is tried anew.  Only whole lines are dropped; a line that was cut by a full disk is finished before
anything else is written.  Writing is done in a thread: the loop waits for no disk.  Lines of two outputs are kept
apart by holding the end of an unfinished one back until its newline or the end of the output comes; a single output is
written as it comes.
"""

from __future__ import annotations

import logging
import math
import os
from typing import TYPE_CHECKING, Final

import trio

from shim.kernel.fds import OwnedFd
from shim.kernel.threads import Threads
from shim.task.outlets import unusable

if TYPE_CHECKING:
    from shim.kernel.threads import Job

_log = logging.getLogger("shim.task.stdio")

LINE_LIMIT: Final = 1 << 20
"""Bytes of one line that are held in memory; a longer one is written in pieces."""
WRITE_SECONDS: Final = 5.0
"""How long a disk may take for one write before its lines are dropped."""
_CHUNK: Final = 1 << 16
_threads: Final = trio.lowlevel.RunVar[Threads]("shim.task.logfile.threads")


def writers() -> Threads:
    """The threads that write log files in this run of the loop: at most one for each file."""
    try:
        return _threads.get()
    except LookupError:
        made = Threads("log files", math.inf)
        _threads.set(made)
        return made


async def open_log_file(path: str, *, create: bool, outputs: int) -> LogFile:
    """The file, opened for appending by so many outputs; with `create` it and its directories are made if missing.

    Raises NotFound or InvalidArgument for a path that cannot be used.
    """

    def work(job: Job[int]) -> int:
        del job
        return _open(path, create=create)

    try:
        return LogFile(path, OwnedFd(await writers().run(f"open {path}", work, undo=os.close)), outputs)
    except OSError as error:
        raise unusable("stdio path", path, error) from error


class LogFile:
    """One open file and those who write it.  `dropped` counts the bytes that it did not take."""

    def __init__(self, path: str, fd: OwnedFd, outputs: int) -> None:
        self.path: Final = path
        self.shared: Final = outputs > 1
        self.dropped = 0
        self._outputs = outputs
        self._fd: Final = fd
        self._order: Final = trio.Lock()
        self._owed = b""
        self._mid_line = False
        self._skipping = False
        self._ends: Final[list[bytes]] = []
        self._hung: Job[tuple[int, OSError | None]] | None = None

    async def append(self, data: bytes) -> None:
        """Write `data`, or drop it; a cancelled caller still waits for a write under way, for a bounded time.

        Where the file is shared, `data` is whole lines.
        """
        if self._skipping:  # the rest of a line whose beginning was dropped
            head, newline, data = data.partition(b"\n")
            self._drop(head + newline)
        if not data:
            return
        with trio.move_on_after(2 * WRITE_SECONDS, shield=True) as scope:
            async with self._order:
                await self._append(data)
        if scope.cancelled_caught:
            self._drop(data)

    async def finish(self, end: bytes) -> None:
        """One output has ended, with an unfinished line perhaps: that is written when no lines can follow it."""
        self._ends.append(end)
        self._outputs -= 1
        if self._outputs == 0:
            for rest in self._ends:
                await self.append(rest)

    def close(self) -> None:
        """Close it, once the thread that may still write it is back."""
        if self._hung is not None:
            self._hung.at_end(self._fd.close)
        else:
            self._fd.close()
        if self.dropped:
            _log.warning("%s: %d bytes of output were dropped", self.path, self.dropped)
            self.dropped = 0

    async def _append(self, data: bytes) -> None:
        if self._owed:
            self._owed = await self._write(self._owed)
            if self._owed:
                self._drop(self._owe(data))
                return
        rest = await self._write(data)
        if rest:
            self._drop(self._owe(rest) if self._mid_line else rest)

    def _owe(self, data: bytes) -> bytes:
        """Keep the end of the line that is in the file by half; what of `data` comes after it."""
        if self._owed.endswith(b"\n"):
            return data
        head, newline, rest = data.partition(b"\n")
        self._owed = (self._owed + head)[:LINE_LIMIT] + newline
        return rest

    async def _write(self, data: bytes) -> bytes:
        """What of `data` was not written."""
        if self._hung is not None:
            return data
        fd = self._fd.fileno()

        def work(job: Job[tuple[int, OSError | None]]) -> tuple[int, OSError | None]:
            left = memoryview(data)
            while left and not job.abandoned:
                try:
                    left = left[os.write(fd, left) :]
                except OSError as error:
                    return len(data) - len(left), error
            return len(data) - len(left), None

        def hang(job: Job[tuple[int, OSError | None]]) -> None:
            self._hung = job
            job.at_end(self._unhang)

        with trio.move_on_after(WRITE_SECONDS):
            written, failure = await writers().run(f"write {self.path}", work, on_abandon=hang)
            if failure is not None and not self.dropped:
                _log.warning("%s: %s: output is dropped until it can be written again", self.path, failure)
            if written:
                self._mid_line = data[written - 1 : written] != b"\n"
            return data[written:]
        _log.warning("%s: the disk hangs: output is dropped until it comes back", self.path)
        self._mid_line = False
        return data

    def _unhang(self) -> None:
        self._hung = None

    def _drop(self, data: bytes) -> None:
        if data:
            self.dropped += len(data)
            self._skipping = not self.shared and not data.endswith(b"\n")


class FileOutlet:
    """One output of the container, appended to a file."""

    def __init__(self, source: OwnedFd, file: LogFile) -> None:
        self._source: Final = source
        self._file: Final = file
        self._line: Final = bytearray()

    @property
    def has_pending(self) -> bool:
        """Until the end: a file is always there to be written."""
        return not self._source.closed

    async def run(self) -> None:
        """Copy to the end; the last bytes are written as they are, newline or not."""
        os.set_blocking(self._source.fileno(), False)
        try:
            while data := await self._read():
                await self._file.append(self._whole_lines(data) if self._file.shared else data)
        except trio.ClosedResourceError:
            pass
        finally:
            await self._file.finish(bytes(self._line))
            self.close()

    def close(self) -> None:
        """Let go of the pipe; the file is the streams'."""
        self._source.close()

    async def _read(self) -> bytes:
        while True:
            await trio.lowlevel.checkpoint_if_cancelled()  # no other wait of the loop above heeds a cancellation
            try:
                return os.read(self._source.fileno(), _CHUNK)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._source.fileno())

    def _whole_lines(self, data: bytes) -> bytes:
        self._line.extend(data)
        end = self._line.rfind(b"\n") + 1
        if not end and len(self._line) >= LINE_LIMIT:
            end = len(self._line)
        lines = bytes(self._line[:end])
        del self._line[:end]
        return lines


def _open(path: str, *, create: bool) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
    if not create:
        return os.open(path, flags)
    _make_directories(os.path.dirname(path))
    try:
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return os.open(path, flags | os.O_CREAT, 0o644)
    os.fchmod(fd, 0o644)  # whatever the umask
    return fd


def _make_directories(path: str) -> None:
    if not path or os.path.isdir(path):
        return
    _make_directories(os.path.dirname(path.rstrip("/")))
    try:
        os.mkdir(path, 0o755)
    except FileExistsError:  # somebody else's, a moment ago
        return
    os.chmod(path, 0o755)
