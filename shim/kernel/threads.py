"""Blocking kernel work in worker threads that may never come back (design section 4, rule 5).

A scope cannot interrupt a thread.  So the job, not the task that waits for it, owns the result: a cancelled wait leaves
at once, the work is told that nobody wants it any more, and what it still makes is undone in its own thread when it
comes.  An abandoned thread keeps no place of its limiter, is counted here until it ends, and beyond a bound no more
work is begun.
"""

from __future__ import annotations

import logging
import threading
import time
from enum import Enum
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import attrs
import trio

from shim.errors import ResourceExhausted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")

STUCK_LIMIT: Final = 256
"""Abandoned threads of one room: each keeps a stack and perhaps a lock of the kernel."""
UNDO_SECONDS: Final = 5.0

_log: Final = logging.getLogger("shim.kernel")


class _State(Enum):
    NEW = "new"
    RUNNING = "running"
    ENDED = "ended"


@attrs.frozen
class StuckThread:
    """An abandoned piece of work that has not come back: what it does, and for how many seconds by now."""

    what: str
    seconds: float


class Job(Generic[T]):
    """One piece of work.  The thread that does it may ask `abandoned` between its steps, and leave early."""

    def __init__(self, what: str, work: Callable[[Job[T]], T], undo: Callable[[T], None] | None) -> None:
        self.what: Final = what
        self.started: Final = time.monotonic()
        self._work: Final = work
        self._undo: Final = undo
        self._lock: Final = threading.Lock()
        self._state = _State.NEW
        self._abandoned = False
        self._made: list[T] = []
        self._at_end: list[Callable[[], None]] = []

    @property
    def abandoned(self) -> bool:
        """Whether nobody waits for the result any more."""
        return self._abandoned

    def at_end(self, release: Callable[[], None]) -> None:
        """Call `release` when the thread has ended: in it, or now if that is so already.  Must be quick."""
        with self._lock:
            if self._state is not _State.ENDED:
                self._at_end.append(release)
                return
        release()

    def body(self) -> T:
        """The thread's part."""
        with self._lock:
            if self._abandoned:
                raise InterruptedError(f"{self.what}: nobody wants it any more")
            self._state = _State.RUNNING
        try:
            result = self._work(self)
        except BaseException:
            self._end()
            raise
        with self._lock:
            unwanted = self._abandoned
            if not unwanted:
                self._made.append(result)
        if unwanted:
            self._undo_logged(result)
        self._end()
        return result

    def abandon(self) -> bool:
        """Give the result up; True while the thread is still at it.  What was made already is left to `undo_made`."""
        with self._lock:
            self._abandoned = True
            running = self._state is _State.RUNNING and not self._made
        if self._state is _State.NEW:
            self._end()
        return running

    def undo_made(self) -> None:
        """Undo a result that was made and that nobody took."""
        while self._made:
            self._undo_logged(self._made.pop())

    @property
    def has_made(self) -> bool:
        """Whether there is a result to undo."""
        return bool(self._made) and self._undo is not None

    def _end(self) -> None:
        with self._lock:
            self._state = _State.ENDED
            releases, self._at_end = self._at_end, []
        for release in releases:
            release()

    def _undo_logged(self, result: T) -> None:
        if self._undo is None:
            return
        try:
            self._undo(result)
        except Exception:
            _log.exception("undo of abandoned work failed: %s", self.what)


class Threads:
    """The worker threads of one room, `width` of them at a time (math.inf: as many as are asked for)."""

    def __init__(self, room: str, width: float) -> None:
        self.room: Final = room
        self._limiter: Final = trio.CapacityLimiter(width)
        self._stuck: Final[dict[int, Job[object]]] = {}

    def stuck(self) -> Sequence[StuckThread]:
        """The abandoned threads that have not come back."""
        now = time.monotonic()
        return tuple(StuckThread(job.what, now - job.started) for job in list(self._stuck.values()))

    async def run(
        self,
        what: str,
        work: Callable[[Job[T]], T],
        *,
        undo: Callable[[T], None] | None = None,
        on_abandon: Callable[[Job[T]], None] | None = None,
        at_end: Callable[[], None] | None = None,
    ) -> T:
        """Do `work` in a thread.  When cancelled, leave at once; a result that comes later is given to `undo`.

        `undo` runs in a thread too.  `on_abandon` may help the thread to come back; it runs on the loop and must not
        block.  `at_end` is called once, whatever happens, when the thread is done with what the work uses.  Raises
        what `work` raises, and ResourceExhausted when too many threads hang already.
        """
        job = Job(what, work, undo)
        if at_end is not None:
            job.at_end(at_end)
        try:
            if len(self._stuck) >= STUCK_LIMIT:
                raise ResourceExhausted(f"{len(self._stuck)} threads of {self.room} hang in the kernel")
            await self._limiter.acquire()
        except BaseException:
            job.abandon()
            raise
        try:
            try:
                # A limiter of its own: trio would hold a shared one for as long as the abandoned thread lives.
                return await trio.to_thread.run_sync(
                    job.body,
                    abandon_on_cancel=True,
                    limiter=trio.CapacityLimiter(1),
                    thread_name=f"{self.room}: {what}",
                )
            except trio.Cancelled:
                await self._abandon(job, on_abandon)
                raise
            except BaseException:
                job.abandon()  # no thread could be had
                raise
        finally:
            self._limiter.release()

    async def _abandon(self, job: Job[T], on_abandon: Callable[[Job[T]], None] | None) -> None:
        if job.abandon():
            self._remember(job)
            if on_abandon is not None:
                on_abandon(job)
        elif job.has_made:
            with trio.move_on_after(UNDO_SECONDS, shield=True):
                await trio.to_thread.run_sync(job.undo_made, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1))

    def _remember(self, job: Job[T]) -> None:
        key = id(job)
        self._stuck[key] = job  # type: ignore[assignment]  # only asked what it is
        job.at_end(lambda: self._forget(key))

    def _forget(self, key: int) -> None:
        self._stuck.pop(key, None)
