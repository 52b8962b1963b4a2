"""One container whose root is slow to unmount, and what its shim answers while it is deleted.

The root is an overlay that writes to a loop-mounted ext4.  When the container has ended it is filled with dirty pages;
then Delete is called on one connection, and State is asked all the time on another.  The phases are seen from outside,
so that they mean the same for any shim: the runtime's state directory is gone, the mount is gone from the table, Delete
is answered.

Invariants: leaving a trial, also by cancellation, ends its Delete, container and shim, and takes its disk away, in
bounded time; what the trial shows (`Trial`'s attributes) is true at every moment.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

import attrs
import trio

from shim.errors import ConnectionClosed, DeadlineExceeded, FailedPrecondition, NotFound, ShimError
from shim.kernel.meminfo import read_page_cache
from shim.kernel.mountinfo import at_or_below, read_mountinfo
from shim.manager.bootstrap import Answer
from shim.manager.connection import connect
from shim.manager.manager import TaskInputs
from shim.manager.spec import RunSpec, default_spec
from shim.verify.latency import Figures, StateProbe
from shim.verify.slowdisk import open_loop_disk
from shim.wire.proto.task_pb2 import DeleteRequest, DeleteResponse

if TYPE_CHECKING:
    from shim.kernel.children import Children
    from shim.manager.connection import ShimConnection
    from shim.manager.manager import Manager
    from shim.manager.tasks import Task
    from shim.model.budgets import Budget

RUNTIME_STATES: Final = "/run/containerd/runc"
"""Where runtimes keep their states unless options say otherwise (protocol.md 8.1)."""
IDLE_SECONDS: Final = 1.0
WATCH_SECONDS: Final = 0.01
BLOCK: Final = 4096
FILL_CHUNK: Final = 8 << 20
"""Bytes that are filled between two looks at whether anybody still wants it."""
GIVE_UP_SECONDS: Final = 300.0
"""How long a Delete may hang in the kernel before its shim is killed."""
DISK_SHARE: Final = 1.15
"""The file system is that much larger than what is written to it: its own tables and journal."""

RUNTIME_STATE_GONE: Final = "runtime state gone"
MOUNT_GONE: Final = "mount gone"
DELETE_ANSWERED: Final = "Delete answered"
PHASES: Final = (RUNTIME_STATE_GONE, MOUNT_GONE, DELETE_ANSWERED)


@attrs.define
class Trial:
    """One shim's turn; the attributes are for whoever shows it while it runs."""

    runtime: str
    program: str
    stage: str = "waiting for its turn"
    filled: int = 0
    """Bytes written into the container's root so far."""
    dirty: int = 0
    """Bytes of the machine's page cache that waited to be written when Delete was called."""
    began_at: float | None = None
    """When Delete was called, trio's clock."""
    phases: dict[str, float] = attrs.field(factory=dict)
    """Phase to seconds after the call of Delete, in the order in which they were seen."""
    probe: StateProbe | None = None
    idle: Figures = attrs.field(factory=Figures)
    during: Figures = attrs.field(factory=Figures)
    done: bool = False

    @property
    def elapsed(self) -> float:
        """Seconds since Delete was called, until it was answered; 0 before."""
        if self.began_at is None:
            return 0.0
        answered = self.phases.get(DELETE_ANSWERED)
        return trio.current_time() - self.began_at if answered is None else answered


@attrs.frozen
class TrialInputs:
    """What every trial of one demonstration shares."""

    manager: Manager
    children: Children
    namespace: str
    lower: str
    """The directory that is the lower layer of the containers' roots; has a busybox."""
    directory: str
    """Where disks are made."""
    size: int
    """Bytes that are written into the container's root."""


def disk_bytes(size: int) -> int:
    """How large the disk of a trial is that writes `size` bytes."""
    return int(size * DISK_SHARE) + (32 << 20)


async def run_trial(inputs: TrialInputs, trial: Trial, task_id: str) -> None:
    """Run one trial to its end, filling `trial`.  Raises what made it impossible."""
    trial.stage = "making a disk"
    async with open_loop_disk(inputs.children, inputs.directory, disk_bytes(inputs.size)) as disk:
        trial.stage = "making the container"
        root = disk.overlay(inputs.lower, task_id)
        task = await inputs.manager.create(
            inputs.namespace,
            task_id,
            default_spec(RunSpec(inputs.namespace, task_id, ["true"])),
            runtime=trial.runtime,
            prepare=lambda bundle: TaskInputs(rootfs=(root,)),
        )
        try:
            await _measure(inputs, task, trial)
        finally:
            trial.stage = "taking everything away"
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 2 * GIVE_UP_SECONDS):
                await _remove(task)
    trial.stage = "done"
    trial.done = True


