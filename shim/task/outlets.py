"""Streams between our pipes and a client's fifos: an output handed over, an input handed in."""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import trio

from shim.errors import InvalidArgument, NotFound, ShimError
from shim.kernel.copy import Copy
from shim.kernel.fifos import Fifo
from shim.kernel.inputs import InputFifo
from shim.kernel.pipes import bytes_in

if TYPE_CHECKING:
    from shim.kernel.fds import OwnedFd

_log = logging.getLogger("shim.task.stdio")

ENDED: Final = (trio.ClosedResourceError, BrokenPipeError)


def unusable(what: str, path: str, error: OSError) -> ShimError:
    """The answer for a path that cannot be opened."""
    if isinstance(error, FileNotFoundError):
        return NotFound(f"{what} {path}: no such file")
    return InvalidArgument(f"{what} {path}: {error.strerror}")


class FifoOutlet:
    """One output of the container, handed over to a fifo as soon as a client reads it.

    Until then it stays in the pipe: nothing is moved into a fifo that nobody has opened.
    """

    def __init__(self, source: OwnedFd, path: str) -> None:
        """Raises NotFound or InvalidArgument for a path that cannot be used."""
        self.path: Final = path
        self._source: Final = source
        self._opened = False
        try:
            self._fifo: Final = Fifo(path)
        except OSError as error:
            raise unusable("stdio path", path, error) from error

    @property
    def has_pending(self) -> bool:
        """A fifo that nobody ever opened and an empty pipe: there is nothing to wait for."""
        return self._opened or bytes_in(self._source) > 0

    async def run(self) -> None:
        """Copy to the end; a sink that fails ends the copy, and the container then gets EPIPE."""
        with ExitStack() as owned:
            owned.callback(self.close)
            try:
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
        self._fifo.close()


def open_input(path: str) -> InputFifo:
    """A client's stdin fifo.  Raises NotFound or InvalidArgument for a path that cannot be used."""
    try:
        return InputFifo(path)
    except OSError as error:
        raise unusable("failed to open stdin fifo", path, error) from error


class Inlet:
    """The container's input from a client's fifo."""

    has_pending = False

    def __init__(self, path: str, sink: OwnedFd) -> None:
        """Raises NotFound or InvalidArgument for a path that cannot be used."""
        self.path: Final = path
        self._sink: Final = sink
        self._source: Final = open_input(path)
        self._let = trio.Event()
        self._let.set()

    def hold(self) -> None:
        """Leave what comes in the fifo until `let`."""
        self._let = trio.Event()

    def note_client(self) -> None:
        """See `InputFifo.note_client`; no-op unless the input is held."""
        if not self._let.is_set() and not self._sink.closed:
            self._source.note_client()

    def let(self) -> None:
        """Hand on what is held; a client that came before the task was there, wrote and left has ended it."""
        if not self._let.is_set() and not self._sink.closed:
            self._source.end_if_left()
        self._let.set()

    async def run(self) -> None:
        """Copy until every writer is gone and the keeper too, or the container reads no more."""
        source = self._source
        try:
            await self._let.wait()
            if source.head:  # fits: the pipe is empty, and a page at least
                os.write(self._sink.fileno(), source.head)
            copy = Copy(source.reader, self._sink)
            await copy.run()
            if not copy.moved and await source.wait_late_client():
                await Copy(source.reader, self._sink).run()
        except ENDED:
            pass
        except OSError as error:
            _log.warning("input from %s: %s", self.path, error)
        finally:
            self.close()

    def close_keeper(self) -> None:
        """From now on the last client to leave means EOF."""
        self._source.close_keeper()

    def close(self) -> None:
        """Let go of both sides."""
        self._source.close()
        self._sink.close()
