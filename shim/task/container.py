"""A container: its bundle, its runtime, its processes, and the nursery in which all its work runs.

The container's task ends when the container is deleted, and nothing of it is left then.  What is done to it stands in
the modules beside this one: `creation`, `init`, `execs`, `control`, `deletion`.  Here is what they share: the facts,
who waits for whom, and the order of exits: init's is written to the bundle before anybody is told, and told after those
of all execs.
"""

from __future__ import annotations

import logging
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import trio

from shim import convert
from shim.errors import AlreadyExists, Internal, NotFound, ShimError
from shim.kernel import files, procfs
from shim.kernel.cgroup_files import CgroupPlaces
from shim.model import lifecycle
from shim.model.exits import ExitRecord
from shim.model.lifecycle import State
from shim.model.spec import SpecFacts
from shim.runc.runtime import Runtime
from shim.task.jobs import Jobs
from shim.task.oom import OomWatch
from shim.task.process import Process, StdioPaths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shim.kernel.children import Child, Children, Exit
    from shim.model.mounts import Mount
    from shim.model.options import RuncOptions
    from shim.task.events import TaskEvents
    from shim.task.execs import ExecProcess

_log = logging.getLogger("shim.task.container")

KILL_ALL_SECONDS: Final = 10.0
"""How long the runtime may take to kill what init of a shared pid namespace left behind."""
LEAVE_SECONDS: Final = 5.0
"""How long calls that still wait on a deleted container may take to learn of it."""


