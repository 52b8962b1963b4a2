"""The copying of one process's streams as tasks: begun together, waited for by a deletion, ended together."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

import attrs
import trio

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = logging.getLogger("shim.task.stdio")


class Copier(Protocol):
    """One stream being copied, in a task of its own."""

    async def run(self) -> None:
        """Copy to the end; owns and closes both sides."""

    @property
    def has_pending(self) -> bool:
        """Whether a Delete should wait for it."""

    def close(self) -> None:
        """Let go of everything, also when `run` was never called."""


@attrs.define(eq=False)
class _Task:
    copier: Copier
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    ended: trio.Event = attrs.field(factory=trio.Event)

    async def run(self) -> None:
        try:
            with self.scope:
                await self.copier.run()
        except OSError as error:
            _log.warning("copying ended early: %s", error)
        finally:
            self.copier.close()
            self.ended.set()


class Copiers:
    """The copiers of one process."""

    def __init__(self) -> None:
        self._waiting: list[Copier] = []
        self._tasks: list[_Task] = []

    @property
    def all(self) -> Sequence[Copier]:
        """Those that run and those that do not yet."""
        return [*self._waiting, *(task.copier for task in self._tasks)]

    def add(self, copier: Copier) -> None:
        """Take over a copier, which is closed at the latest by `aclose`."""
        self._waiting.append(copier)

    def start(self, nursery: trio.Nursery) -> None:
        """Begin copying, as tasks of `nursery`."""
        for copier in self._waiting:
            task = _Task(copier)
            self._tasks.append(task)
            nursery.start_soon(task.run, name=f"{type(copier).__name__}")
        self._waiting.clear()

    async def drained(self) -> None:
        """Until every copier that has something to hand over has handed it over."""
        for task in self._tasks:
            if task.copier.has_pending:
                await task.ended.wait()

    async def aclose(self) -> None:
        """End all copying; what was not copied is lost."""
        for task in self._tasks:
            task.scope.cancel()
        self.close_waiting()
        for task in self._tasks:
            await task.ended.wait()

    def close_waiting(self) -> None:
        """Close those that never began."""
        while self._waiting:
            self._waiting.pop().close()
