"""Work that outlives the request that asked for it: one helper for every verb (design section 4, rules 1 and 6).

A job runs as a child of a nursery that belongs to a container or to the janitor, with the context variables of the task
that started it and without its deadline.  The caller waits for the result; a caller that goes away leaves the job
running (`run`), or takes it down with it (`run_or_cancel`), and either way the job itself decides what must still be
done before it ends.  A bug in a job is logged with its traceback and answered as Internal; it never reaches the
nursery.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Generic, TypeVar

import trio

from shim.errors import Canceled, Internal, ShimError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T", covariant=True)
_log = logging.getLogger("shim.task.jobs")


class Job(Generic[T]):
    """One piece of work: its name, since when it runs (trio's clock, seconds), and in the end its result."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.began_at = trio.current_time()
        self.scope = trio.CancelScope()
        self._done = trio.Event()
        self._result: list[T] = []
        self._error: Exception = Canceled(f"{name} was given up")

    async def wait(self) -> T:
        """The result, or the error the job ended with.  Cancelling the wait does not touch the job."""
        await self._done.wait()
        if self._result:
            return self._result[0]
        raise self._error

    async def run(self, work: Callable[[], Awaitable[T]]) -> None:
        """The job as a nursery's child: raises nothing but the nursery's own cancellation."""
        try:
            with self.scope:
                self._result.append(await work())
        except ShimError as error:
            self._error = error
        except Exception as error:
            _log.exception("a bug in %s", self.name)
            self._error = Internal(f"{self.name} failed: {error!r}; the shim's log has the traceback")
            self._error.__cause__ = error
        finally:
            self._done.set()


class Jobs:
    """The jobs of one nursery, by the order they began, so that they can be counted and shown."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.running: dict[Job[object], None] = {}
        self._idle: trio.Event | None = None

    def start(self, name: str, work: Callable[[], Awaitable[T]]) -> Job[T]:
        """Begin `work` in the background; it inherits the caller's context variables, not its cancellation."""
        job: Job[T] = Job(name)
        self.running[job] = None  # from now on, not from when its task first runs
        self._nursery.start_soon(self._run, job, work, name=name)
        return job

    async def run(self, name: str, work: Callable[[], Awaitable[T]]) -> T:
        """Begin `work` and wait for it; a caller that is cancelled leaves it running to its end."""
        return await self.start(name, work).wait()

    async def run_or_cancel(self, name: str, work: Callable[[], Awaitable[T]]) -> T:
        """Begin `work` and wait for it; a caller that is cancelled cancels it, and `work` undoes what it began."""
        job = self.start(name, work)
        try:
            return await job.wait()
        except trio.Cancelled:
            job.scope.cancel()
            raise

    async def wait_idle(self) -> None:
        """Until no job is left."""
        while self.running:
            if self._idle is None:
                self._idle = trio.Event()
            await self._idle.wait()

    async def _run(self, job: Job[T], work: Callable[[], Awaitable[T]]) -> None:
        try:
            await job.run(work)
        finally:
            del self.running[job]
            if not self.running and self._idle is not None:
                self._idle.set()
                self._idle = None