class Container:
    """One task of the shim."""

    def __init__(
        self,
        *,
        id_: str,
        bundle: str,
        namespace: str,
        options: RuncOptions,
        mounts: Sequence[Mount],
        stdio: StdioPaths,
        children: Children,
        events: TaskEvents,
        checkpoint: str = "",
    ) -> None:
        self.id = id_
        self.bundle = Path(bundle)
        self.namespace = namespace
        self.options = options
        self.mounts = mounts
        self.checkpoint = checkpoint
        self.rootfs = self.bundle / "rootfs"
        self.facts = SpecFacts()
        self.children = children
        self.events = events
        self.runtime = Runtime(
            children,
            binary=options.binary,
            root=options.runtime_root(namespace),
            bundle=bundle,
            systemd_cgroup=options.systemd_cgroup,
        )
        self.runtime_began = False
        self.cgroup: CgroupPlaces | None = None
        self.init = Process(id_, stdio, lifecycle.INIT, self._exited)
        self.execs: dict[str, ExecProcess] = {}
        self.jobs: Jobs
        self.nursery: trio.Nursery
        self._oom: OomWatch | None = None
        self._gone = trio.Event()
        self._broken: Exception | None = None

    async def run_container(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """The container's task: lives until `leave`; a bug in it is this container's alone (design 4, rule 4)."""
        try:
            async with trio.open_nursery() as nursery:
                self.nursery = nursery
                self.jobs = Jobs(nursery)
                task_status.started()
                await self._gone.wait()
                with trio.move_on_after(LEAVE_SECONDS):
                    await self.jobs.wait_idle()
                nursery.cancel_scope.cancel()
        except Exception as error:
            _log.exception("container %s: its task failed", self.id)
            self._broken = error

    def leave(self) -> None:
        """Let the container's task end once the jobs that wait on it have their answers."""
        self._gone.set()

    def check(self) -> None:
        """Raise Internal when the container's task has failed."""
        if self._broken is not None:
            raise Internal(f"task {self.id} failed inside the shim, whose log has the traceback: {self._broken!r}")

    def process(self, exec_id: str) -> Process:
        """Init for the empty id, else that exec; NotFound when there is none."""
        if not exec_id:
            return self.init
        return self.exec_process(exec_id)

    def exec_process(self, exec_id: str) -> ExecProcess:
        """The exec of that id; NotFound when there is none."""
        process = self.execs.get(exec_id)
        if process is None:
            raise NotFound(f"process does not exist {exec_id}")
        return process

    def add_exec(self, process: ExecProcess) -> None:
        """Record an exec; AlreadyExists when its id is taken."""
        if process.id in self.execs:
            raise AlreadyExists(f"id {process.id}")
        self.execs[process.id] = process

    async def pids(self) -> list[int]:
        """The pids in the container; none once it has stopped or before it ran."""
        if self.init.state is State.STOPPED or self.init.child is None:
            return []
        return await self.runtime.ps(self.id)

    def adopt(self, process: Process, pid_file: Path, mark: int) -> None:
        """Take over the process whose pid the runtime wrote, and watch for its end.

        `mark` was taken from the children before the runtime ran.  Raises ShimError when there is no such process.
        """
        try:
            pid = int(files.read_text(pid_file))
        except (OSError, ValueError) as error:
            what = "container" if process is self.init else "exec"
            raise ShimError(f"failed to retrieve OCI runtime {what} pid: {error}") from error
        process.child = self.children.adopt(pid, mark)
        process.pid = pid
        if process is self.init:
            self._watch_memory(pid)
        watch = self._watch_init if process is self.init else self._watch_exec
        self.nursery.start_soon(watch, process, process.child, _start_time(pid), name=f"{process.id} {pid}")

    async def _watch_exec(self, process: Process, child: Child, pid_start: int) -> None:
        record = self._record(process, await child.wait(), pid_start)
        await process.settled()
        process.exit_seen(record)

    def _watch_memory(self, pid: int) -> None:
        try:
            self.cgroup = CgroupPlaces.of(pid)
        except (OSError, ShimError) as error:  # an init that has ended already has none
            _log.warning("container %s: its cgroup is not known: %s", self.id, error)
        self._oom = OomWatch(self.cgroup, lambda: self.events.oom(self.id))
        self._oom.start(self.nursery)

    async def _watch_init(self, init: Process, child: Child, pid_start: int) -> None:
        record = self._record(init, await child.wait(), pid_start)
        if self._oom is not None:
            self._oom.check_now()
            self._oom.close()
            record = attrs.evolve(record, oom_killed=self._oom.oom_killed)
        self._write_exit(record)
        if not self.facts.own_pid_namespace:
            await self._kill_left_behind()
        if init.state is State.PAUSED:
            await self._thaw()
        for process in list(self.execs.values()):
            await process.ended()
        await init.settled()
        init.exit_seen(record)

    def _record(self, process: Process, end: Exit, pid_start: int) -> ExitRecord:
        process.tell_streams_of_end()
        return ExitRecord(
            pid=end.pid,
            status=end.status,
            exited_at_ns=end.at_ns,
            namespace=self.namespace,
            id=process.id,
            pid_start=pid_start,
        )

    async def _kill_left_behind(self) -> None:
        with trio.move_on_after(KILL_ALL_SECONDS):
            try:
                await self.runtime.kill(self.id, signal.SIGKILL, everyone=True)
            except NotFound:
                pass
            except ShimError as error:
                _log.warning("container %s: killing what init left behind: %s", self.id, error)

    async def _thaw(self) -> None:
        with trio.move_on_after(KILL_ALL_SECONDS):
            try:
                await self.runtime.resume(self.id)
            except ShimError as error:
                _log.warning("container %s: thawing it after its end: %s", self.id, error)

    def _exited(self, process: Process, record: ExitRecord) -> None:
        self.events.exited(self.id, process.id, record)

    def _write_exit(self, record: ExitRecord) -> None:
        try:
            files.write_atomic(self.bundle / "exit.json", convert.exit_record_to_json(record), mode=0o600)
        except OSError as error:  # a full or read-only disk delays nobody: the exit is told all the same
            _log.warning("container %s: exit.json cannot be written: %s", self.id, error)


def _start_time(pid: int) -> int:
    """When the kernel started `pid`; 0 when it has been reaped already."""
    try:
        return procfs.start_time(pid)
    except OSError:
        return 0
