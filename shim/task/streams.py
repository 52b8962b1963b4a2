"""The streams of a running process, in the two forms there are: pipes, or a terminal.

They copy, tell when all is copied, and close; how they are made is in `stdio`.  Each copier owns what it copies between
and closes it when it ends; `aclose` returns when nothing is left open and no logger is left running.
"""

from __future__ import annotations

import logging
import math
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Protocol

import trio

from shim.errors import DeadlineExceeded, ShimError, Unknown
from shim.task.copiers import Copiers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shim.kernel.fds import OwnedFd
    from shim.task.console import Console
    from shim.task.consolesocket import ConsoleSocket
    from shim.task.loggers import LoggerProcess
    from shim.task.outlets import Inlet

_log = logging.getLogger("shim.task.stdio")

COMMAND_SECONDS: Final = 1.0
"""How long a runtime command is alone with the pipes.  What a failing one prints is its own and not the container's, so
nothing is copied before it has ended; one that takes longer may be waiting for room in them."""
CONSOLE_SECONDS: Final = 30.0
"""How long after its command has ended well a runtime's console may still be on its way (protocol.md 7.5)."""


class Streams(Protocol):
    """All streams of one process.

    In order: `start`, the runtime command with `child_fds` and `console_socket`, `release_child_ends` as soon as it
    holds them, `connected` when it has ended well.  `close_stdin` and `resize` may come at any time and are remembered.
    """

    @property
    def child_fds(self) -> Mapping[int, int]:
        """Descriptors for the runtime; what is not in it is /dev/null."""

    @property
    def console_socket(self) -> str:
        """The path to which the runtime sends the terminal; empty without one."""

    def start(self, nursery: trio.Nursery) -> None:
        """Make ready to copy, as tasks of `nursery`; copying begins when the runtime command has ended well."""

    def release_child_ends(self) -> None:
        """Close our copies of what the runtime now holds, so that EOF means that the container has closed."""

    async def connected(self) -> None:
        """Until the terminal is here.  Raises Unknown or DeadlineExceeded when it is not coming."""

    def hold_input(self) -> None:
        """Keep the client's input from the process until `let_input`; only a terminal takes it at once."""

    def let_input(self) -> None:
        """The process starts: what its client has written so far, and whether that was all, is told now."""

    def close_stdin(self) -> None:
        """CloseIO: the process reads EOF once the clients that write have left."""

    def resize(self, width: int, height: int) -> None:
        """Set the terminal's columns and rows; no-op without one."""

    def process_ended(self) -> None:
        """Tell that the process itself has ended; others may still hold its streams."""

    async def drained(self) -> None:
        """Until every output that has something to hand over has handed it over, and a logger has ended."""

    async def aclose(self, *, patience_until: float = math.inf) -> None:
        """End all copying and close everything; what was not copied is lost.

        A logger that has had all its input may take its time to end, but not beyond `patience_until` (trio's clock).
        """


class PipeStreams:
    """The streams of a process without a terminal; see `Streams`."""

    console_socket = ""

    def __init__(self) -> None:
        self.child_fds: dict[int, int] = {}
        self.child_ends: Final[list[OwnedFd]] = []
        self.copiers: Final = Copiers()
        self.owned: Final = ExitStack()
        self.loggers: Final[list[LoggerProcess]] = []
        self.inlet: Inlet | None = None
        self._ended_at = math.inf
        self._command_ended = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._closed = False

    def start(self, nursery: trio.Nursery) -> None:
        """See `Streams`."""
        self._nursery = nursery
        nursery.start_soon(self._begin_late)

    def release_child_ends(self) -> None:
        """See `Streams`."""
        for end in self.child_ends:
            end.close()

    async def connected(self) -> None:
        """See `Streams`."""
        self._command_ended.set()
        if self.inlet is not None:
            self.inlet.note_client()
        self._begin()
        await trio.lowlevel.checkpoint()

    def hold_input(self) -> None:
        """See `Streams`."""
        if self.inlet is not None:
            self.inlet.hold()

    def let_input(self) -> None:
        """See `Streams`."""
        if self.inlet is not None:
            self.inlet.let()

    def close_stdin(self) -> None:
        """See `Streams`."""
        if self.inlet is not None:
            self.inlet.close_keeper()

    def resize(self, width: int, height: int) -> None:
        """See `Streams`."""

    def process_ended(self) -> None:
        """See `Streams`."""
        self._ended_at = min(self._ended_at, trio.current_time())

    async def drained(self) -> None:
        """See `Streams`."""
        await self.copiers.drained()

    async def aclose(self, *, patience_until: float = math.inf) -> None:
        """See `Streams`."""
        self._closed = True
        self._command_ended.set()
        self.release_child_ends()
        for logger in self.loggers:
            await logger.stop(process_ended_at=self._ended_at, patience_until=patience_until)
        await self.copiers.aclose()
        self.owned.close()

    async def _begin_late(self) -> None:
        with trio.move_on_after(COMMAND_SECONDS):
            await self._command_ended.wait()
        self._begin()

    def _begin(self) -> None:
        """Start what does not run yet."""
        if self._nursery is not None and not self._closed:
            self.copiers.start(self._nursery)


class TerminalStreams(PipeStreams):
    """The streams of a process with a terminal; its log file or logger reads a pipe that the console writes."""

    def __init__(self) -> None:
        super().__init__()
        self.console: Console
        self.socket: ConsoleSocket
        self._connected = trio.Event()
        self._ended = trio.Event()
        self._scope = trio.CancelScope()
        self._failure: Exception | None = None
        self._started = False

    def start(self, nursery: trio.Nursery) -> None:
        """See `Streams`: the runtime has no hand on these, so that they are copied from now on."""
        self.copiers.start(nursery)
        self._started = True
        nursery.start_soon(self._run)

    def release_child_ends(self) -> None:
        """See `Streams`: nothing here is the runtime's."""

    async def connected(self) -> None:
        """See `Streams`."""
        with trio.move_on_after(CONSOLE_SECONDS) as scope:
            await self._connected.wait()
        if scope.cancelled_caught:
            raise DeadlineExceeded(
                f"failed to retrieve console master: the runtime sent none within {CONSOLE_SECONDS:g} s"
            )
        if self._failure is not None:
            raise Unknown(f"failed to retrieve console master: {self._failure}") from self._failure

    def close_stdin(self) -> None:
        """See `Streams`."""
        self.console.close_stdin()

    def resize(self, width: int, height: int) -> None:
        """See `Streams`."""
        self.console.resize(width, height)

    def process_ended(self) -> None:
        """See `Streams`."""
        super().process_ended()
        self.console.process_ended()

    async def drained(self) -> None:
        """See `Streams`."""
        if self.console.has_pending:
            await self._ended.wait()
        await super().drained()

    async def aclose(self, *, patience_until: float = math.inf) -> None:
        """See `Streams`."""
        self._scope.cancel()
        if self._started:
            await self._ended.wait()
        super().release_child_ends()
        await super().aclose(patience_until=patience_until)

    async def _run(self) -> None:
        try:
            with self._scope:
                self.console.attach(await self.socket.receive())
                self._connected.set()
                await self.console.run_console()
        except* (ShimError, OSError) as group:
            self._failure = _first(group)
            if self._connected.is_set():
                _log.warning("copying a terminal ended early: %s", self._failure)
        finally:
            self.console.close()
            super().release_child_ends()
            self._connected.set()
            self._ended.set()


def _first(group: ExceptionGroup[Exception]) -> Exception:
    error: Exception = group
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
