"""A container: its bundle, its runtime, its processes, and the nursery in which all its work runs.

The container's task ends when the container is deleted, and nothing of it is left then.  Creation is undone by
`roll_back`; everything later goes through the processes' guards.  The exit of init is written to the bundle before
anybody is told of it, and is told after the exits of all execs.
"""

from __future__ import annotations

import logging
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from shim import convert
from shim.errors import AlreadyExists, NotFound, ShimError
from shim.kernel import files, procfs
from shim.model import lifecycle
from shim.model.exits import ExitRecord
from shim.model.lifecycle import State, Verb
from shim.model.spec import SpecFacts, spec_facts
from shim.mounts.apply import mount_all
from shim.mounts.unwind import unmount_all
from shim.runc.arguments import CreateOptions
from shim.runc.runtime import Runtime
from shim.task import deletion
from shim.task.jobs import Jobs
from shim.task.process import Process, StdioPaths
from shim.task.stdio import Streams

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from shim.kernel.children import Child, Children
    from shim.model.mounts import Mount
    from shim.model.options import RuncOptions
    from shim.task.events import TaskEvents

_log = logging.getLogger("shim.task.container")

ROLL_BACK_SECONDS: Final = 30.0
"""Budget of undoing a failed or abandoned Create: killing and forgetting takes milliseconds, an unmount may not."""
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
    ) -> None:
        self.id = id_
        self.bundle = Path(bundle)
        self.namespace = namespace
        self.options = options
        self.mounts = mounts
        self.rootfs = self.bundle / "rootfs"
        self.facts = SpecFacts()
        self.broken: Exception | None = None
        self.init = Process(id_, stdio, lifecycle.INIT, self._init_exited)
        self.runtime = Runtime(
            children,
            binary=options.binary,
            root=options.runtime_root(namespace),
            bundle=bundle,
            systemd_cgroup=options.systemd_cgroup,
        )
        self.jobs: Jobs
        self._children = children
        self._events = events
        self._nursery: trio.Nursery
        self._gone = trio.Event()
        self._runtime_began = False

    async def run_container(self, *, task_status: trio.TaskStatus[None]) -> None:
        """The container's task: lives until `leave`; a bug in it is this container's alone (design 4, rule 4)."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self.jobs = Jobs(nursery)
                task_status.started()
                await self._gone.wait()
                with trio.move_on_after(LEAVE_SECONDS):
                    await self.jobs.wait_idle()
                nursery.cancel_scope.cancel()
        except Exception as error:
            _log.exception("container %s: its task failed", self.id)
            self.broken = error

    def leave(self) -> None:
        """Let the container's task end once the jobs that wait on it have their answers."""
        self._gone.set()

    async def create(self) -> None:
        """Mounts, streams, `runtime create`.  On any failure the caller must `roll_back`.

        Raises NotFound for a missing bundle, RuntimeFailure with the runtime's reason, InvalidArgument for a sink
        that nobody knows, OSError-born errors of the mounts.
        """
        if not self.bundle.is_dir():
            raise NotFound(f"bundle {self.bundle}: no such directory")
        if self.runtime.knows(self.id):
            # Somebody else's, or left by a crash: in neither case may a failed create of ours take it down.
            raise AlreadyExists(f"OCI runtime create failed: container with id exists in {self.runtime.root}")
        self._write_options()
        self.facts = self._read_spec()
        if self.mounts:
            self.rootfs.mkdir(mode=0o711, exist_ok=True)
            await mount_all(self.mounts, str(self.rootfs))
        streams = Streams.open(self.init.stdio, owner=(self.options.io_uid, self.options.io_gid))
        self.init.streams = streams
        streams.start(self._nursery)
        mark = self._children.mark()
        pid_file = self.bundle / "init.pid"
        options = CreateOptions(
            bundle=str(self.bundle),
            pid_file=str(pid_file),
            no_pivot=self.options.no_pivot_root,
            no_new_keyring=self.options.no_new_keyring,
        )
        self._runtime_began = True
        await self.runtime.create(self.id, options, stdio=streams.child_fds, on_spawn=streams.release_child_ends)
        self._adopt_init(pid_file, mark)

    async def roll_back(self) -> None:
        """Undo a Create that failed or lost its caller: runtime state, streams, mounts; never raises."""
        with trio.move_on_after(ROLL_BACK_SECONDS, shield=True):
            if self._runtime_began:
                await self._undo_step(self.runtime.delete(self.id, force=True))
            if self.init.streams is not None:
                await self.init.streams.aclose()
            await self._undo_step(unmount_all(str(self.rootfs)))
            (self.bundle / "init.pid").unlink(missing_ok=True)
        self.leave()

    async def _undo_step(self, step: Awaitable[object]) -> None:
        try:
            await step
        except (ShimError, OSError) as error:
            _log.warning("roll back of %s: %s", self.id, error)

    async def start(self) -> None:
        """Let init run; readers wait meanwhile, and the start event precedes the exit event."""
        async with self.init.starting():
            await self.runtime.start(self.id)
            self._events.started(self.id, self.init.pid)

    async def kill(self, signum: int, *, everyone: bool) -> None:
        """Signal init, or everyone.  The guard is left before the runtime runs: a signal changes no state by itself,
        and a runtime that hangs must not hold up a Delete."""
        async with self.init.changing():
            self.init.next_state(Verb.KILL)
        if signum:
            await self.runtime.kill(self.id, signum, everyone=everyone)

    async def delete(self, deadline: float) -> ExitRecord | None:
        """Delete init and with it the task.  `deadline` (trio's clock) is the caller's, to which the drain bends."""
        async with self.init.deletion():
            await deletion.dismantle(
                self.init,
                delete_runtime=lambda: self.runtime.delete(self.id),
                unmount=lambda: unmount_all(str(self.rootfs)),
                deadline=deadline,
            )
        self._events.deleted(self.id, self.init.exit)
        return self.init.exit

    async def pids(self) -> list[int]:
        """The pids in the container; none once it has stopped."""
        if self.init.state is State.STOPPED:
            return []
        return await self.runtime.ps(self.id)

    def _adopt_init(self, pid_file: Path, mark: int) -> None:
        try:
            pid = int(pid_file.read_text())
        except (OSError, ValueError) as error:
            raise ShimError(f"failed to retrieve OCI runtime container pid: {error}") from error
        child = self._children.adopt(pid, mark)
        self.init.pid = pid
        self.init.child = child
        self._nursery.start_soon(self._watch_init, child, _start_time(pid), name=f"init {pid}")

    async def _watch_init(self, child: Child, pid_start: int) -> None:
        ended = await child.wait()
        record = ExitRecord(
            pid=child.pid,
            status=ended.status,
            exited_at_ns=ended.at_ns,
            namespace=self.namespace,
            id=self.id,
            pid_start=pid_start,
        )
        self._write_exit(record)
        if not self.facts.own_pid_namespace:
            await self._kill_left_behind()
        await self.init.settled()
        self.init.exit_seen(record)

    async def _kill_left_behind(self) -> None:
        with trio.move_on_after(KILL_ALL_SECONDS):
            try:
                await self.runtime.kill(self.id, signal.SIGKILL, everyone=True)
            except NotFound:
                pass
            except ShimError as error:
                _log.warning("container %s: killing what init left behind: %s", self.id, error)

    def _init_exited(self, process: Process, record: ExitRecord) -> None:
        self._events.exited(self.id, process.id, record)

    def _write_options(self) -> None:
        files.write_atomic(self.bundle / "options.json", convert.options_to_json(self.options), mode=0o600)
        files.write_atomic(self.bundle / "runtime", self.options.binary_name.encode(), mode=0o600)

    def _write_exit(self, record: ExitRecord) -> None:
        try:
            files.write_atomic(self.bundle / "exit.json", convert.exit_record_to_json(record), mode=0o600)
        except OSError as error:  # a full or read-only disk delays nobody: the exit is told all the same
            _log.warning("container %s: exit.json cannot be written: %s", self.id, error)

    def _read_spec(self) -> SpecFacts:
        try:
            return spec_facts((self.bundle / "config.json").read_bytes())
        except OSError:
            return SpecFacts()


def _start_time(pid: int) -> int:
    """When the kernel started `pid`; 0 when it has been reaped already."""
    try:
        return procfs.start_time(pid)
    except OSError:
        return 0
