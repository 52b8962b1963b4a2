"""Finding the shims of an earlier manager again (protocol.md 9.4, design section 13).

All bundles at once, each within one load budget whatever number of calls it takes.  A shim that answers is kept,
reported or cleaned up as `shim.model.loading` decides; one whose socket is gone or refuses is cleaned up at once; one
that takes the connection and is silent is handed to the reaper, which has a budget of its own: load does not wait for
it, and its neighbours do not notice.

Invariants: a bundle that somebody else is changing is left to them; one of a version that we do not speak is left
alone; any other comes out as a task, or is gone, or is with the reaper.  A clean-up that fails takes the bundle with it
all the same, so that it is not met again at every start, and its error is in the report.
"""

from __future__ import annotations

import enum
import logging
import os
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import trio

from shim.errors import DeadlineExceeded, InvalidArgument, NotFound, ShimError, Unavailable, Unimplemented
from shim.kernel.listeners import kill_listeners
from shim.kernel.procfs import command_line
from shim.manager.bootstrap import Answer
from shim.manager.bundle import find_bundle, sweep_namespace
from shim.manager.connection import connect
from shim.manager.creation import hold_log
from shim.manager.ending import bury, remove_bundle
from shim.manager.jobs import Job
from shim.manager.launch import usual_address
from shim.manager.locks import try_task_lock
from shim.manager.records import read_answer, read_binary, read_deleted, write_start
from shim.manager.steps import StepTimes
from shim.manager.tasks import Task, TaskExit
from shim.model.loading import Decision, LoadFacts, Pids, Seen, decide
from shim.model.names import check_identifier
from shim.wire.address import UnixAddress, parse_address
from shim.wire.proto.task_pb2 import PidsRequest, PidsResponse, StateRequest, StateResponse
from shim.wire.proto.task_types_pb2 import Status
from shim.wire.times import nanoseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shim.manager.bundle import Bundle
    from shim.manager.connection import ShimConnection
    from shim.manager.locks import TaskLock
    from shim.manager.parts import Parts

LOG: Final = logging.getLogger("shim.manager")


class Outcome(enum.Enum):
    """What became of a bundle."""

    KEPT = "kept"
    REPORTED = "reported"
    """It had stopped: its exit was told, and it is deleted."""
    CLEANED = "cleaned up"
    REAPING = "reaping"
    """Handed to the reaper: `LoadReport.wait_reaped` waits for it."""
    BUSY = "busy"
    """Somebody else is changing it."""
    FAILED = "failed"
    """It is still there, and cannot be used."""


@attrs.define
class Loaded:
    """One bundle: what became of it, its task when it was kept, its exit and its error when there are any."""

    namespace: str
    id: str
    outcome: Outcome = Outcome.FAILED
    task: Task | None = None
    exit: TaskExit | None = None
    error: ShimError | None = None
    seconds: float = 0.0


@attrs.define
class LoadReport:
    """What a load found, sorted by namespace and id."""

    entries: list[Loaded] = attrs.field(factory=list)
    _reapers: list[Job[None]] = attrs.field(factory=list)

    @property
    def tasks(self) -> list[Task]:
        """Those that were kept."""
        return [entry.task for entry in self.entries if entry.task is not None]

    def of(self, outcome: Outcome) -> list[str]:
        """The ids with that outcome."""
        return [entry.id for entry in self.entries if entry.outcome is outcome]

    def hand_over(self, job: Job[None]) -> None:
        """For the loader."""
        self._reapers.append(job)

    async def wait_reaped(self) -> None:
        """Until nothing is with the reaper any more; each entry then says what became of it."""
        for job in self._reapers:
            await job.done.wait()


