"""Children: started here, and each one's end told here, once.

Two ways to learn of an end share one interface.  `SubreaperChildren` is the shim's: one reaper task owns `waitid` for
every child, adopted orphans included, and an end that nobody has claimed yet is kept for the pid that a runtime is
about to report.  `PidfdChildren` is for a process that may have other children of its own: it waits for what it
started and for nothing else.

Invariants: nobody else in the process waits for a child; a pid is signalled through its pidfd, which is closed the
moment the end is known, so that a recycled pid is never hit; children are started on the main thread only, since the
parent-death signal follows the thread and the tables have no lock.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import OrderedDict
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Protocol

import attrs
import trio

from shim.errors import NotFound
from shim.kernel import native

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

KEPT_EXITS: Final = 1024
"""Ends kept for pids not yet reported: far more than runtime commands that can be in flight at once."""


@attrs.frozen
class Exit:
    """How a process ended.

    `status` is 0 to 255, or 128 + signal for a killed one (protocol.md 8.4); `signal` is 0 if it was not killed;
    `at_ns` is the wall clock, in nanoseconds, when the end was noticed.
    """

    pid: int
    status: int
    at_ns: int
    signal: int = 0


@attrs.frozen
class Command:
    """What to start, and with what.

    `env` None means our own environment without NOTIFY_SOCKET (protocol.md 8.1).  `fds` maps the child's descriptors
    to ours; of 0, 1 and 2 those not named are /dev/null, all others are closed.  A name without a slash is looked up
    in the absolute directories of the child's PATH.  `death_signal` (0: none) is sent to it when we end.
    """

    argv: Sequence[str]
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    fds: Mapping[int, int] = attrs.field(factory=dict)
    umask: int | None = None
    new_group: bool = False
    new_session: bool = False
    death_signal: int = 0


class Child:
    """A child process: living until `exit` is set, which happens once."""

    __slots__ = ("_ended", "_pidfd", "exit", "name", "pid", "started_ns")

    def __init__(self, pid: int, pidfd: int, name: str, *, exit: Exit | None = None) -> None:  # noqa: A002 - its noun
        self.pid: Final = pid
        self.name: Final = name
        self.started_ns: Final = time.time_ns()
        self.exit = exit
        self._pidfd = pidfd
        self._ended = trio.Event()
        if exit is not None:
            self._ended.set()

    def __repr__(self) -> str:
        state = "running" if self.exit is None else f"status {self.exit.status}"
        return f"<Child {self.pid} {self.name} {state}>"

    @property
    def pidfd(self) -> int:
        """Its pidfd, ours to lend and nobody else's to close; -1 after the end."""
        return self._pidfd

    async def wait(self) -> Exit:
        """Wait for the end; any number may wait, and a cancelled wait costs the others nothing."""
        await self._ended.wait()
        assert self.exit is not None
        return self.exit

    def send_signal(self, number: int) -> None:
        """Signal it.  Raises NotFound once it has ended, OSError for a signal that does not exist."""
        if self._pidfd == -1:
            raise NotFound("process already finished")
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError as error:
            raise NotFound("process already finished") from error

    def finish(self, end: Exit) -> None:
        """Record the end and wake the waiters.  For the owner of `waitid` only."""
        self.exit = end
        self.release()
        self._ended.set()

    def release(self) -> None:
        """Close the pidfd without knowing the end, when the one who would learn of it stops."""
        descriptor, self._pidfd = self._pidfd, -1
        if descriptor != -1:
            os.close(descriptor)


class Children(Protocol):
    """What the rooms above know of processes."""

    def spawn(self, command: Command) -> Child:
        """Start `command`; OSError if it cannot be run, such as FileNotFoundError."""

    def mark(self) -> int:
        """A point in time for `adopt`: take it before the command that will report a pid."""

    def adopt(self, pid: int, since: int) -> Child:
        """The child that a runtime reported as `pid`; it may have ended since the mark.  NotFound if it is not ours."""

    def processes(self) -> Sequence[Child]:
        """The living, oldest first."""


def start(command: Command) -> Child:
    """Start `command` and return its child, whose end is the caller's to learn.  Raises OSError."""
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("children are started on the main thread only")
    if command.env is None:
        env = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
    else:
        env = dict(command.env)
    program = command.argv[0] if command.argv else ""
    if "/" in program:
        paths = [program]
    else:
        paths = [os.path.join(place, program) for place in os.get_exec_path(env) if place.startswith("/")]
    if not program or not paths:
        raise FileNotFoundError(2, f"cannot run {program!r}: no such program")
    pid, pidfd = native.spawn(
        paths,
        command.argv,
        env,
        {0: -1, 1: -1, 2: -1, **command.fds},
        cwd=command.cwd,
        umask=command.umask,
        new_group=command.new_group,
        new_session=command.new_session,
        death_signal=command.death_signal,
    )
    return Child(pid, pidfd, os.path.basename(program))


