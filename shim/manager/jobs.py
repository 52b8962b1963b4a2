"""Work that outlives the caller who asked for it, for a bounded time.

A deletion that has begun must come to its end, or at least to a point from which a retry goes on, also when the one who
asked stops waiting.  Invariants: a job belongs to the manager's nursery; while its caller waits it has no deadline but
its own; once the caller is gone it has `grace` seconds; a manager that closes gives it the same.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import trio

from shim.errors import DeadlineExceeded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LOG: Final = logging.getLogger("shim.manager")
T = TypeVar("T")


class Job(Generic[T]):
    """One piece of work; `wait` gives its result to whoever asks, `done` is set when it has ended."""

    def __init__(self, call: Callable[[], Awaitable[T]], name: str, grace: float) -> None:
        self._call: Final = call
        self._grace: Final = grace
        self._results: list[T] = []
        self._error: Exception | None = None
        self._scope: Final = trio.CancelScope(shield=True)  # its deadline is set when nobody waits for it any more
        self.name: Final = name
        self.done: Final = trio.Event()

    async def run(self) -> None:
        """For the nursery.  A failure is kept for who waits."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_close)
                with self._scope:
                    try:
                        self._results.append(await self._call())
                    except Exception as error:
                        self._error = error
                nursery.cancel_scope.cancel()
        finally:
            self.done.set()

    def hurry(self) -> None:
        """Nobody waits any more: it gets its grace and no more."""
        self._scope.deadline = min(self._scope.deadline, trio.current_time() + self._grace)

    async def wait(self) -> T:
        """Its result, or what it raised; a cancelled wait lets it go on for its grace."""
        try:
            await self.done.wait()
        except trio.Cancelled:
            self.hurry()
            raise
        if self._error is not None:
            raise self._error
        if not self._results:
            raise DeadlineExceeded(f"{self.name} was given up when nobody waited for it any more")
        return self._results[0]

    async def _watch_close(self) -> None:
        """The manager's nursery is cancelled when it closes: the shield keeps the work, this gives it its end."""
        try:
            await trio.sleep_forever()
        finally:
            self.hurry()


async def run_detached(nursery: trio.Nursery, call: Callable[[], Awaitable[T]], name: str, grace: float) -> T:
    """Do `call` as a job of `nursery` and wait for it; see `Job`."""
    job = Job(call, name, grace)
    nursery.start_soon(job.run, name=name)
    return await job.wait()
