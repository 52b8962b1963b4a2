"""The streams of a process without a terminal: our pipes on one side, the client's fifos or files on the other.

Everything is made before the runtime runs, so that a wrong path fails Create, and nothing waits for a client: an output
whose fifo nobody reads stays in its pipe until somebody does (design section 7).  Each copier owns what it copies
between and closes it when it ends; `aclose` returns when nothing is left open.
"""

from __future__ import annotations

import array
import fcntl
import logging
import os
import termios
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Protocol, Self

import trio

from shim.errors import InvalidArgument, NotFound, Unknown
from shim.kernel import fifos
from shim.kernel.copy import Copy
from shim.kernel.fds import OwnedFd
from shim.kernel.pipes import open_pipe
from shim.model.sinks import Discard, Fifo, Sink, parse_sink

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shim.kernel.pipes import Pipe
    from shim.task.process import StdioPaths

_log = logging.getLogger("shim.task.stdio")

ENDED: Final = (trio.ClosedResourceError, BrokenPipeError)


class Copier(Protocol):
    """One stream being copied, in a task of its own."""

    async def run(self) -> None:
        """Copy to the end; owns and closes both sides."""

    @property
    def has_pending(self) -> bool:
        """Whether a Delete should wait for it."""


class Outlet:
    """One output of the container, handed over to a fifo as soon as a client reads it, or to a file."""

    def __init__(self, source: OwnedFd, path: str) -> None:
        """Raises NotFound or InvalidArgument for a path that cannot be used."""
        self.path: Final = path
        self._source: Final = source
        self._opened = False
        self._file: OwnedFd | None = None
        self._fifo: fifos.Fifo | None = None
        try:
            if fifos.is_fifo(path):
                self._fifo = fifos.Fifo(path)
            else:
                self._file = OwnedFd(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY))
        except FileNotFoundError as error:
            raise NotFound(f"stdio path {path}: no such file") from error
        except OSError as error:
            raise InvalidArgument(f"stdio path {path}: {error.strerror}") from error

    @property
    def has_pending(self) -> bool:
        """A fifo that nobody ever opened and an empty pipe: there is nothing to wait for."""
        return self._opened or self._source.closed or _bytes_in(self._source) > 0

    async def run(self) -> None:
        """Copy to the end; a sink that fails ends the copy, and the container then gets EPIPE."""
        with ExitStack() as owned:
            owned.callback(self.close)
            try:
                if self._fifo is None:
                    assert self._file is not None
                    sink = self._file
                else:
                    sink = owned.enter_context(await self._fifo.open_writer())
                    owned.enter_context(self._fifo.open_nowait(os.O_RDONLY))
                    self._fifo.close()
                self._opened = True
                await Copy(self._source, sink).run()
            except ENDED:
                pass
            except OSError as error:
                _log.warning("output to %s: %s", self.path, error)

    def close(self) -> None:
        """Let go of both sides."""
        self._source.close()
        if self._fifo is not None:
            self._fifo.close()
        if self._file is not None:
            self._file.close()


class Inlet:
    """The container's input from a client's fifo; a keeper holds off EOF until `close_keeper`."""

    has_pending = False

    def __init__(self, path: str, sink: OwnedFd) -> None:
        """Raises NotFound or InvalidArgument for a path that cannot be used."""
        self.path: Final = path
        self._sink: Final = sink
        try:
            self._ends: Final = fifos.open_input(path)
        except FileNotFoundError as error:
            raise NotFound(f"failed to open stdin fifo {path}: no such file") from error
        except OSError as error:
            raise InvalidArgument(f"failed to open stdin fifo {path}: {error.strerror}") from error

    async def run(self) -> None:
        """Copy until every writer is gone and the keeper too, or the container reads no more."""
        try:
            await Copy(self._ends.end, self._sink).run()
        except ENDED:
            pass
        except OSError as error:
            _log.warning("input from %s: %s", self.path, error)
        finally:
            self.close()

    def close_keeper(self) -> None:
        """From now on the last client to leave means EOF."""
        self._ends.keeper.close()

    def close(self) -> None:
        """Let go of both sides."""
        self._ends.close()
        self._sink.close()