class Loader:
    """One load of one manager."""

    def __init__(self, parts: Parts, on_log: Callable[[str, str], None]) -> None:
        self._parts: Final = parts
        self._on_log: Final = on_log
        self.report: Final = LoadReport()

    async def run(self, namespaces: Sequence[str]) -> LoadReport:
        """Load every bundle of `namespaces`."""
        async with trio.open_nursery() as nursery:
            for namespace in namespaces:
                for name in await trio.to_thread.run_sync(self._bundles, namespace):
                    entry = Loaded(namespace, name)
                    self.report.entries.append(entry)
                    nursery.start_soon(self._load, entry)
        for namespace in namespaces:
            try:
                await trio.to_thread.run_sync(sweep_namespace, self._parts.layout, namespace)
            except (OSError, ShimError) as error:
                LOG.debug("namespace %s cannot be swept: %s", namespace, error)
        self.report.entries.sort(key=lambda entry: (entry.namespace, entry.id))
        return self.report

    def _bundles(self, namespace: str) -> list[str]:
        try:
            names = sorted(os.listdir(self._parts.layout.bundles(namespace)))
        except (OSError, InvalidArgument) as error:
            LOG.warning("namespace %s cannot be loaded: %s", namespace, error)
            return []
        return [name for name in names if not name.startswith(".")]

    async def _load(self, entry: Loaded) -> None:
        began = trio.current_time()
        lock: TaskLock | None = None
        try:
            check_identifier(entry.id, "task id")
            lock = try_task_lock(self._parts.layout, entry.namespace, entry.id)
            if lock is None:
                entry.outcome = Outcome.BUSY
                return
            bundle = find_bundle(self._parts.layout, entry.namespace, entry.id)
            job = Job(partial(self._settle, entry, bundle, lock), f"load {entry.id}", self._grace)
            lock = None  # the job's from here on
            self._parts.nursery.start_soon(job.run, name=job.name)
            budget = self._parts.budgets.load
            with trio.move_on_after(budget.seconds) as scope:
                await job.wait()
            if scope.cancelled_caught:
                entry.outcome = Outcome.REAPING
                self.report.hand_over(job)
        except ShimError as error:
            entry.error = error
        except OSError as error:
            entry.error = ShimError(f"{error.strerror}: {error.filename}")
        finally:
            if lock is not None:
                lock.release()
            entry.seconds = trio.current_time() - began

    async def _settle(self, entry: Loaded, bundle: Bundle, lock: TaskLock) -> None:
        """All that is done about one bundle: a decision within the load budget, then whatever cleaning takes."""
        try:
            binary, answer = "", None
            try:
                if not await trio.to_thread.run_sync(os.listdir, bundle.path):
                    raise Unavailable(f"the bundle of {bundle.id} is empty")
                binary, answer = await self._find_shim(bundle)
                known = read_deleted(bundle)
                if known is not None:
                    await self._finish_deletion(entry, bundle, answer, known)
                    return
                await self._ask(entry, bundle, binary, answer)
            except Unimplemented as error:
                entry.outcome, entry.error = Outcome.FAILED, error
            except (Unavailable, DeadlineExceeded, NotFound) as error:
                await self._reap(entry, bundle, binary or _binary_of(bundle), answer, error)
        finally:
            lock.release()

    async def _find_shim(self, bundle: Bundle) -> tuple[str, Answer]:
        """The shim's program and address; where the file that says it is damaged, the address by custom is tried."""
        binary = read_binary(bundle)
        try:
            return binary, read_answer(bundle)
        except Unimplemented:
            raise
        except ShimError as error:
            usual = usual_address(self._parts.launcher, bundle)
            if not usual:
                raise Unavailable(error.message) from error
            LOG.warning("%s; its shim is looked for at %s", error, usual)
            answer = Answer(3, usual)
            with trio.move_on_after(self._parts.budgets.load.seconds / 2):
                try:
                    connection = await connect(self._parts.nursery, answer, bundle.namespace, bundle.id)
                except ShimError as missing:
                    raise Unavailable(f"{error.message}; {missing.message}") from error
                found = attrs.evolve(answer, version=connection.version)
                connection.close()
                write_start(bundle, binary, found)
                return binary, found
            raise Unavailable(error.message) from error

    async def _ask(self, entry: Loaded, bundle: Bundle, binary: str, answer: Answer) -> None:
        budget = self._parts.budgets.load
        connection: ShimConnection | None = None
        facts: LoadFacts | None = None
        log = await hold_log(self._parts, bundle, self._on_log)
        try:
            with trio.move_on_after(budget.seconds * 0.98):  # so that this, not the wait for it, is what says so
                connection = await connect(self._parts.nursery, answer, bundle.namespace, bundle.id)
                pid = (await connection.greet(bundle.id)).task_pid
                facts, state = await _facts(connection, bundle.id)
        except BaseException:
            log.cancel()
            if connection is not None:
                connection.close()
            raise
        if facts is None or connection is None:
            log.cancel()
            if connection is not None:
                connection.close()
            raise budget.exceeded(f"the shim of {bundle.id} took the connection and gave no answer")
        task = Task(self._parts, bundle, binary, connection, StepTimes(), log)
        task.pid = task.ending.pid = pid or (state.pid if state is not None else 0)
        match decide(facts):
            case Decision.KEEP:
                entry.outcome, entry.task = Outcome.KEPT, task
                self._parts.nursery.start_soon(task.ending.run_watch, name=f"watch the shim of {bundle.id}")
            case Decision.REPORT_STOPPED:
                assert state is not None
                found = TaskExit(state.exit_status, nanoseconds(state.exited_at), task.pid or state.pid)
                entry.exit = await task.ending.report_stopped(found)
                entry.outcome = Outcome.REPORTED
            case Decision.CLEAN_UP:
                LOG.warning("the shim of %s has no task any more: it is shut down", bundle.id)
                await task.ending.stop_shim()
                await self._remove(entry, bundle, answer.address, Outcome.CLEANED)
                task.detach()

    async def _finish_deletion(self, entry: Loaded, bundle: Bundle, answer: Answer, known: TaskExit) -> None:
        """What an earlier manager began: only the shim's leaving and the bundle are missing, and nothing is told."""
        entry.exit = known
        try:
            with trio.move_on_after(self._parts.budgets.shutdown.seconds):
                connection = await connect(self._parts.nursery, answer, bundle.namespace, bundle.id)
                log = await hold_log(self._parts, bundle, self._on_log)
                task = Task(self._parts, bundle, _binary_of(bundle), connection, StepTimes(), log)
                await task.ending.stop_shim()
                task.detach()
        except ShimError as error:
            LOG.debug("the shim of %s has left already: %s", bundle.id, error)
        await self._remove(entry, bundle, answer.address, Outcome.CLEANED)

    async def _reap(self, entry: Loaded, bundle: Bundle, binary: str, answer: Answer | None, why: ShimError) -> None:
        """Clean up after a shim that is gone or silent: `delete`, then the end of whoever listens on its socket."""
        LOG.warning("task %s is given up: %s", bundle.id, why)
        failure: ShimError | None = None
        if binary:
            entry.exit, failure = await bury(self._parts, bundle, binary)
        address = answer.address if answer is not None else usual_address(self._parts.launcher, bundle)
        if isinstance(why, DeadlineExceeded):
            killed = await trio.to_thread.run_sync(kill_shim, self._parts, bundle, binary, address)
            LOG.warning("killed the silent shim of %s: %s", bundle.id, killed or "nobody holds its socket")
        await self._remove(entry, bundle, address, Outcome.CLEANED)
        entry.error = failure or entry.error

    async def _remove(self, entry: Loaded, bundle: Bundle, address: str, outcome: Outcome) -> None:
        try:
            await remove_bundle(self._parts, bundle, address)
        except ShimError as error:
            entry.outcome, entry.error = Outcome.FAILED, error
        else:
            entry.outcome = outcome

    @property
    def _grace(self) -> float:
        return 3 * self._parts.budgets.cleanup.seconds


