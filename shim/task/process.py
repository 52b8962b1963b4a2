"""A process of a container and its guard (design section 5): readers never wait, changers wait for a deletion.

Readers look at plain attributes.  The one thing they wait for is a start in flight (`settled`): containerd kills a
task that it finds "created" after a restart.  Whatever changes the process enters `changing`.  A deletion marks itself,
leaves the guard for its slow work, and enters again to make the result true; until then everybody sees the state from
before, and an exit that arrives meanwhile is held back.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs
import trio

from shim.model import lifecycle
from shim.model.lifecycle import State, Verb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from shim.kernel.children import Child
    from shim.model.exits import ExitRecord
    from shim.task.streams import Streams


@attrs.frozen
class StdioPaths:
    """Where the client wants a process's streams; an empty text means none."""

    stdin: str = ""
    stdout: str = ""
    stderr: str = ""
    terminal: bool = False


class Process:
    """One init or exec process: what is known of it, and who may change it.

    `on_exit` is told the exit record exactly once, before anybody who waits is woken: it publishes the event.
    """

    def __init__(
        self, id_: str, stdio: StdioPaths, table: lifecycle.Table, on_exit: Callable[[Process, ExitRecord], None]
    ) -> None:
        self.id = id_
        self.stdio = stdio
        self.state = State.CREATED
        self.pid = 0
        self.child: Child | None = None
        self.exit: ExitRecord | None = None
        self.exited = trio.Event()
        self.pausing = False
        self.streams: Streams | None = None
        self.size: tuple[int, int] | None = None
        self._stdin_closed = False
        self._table = table
        self._on_exit = on_exit
        self._guard = trio.Lock()
        self._starting: trio.Event | None = None
        self._deleting: trio.Event | None = None
        self._held_exit: ExitRecord | None = None
        self._exit_known = trio.Event()

    @property
    def status(self) -> int:
        """The number of the present state in containerd.v1.types.Status."""
        return lifecycle.STATUS_PAUSING if self.pausing else lifecycle.STATUS[self.state]

    @property
    def is_starting(self) -> bool:
        """Whether a start is in flight."""
        return self._starting is not None

    @property
    def is_being_deleted(self) -> bool:
        """Whether a deletion is under way."""
        return self._deleting is not None

    def attach(self, streams: Streams) -> None:
        """Take the streams over and tell them what was asked of them before they were there."""
        self.streams = streams
        if self.size is not None:
            streams.resize(*self.size)
        if self._stdin_closed:
            streams.close_stdin()

    def close_stdin(self) -> None:
        """CloseIO, now or as soon as there are streams; state and guard do not matter."""
        self._stdin_closed = True
        if self.streams is not None:
            self.streams.close_stdin()

    def resize(self, width: int, height: int) -> None:
        """Columns and rows of the terminal, now or as soon as there is one; refused by the table, or no-op."""
        self.next_state(Verb.RESIZE)
        self.size = (width, height)
        if self.streams is not None:
            self.streams.resize(width, height)

    def tell_streams_of_end(self) -> None:
        """The kernel has reported the end: what is left in a terminal is its last output."""
        if self.streams is not None:
            self.streams.process_ended()

    def next_state(self, verb: Verb) -> State:
        """What `verb` would lead to; raises the refusal people know."""
        return lifecycle.after(self._table, self.state, verb)

    async def settled(self) -> None:
        """Until no start is in flight."""
        while self._starting is not None:
            await self._starting.wait()

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """The guard, taken when no deletion is under way."""
        while True:
            async with self._guard:
                deleting = self._deleting
                if deleting is None:
                    yield
                    return
            await deleting.wait()

    @asynccontextmanager
    async def transition(self, verb: Verb) -> AsyncIterator[None]:
        """The guard around one verb: refused by the table, and its next state is reached if the block ends well.

        An exit that came meanwhile has the last word.
        """
        async with self.changing():
            before, follows = self.state, self.next_state(verb)
            yield
            if self.state is before:
                self.state = follows

    @asynccontextmanager
    async def starting(self) -> AsyncIterator[None]:
        """The transition of a start, for whose end readers wait."""
        async with self.transition(Verb.START):
            started = self._starting = trio.Event()
            if self.exited.is_set():  # an earlier start failed and released its waiters
                self.exited = trio.Event()
            try:
                yield
            finally:
                # Readers wake after this block and its transition, since nothing in between waits.
                self._starting = None
                started.set()

    @asynccontextmanager
    async def deletion(self) -> AsyncIterator[None]:
        """A deletion around its slow work: the process becomes *deleted* only when the block ends well.

        Success, failure and crash all let the waiters go on; a held exit is applied first in each case.
        """
        async with self.changing():
            follows = self.next_state(Verb.DELETE)
            deleted = self._deleting = trio.Event()
        try:
            yield
            async with self._guard:
                self._apply_held_exit()
                self.state = follows
                self.release_waiters()  # of one that never ran, whose exit will not come
        finally:
            self._apply_held_exit()
            self._deleting = None
            deleted.set()

    def exit_seen(self, record: ExitRecord) -> None:
        """The process has ended; held back while a deletion is under way.  A second report is ignored."""
        if self._exit_known.is_set():
            return
        self._held_exit = record
        self._exit_known.set()
        if self._deleting is None:
            self._apply_held_exit()

    async def wait_exit_known(self) -> None:
        """Until the exit has been seen, held back or not."""
        await self._exit_known.wait()

    def release_waiters(self) -> None:
        """Wake whoever waits for an exit that will never come: the start failed, or it was deleted unstarted."""
        self.exited.set()

    def _apply_held_exit(self) -> None:
        record, self._held_exit = self._held_exit, None
        if record is None:
            return
        self.exit = record
        self.state = self.next_state(Verb.EXIT)
        self._on_exit(self, record)
        self.exited.set()