class Streams:
    """All streams of one process.  `child_fds` are for the runtime; what is not in it is /dev/null."""

    def __init__(self) -> None:
        self.child_fds: Mapping[int, int] = {}
        self._child_ends: list[OwnedFd] = []
        self._copiers: list[Copier] = []
        self._scopes: dict[Copier, trio.CancelScope] = {}
        self._ended: dict[Copier, trio.Event] = {}
        self._owned = ExitStack()
        self._inlet: Inlet | None = None

    @classmethod
    def open(cls, stdio: StdioPaths, *, owner: tuple[int, int]) -> Self:
        """Pipes (the container's side belongs to `owner`, uid and gid) and the client's paths.

        Raises InvalidArgument or NotFound for a path or scheme that cannot be used; nothing stays open then.
        """
        streams = cls()
        try:
            streams._open(stdio, owner)
        except OSError as error:
            streams._owned.close()
            raise Unknown(f"failed to create init process I/O: {error}") from error
        except BaseException:
            streams._owned.close()
            raise
        return streams

    def start(self, nursery: trio.Nursery) -> None:
        """Begin copying, as tasks of `nursery`."""
        for copier in self._copiers:
            self._scopes[copier] = trio.CancelScope()
            self._ended[copier] = trio.Event()
            nursery.start_soon(self._copy, copier)

    def release_child_ends(self) -> None:
        """Close our copies of what the runtime now holds, so that EOF means that the container has closed."""
        for end in self._child_ends:
            end.close()

    def close_stdin(self) -> None:
        """CloseIO: the container reads EOF once the clients that write have left."""
        if self._inlet is not None:
            self._inlet.close_keeper()

    async def drained(self) -> None:
        """Until every output that has something to hand over has handed it over."""
        for copier, ended in self._ended.items():
            if copier.has_pending:
                await ended.wait()

    async def aclose(self) -> None:
        """End all copying and close everything; what was not copied is lost."""
        for scope in self._scopes.values():
            scope.cancel()
        for ended in self._ended.values():
            await ended.wait()
        self._owned.close()

    async def _copy(self, copier: Copier) -> None:
        try:
            with self._scopes[copier]:
                await copier.run()
        finally:
            self._ended[copier].set()

    def _open(self, stdio: StdioPaths, owner: tuple[int, int]) -> None:
        fds: dict[int, int] = {}
        if stdio.stdin:
            pipe = self._pipe(owner)
            fds[0] = self._child_end(pipe.reader)
            self._inlet = Inlet(stdio.stdin, pipe.writer)
            self._owned.callback(self._inlet.close)
            self._copiers.append(self._inlet)
        for number, text in ((1, stdio.stdout), (2, stdio.stderr)):
            sink = parse_sink(text)
            if isinstance(sink, Discard):
                continue
            pipe = self._pipe(owner)
            fds[number] = self._child_end(pipe.writer)
            outlet = _outlet(pipe.reader, sink)
            self._owned.callback(outlet.close)
            self._copiers.append(outlet)
        self.child_fds = fds

    def _pipe(self, owner: tuple[int, int]) -> Pipe:
        return self._owned.enter_context(open_pipe(wide=True, owner=owner))

    def _child_end(self, end: OwnedFd) -> int:
        self._child_ends.append(end)
        return end.fileno()


def _outlet(source: OwnedFd, sink: Sink) -> Outlet:
    if isinstance(sink, Fifo):
        return Outlet(source, sink.path)
    raise InvalidArgument(f"stdio sink {sink} is not supported")


def _bytes_in(fd: OwnedFd) -> int:
    """How many bytes wait in a pipe (FIONREAD, pipe(7))."""
    count = array.array("i", [0])
    fcntl.ioctl(fd.fileno(), termios.FIONREAD, count)
    return count[0]