def end_of(result: os.waitid_result) -> Exit:
    """The end that `waitid` told."""
    at_ns = time.time_ns()
    if result.si_code == os.CLD_EXITED:
        return Exit(result.si_pid, result.si_status, at_ns)
    return Exit(result.si_pid, 128 + result.si_status, at_ns, result.si_status)


def hold(pid: int) -> Child:
    """A handle on a running or unreaped child of ours that something else started.  NotFound if it is not ours."""
    if pid <= 0:
        raise NotFound(f"no process {pid}")
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError as error:
        raise NotFound(f"no process {pid}") from error
    try:
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # noqa: TID251 - only looks
    except ChildProcessError as error:
        os.close(pidfd)
        raise NotFound(f"process {pid} is not a child of this one") from error
    return Child(pid, pidfd, "adopted")


class SubreaperChildren:
    """Every child of this process, adopted orphans included; `run_reaper` must run for any end to be told."""

    def __init__(self) -> None:
        self._living: dict[int, Child] = {}
        self._kept: OrderedDict[int, tuple[int, Exit]] = OrderedDict()
        self._ends = 0

    def spawn(self, command: Command) -> Child:
        """See `Children.spawn`."""
        return self._register(start(command))

    def mark(self) -> int:
        """See `Children.mark`: the number of unclaimed ends so far."""
        return self._ends

    def adopt(self, pid: int, since: int) -> Child:
        """See `Children.adopt`."""
        number, end = self._kept.get(pid, (0, None))
        if end is not None and number > since:
            del self._kept[pid]
            return Child(pid, -1, "adopted", exit=end)
        known = self._living.get(pid)
        return known if known is not None else self._register(hold(pid))

    def processes(self) -> Sequence[Child]:
        """See `Children.processes`."""
        return tuple(self._living.values())

    async def run_reaper(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Reap until cancelled.  Must crash loudly: a process that cannot see ends must not go on."""
        with trio.open_signal_receiver(signal.SIGCHLD) as signals:
            try:
                task_status.started()
                self._reap()  # those that ended before anybody listened
                async for _ in signals:
                    self._reap()
            finally:
                for child in self._living.values():
                    child.release()
                self._living.clear()

    @property
    def kept(self) -> int:
        """How many ends wait for somebody to claim them."""
        return len(self._kept)

    def keep(self, end: Exit) -> None:
        """Keep an end that nobody has claimed; the oldest one goes when there are too many."""
        self._ends += 1
        self._kept.pop(end.pid, None)
        self._kept[end.pid] = (self._ends, end)
        if len(self._kept) > KEPT_EXITS:
            self._kept.popitem(last=False)

    def _register(self, child: Child) -> Child:
        self._kept.pop(child.pid, None)  # an earlier owner of the number
        self._living[child.pid] = child
        return child

    def _reap(self) -> None:
        while True:
            try:
                result = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)  # noqa: TID251 - the reaper
            except ChildProcessError:
                return
            if result is None:
                return
            end = end_of(result)
            child = self._living.pop(end.pid, None)
            if child is not None:
                child.finish(end)
                continue
            self.keep(end)


class PidfdChildren:
    """The children that were started here, each awaited by its own pidfd; made by `open_children`."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery: Final = nursery
        self._living: dict[int, Child] = {}

    def spawn(self, command: Command) -> Child:
        """See `Children.spawn`."""
        return self._register(start(command))

    def mark(self) -> int:
        """See `Children.mark`; no end but those of started children is seen here, so nothing is kept."""
        return 0

    def adopt(self, pid: int, since: int) -> Child:
        """See `Children.adopt`."""
        del since
        known = self._living.get(pid)
        return known if known is not None else self._register(hold(pid))

    def processes(self) -> Sequence[Child]:
        """See `Children.processes`."""
        return tuple(self._living.values())

    def _register(self, child: Child) -> Child:
        self._living[child.pid] = child
        self._nursery.start_soon(self._watch, child, name=f"wait for {child.name} {child.pid}")
        return child

    async def _watch(self, child: Child) -> None:
        try:
            await trio.lowlevel.wait_readable(child.pidfd)
            result = os.waitid(os.P_PIDFD, child.pidfd, os.WEXITED | os.WNOHANG)  # noqa: ASYNC222, TID251 - it has ended
            assert result is not None
            child.finish(end_of(result))
        finally:
            del self._living[child.pid]
            child.release()


@asynccontextmanager
async def open_children() -> AsyncIterator[PidfdChildren]:
    """Children without the subreaper; leaving the block stops watching and leaves the children running."""
    async with trio.open_nursery() as nursery:
        yield PidfdChildren(nursery)
        nursery.cancel_scope.cancel()