async def _facts(connection: ShimConnection, task_id: str) -> tuple[LoadFacts, StateResponse | None]:
    """What the shim says of the task, as the table wants it; ConnectionClosed goes on."""
    pids, seen, state = Pids.FAILED, Seen.FAILED, None
    try:
        answer = await connection.call("Pids", PidsRequest(id=task_id), PidsResponse)
        pids = Pids.SOME if answer.processes else Pids.NONE
    except NotFound:
        pids = Pids.NOT_FOUND
    except Unavailable:
        raise
    except ShimError as error:
        LOG.warning("Pids of %s: %s", task_id, error)
    try:
        state = await connection.call("State", StateRequest(id=task_id), StateResponse)
        seen = Seen.STOPPED if state.status == Status.STOPPED else Seen.LIVING
    except NotFound:
        seen = Seen.NOT_FOUND
    except Unavailable:
        raise
    except ShimError as error:
        LOG.warning("State of %s: %s", task_id, error)
    return LoadFacts(pids, seen), state


def kill_shim(parts: Parts, bundle: Bundle, binary: str, address: str) -> list[int]:
    """SIGKILL to the process that listens at `address`, if it is a shim of ours; the pids that were hit.

    It is when it runs the bundle's program, or was started with our address for this namespace.
    """
    try:
        parsed = parse_address(address)
    except InvalidArgument:
        return []
    if not isinstance(parsed, UnixAddress):
        return []
    ours = (f" -namespace {bundle.namespace} ", f" -address {parts.layout.address} ")

    def belongs(pid: int) -> bool:
        if binary and os.path.realpath(f"/proc/{pid}/exe") == os.path.realpath(binary):
            return True
        title = f" {' '.join(command_line(pid))} "  # one that a process gave itself has spaces for zeros
        return all(words in title for words in ours)

    return kill_listeners(parsed.path, belongs)


def _binary_of(bundle: Bundle) -> str:
    try:
        return read_binary(bundle)
    except ShimError:
        return ""