async def _measure(inputs: TrialInputs, task: Task, trial: Trial) -> None:
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        try:
            answer = Answer(task.shim.version, task.shim.address)
            second = await connect(nursery, answer, inputs.namespace, task.id)
            try:
                # Nothing is dirty yet, and nothing must come between the filling and the Delete: the kernel writes back
                # by itself too.
                await _probe_idle(task, trial, second, inputs.manager.config.budgets.state)
                await _fill(task, trial, inputs.size)
                await _probe_deletion(inputs, task, trial, second)
            finally:
                second.close()
        except Exception as error:  # carried around the nursery, which would wrap it in a group
            failure = error
    if failure is not None:
        raise failure


async def _probe_idle(task: Task, trial: Trial, second: ShimConnection, budget: Budget) -> None:
    trial.stage = "State of an idle shim"
    probe = trial.probe = StateProbe(second, task.id, budget)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(probe.run_probe)
        await trio.sleep(IDLE_SECONDS)
        probe.stop()
    trial.idle = probe.figures()


async def _fill(task: Task, trial: Trial, size: int) -> None:
    """Let the container end, then change blocks all over a file in its root: every second one, so that none join.

    Writing those back costs the kernel so much for each that a fast disk does not save it.
    """
    trial.stage = "filling its root"
    await task.start()
    end = await task.wait()
    if end.status:
        raise FailedPrecondition(f"the container ended with {end.status}")
    file_fd = os.open(f"{task.bundle.rootfs}/filled", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # Twice: what the kernel has written back meanwhile by itself gets dirty again, and that is quick.
        for _ in range(2):
            for start in range(0, size, FILL_CHUNK):
                count = min(FILL_CHUNK, size - start)
                await trio.to_thread.run_sync(_scatter, file_fd, start, count)
                trial.filled = max(trial.filled, start + count)
    finally:
        os.close(file_fd)


def _scatter(file_fd: int, start: int, count: int) -> None:
    data = os.urandom(BLOCK)
    for at in range(start, start + count, BLOCK):
        os.pwrite(file_fd, data, 2 * at)


async def _probe_deletion(inputs: TrialInputs, task: Task, trial: Trial, second: ShimConnection) -> None:
    rootfs = await trio.to_thread.run_sync(os.path.realpath, task.bundle.rootfs)
    probe = trial.probe = StateProbe(second, task.id, inputs.manager.config.budgets.state)
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        trial.dirty = read_page_cache().dirty
        trial.stage = "Delete"
        began_at = trial.began_at = trio.current_time()
        nursery.start_soon(probe.run_probe)
        outside = _Outside(f"{RUNTIME_STATES}/{inputs.namespace}/{task.id}", rootfs, began_at, trial.phases)
        nursery.start_soon(outside.watch)
        try:
            await task.shim.call("Delete", DeleteRequest(id=task.id), DeleteResponse)
        except Exception as error:
            failure = error
        else:
            outside.look()
            trial.phases[DELETE_ANSWERED] = trio.current_time() - began_at
            probe.stop()
            await probe.wait_answered()
        nursery.cancel_scope.cancel()
    trial.during = probe.figures()
    if failure is not None:
        raise failure


@attrs.frozen
class _Outside:
    """What can be seen of a deletion without asking the shim."""

    state: str
    rootfs: str
    began_at: float
    phases: dict[str, float]

    def look(self) -> None:
        """Note what is gone by now."""
        if RUNTIME_STATE_GONE not in self.phases and not os.path.exists(self.state):
            self.phases[RUNTIME_STATE_GONE] = trio.current_time() - self.began_at
        if MOUNT_GONE not in self.phases and not at_or_below(read_mountinfo(), self.rootfs):
            self.phases[MOUNT_GONE] = trio.current_time() - self.began_at

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await trio.sleep(WATCH_SECONDS)


async def _remove(task: Task) -> None:
    """Delete what is left of the task; a shim that is stuck in the kernel is waited for, then given up."""
    until = trio.current_time() + GIVE_UP_SECONDS
    while trio.current_time() < until:
        try:
            await task.delete(force=True)
        except DeadlineExceeded:
            continue  # State does not answer: it is at it
        except (NotFound, ConnectionClosed):
            return
        except ShimError:
            break
        else:
            return
    with contextlib.suppress(ShimError):
        await task.give_up()
