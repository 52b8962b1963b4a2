"""How a task ends, and its shim with it: deletion, a shim that was lost, a task that is given up.

Invariants: the deletion is task Delete, then Shutdown, then hanging up, then mounts, then the bundle (protocol.md 9.6),
all under the task's lock; the exit is kept, in memory and in the bundle, the moment it is known, so that a retry after
any failure, also by another manager, returns the same and publishes nothing twice; once Delete was sent the rest is
done whether or not somebody waits for it.  A shim that is gone, or hangs up instead of answering, is buried: its
`delete` command gives the exit, and the events that it cannot send any more are ours to send (field faults C7, Q6, Q7).
"""

from __future__ import annotations

import contextlib
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import trio
from google.protobuf.empty_pb2 import Empty

from shim.errors import ConnectionClosed, FailedPrecondition, NotFound, ShimError
from shim.manager.bundle import delete_bundle
from shim.manager.jobs import Job, run_detached
from shim.manager.launch import run_delete
from shim.manager.locks import open_task_lock
from shim.manager.processes import exit_of
from shim.manager.records import TaskExit, identity, read_deleted, write_deleted
from shim.manager.sockets import is_shared, remove_dead_socket
from shim.manager.task_mounts import deactivate
from shim.wire.proto.task_pb2 import (
    DeleteRequest,
    DeleteResponse,
    KillRequest,
    ShutdownRequest,
    StateRequest,
    StateResponse,
    WaitRequest,
    WaitResponse,
)
from shim.wire.proto.task_types_pb2 import Status

if TYPE_CHECKING:
    from shim.manager.bundle import Bundle
    from shim.manager.connection import ShimConnection
    from shim.manager.parts import Parts
    from shim.manager.steps import StepTimes

LOG: Final = logging.getLogger("shim.manager")
UNKNOWN_STATUS: Final = 255
"""What containerd reports where nobody knows the exit (protocol.md 9.5)."""


async def bury(parts: Parts, bundle: Bundle, binary: str, known_pid: int = 0) -> tuple[TaskExit, ShimError | None]:
    """The exit of a task whose shim is gone, by its `delete` command, kept and told.

    With it the error, when the command failed: then the status is the unknown one.  Never longer than two clean-up
    budgets.
    """
    failure: ShimError | None = None
    try:
        end = attrs.evolve(exit_of(await run_delete(parts.launcher, bundle, binary), known_pid), shim_lost=True)
    except ShimError as error:
        LOG.warning("the shim of %s is gone, and so is the exit: %s", bundle.id, error)
        end = TaskExit(UNKNOWN_STATUS, time.time_ns(), known_pid, shim_lost=True)
        failure = error
    await trio.to_thread.run_sync(write_deleted, bundle, end)
    await parts.tell_end(bundle, end)
    return end, failure


class Ending:
    """The end of one task; one for its life in this manager."""

    def __init__(
        self,
        parts: Parts,
        bundle: Bundle,
        binary: str,
        shim: ShimConnection,
        times: StepTimes,
        log: trio.CancelScope,
    ) -> None:
        self._parts: Final = parts
        self._bundle: Final = bundle
        self._binary: Final = binary
        self._shim: Final = shim
        self._times: Final = times
        self._log: Final = log
        self._shut_down = False
        self._gone = False
        self._failure: ShimError | None = None
        self._watching: Final = trio.CancelScope()
        self._identity: Final = identity(bundle)
        self.pid = 0
        self.exit: TaskExit | None = None
        self.handled: Final = trio.Event()
        """Set once the loss of the shim was dealt with, or there was none to deal with any more."""

    async def run_watch(self) -> None:
        """Deal with the loss of the shim, if it comes; for the manager's nursery."""
        with self._watching:
            await self._shim.lost.wait()
            job = Job(self._lose, f"clean up after the shim of {self._bundle.id}", 2 * self._cleanup)
            await job.run()

    async def lost_exit(self) -> TaskExit:
        """The exit of a task whose shim was lost, once that is dealt with; NotFound when somebody else removed it."""
        await self.handled.wait()
        if self.exit is not None:
            return self.exit
        raise self._failure or NotFound(f"task {self._bundle.id}: somebody else has removed it")

    def let_go(self) -> None:
        """Hang up and change nothing: task and shim go on."""
        self._watching.cancel()
        self._shim.close()
        self._log.cancel()
        self.handled.set()

    async def delete(self, force: bool) -> TaskExit:
        """See `Task.delete`."""
        call = partial(self._delete, force)
        return await run_detached(self._parts.nursery, call, f"delete {self._bundle.id}", 2 * self._cleanup)

    async def give_up(self) -> None:
        """Clean up a task that is not wanted; never raises, each step within a clean-up budget of its own, shielded.

        Killed first: the Go shims' Delete of a created task waits for the end of an output that init still holds.
        """
        for step in (self.end_task, self.stop_shim, self.finish):
            await step()

    async def end_task(self) -> None:
        """Kill the task and let the shim forget it, as far as that goes."""
        await self._parts.try_step(f"kill {self._bundle.id}", self._kill)
        await self._parts.try_step(f"delete {self._bundle.id}", self._call_delete)

    async def stop_shim(self) -> None:
        """Shut the shim down, as far as that goes; one that is still there then is killed, unless it serves others.

        The `delete` command is run in any case, for some failures leave what the runtime made behind (protocol.md 3.4).
        """
        await self._parts.try_step(f"shut down the shim of {self._bundle.id}", self._shut_down_shim)
        await self._parts.try_step(
            f"clean up {self._bundle.id}", partial(run_delete, self._parts.launcher, self._bundle, self._binary)
        )
        await self._parts.try_step(f"end the shim of {self._bundle.id}", self._end_shim)

    async def finish(self) -> None:
        """Remove what is left of it, as far as that goes."""
        await self._parts.try_step(f"remove {self._bundle.id}", self._remove)

    async def report_stopped(self, found: TaskExit) -> TaskExit:
        """Delete a task that was found stopped, under the lock that the caller holds; its exit.

        The exit is told first, since nobody knows whether the shim still can: one that does as well is not heard twice.
        """
        await self._parts.tell_exit(self._bundle, found)
        try:
            self.exit = exit_of(await self._call_delete(), self.pid)
            await trio.to_thread.run_sync(write_deleted, self._bundle, self.exit)
            await self._parts.try_step(f"shut down the shim of {self._bundle.id}", self._shut_down_shim)
            await self._parts.tell_end(self._bundle, self.exit)
        except ConnectionClosed:
            await self._bury()
        assert self.exit is not None
        await self._remove()
        return self.exit

    # -- what is done under the lock

    async def _delete(self, force: bool) -> TaskExit:
        layout, budgets = self._parts.layout, self._parts.budgets
        async with open_task_lock(layout, self._bundle.namespace, self._bundle.id, budgets.lock):
            missing: NotFound | None = None
            self._recall()
            if self._gone:
                if self.exit is None:
                    raise NotFound(f"task {self._bundle.id}: somebody else has removed it")
                return self.exit
            if self.exit is None:
                await self._stop(force)
                with self._times.timed("delete"):
                    try:
                        self.exit = exit_of(await self._call_delete(), self.pid)
                        await trio.to_thread.run_sync(write_deleted, self._bundle, self.exit)
                    except NotFound as error:
                        missing = error
                    except ConnectionClosed:
                        await self._bury()
            with self._times.timed("shutdown"):
                await self._shut_down_shim()
                await self._remove()
            if self.exit is None:
                raise missing or NotFound(f"task {self._bundle.id}")
            return self.exit

    async def _lose(self) -> None:
        layout, budgets = self._parts.layout, self._parts.budgets
        try:
            async with open_task_lock(layout, self._bundle.namespace, self._bundle.id, budgets.lock):
                self._recall()
                if self._gone:
                    return
                if self.exit is None:
                    await self._bury()
                await self._remove()
        except (ShimError, OSError) as error:
            LOG.warning("the shim of %s is gone, and what it left is still there: %s", self._bundle.id, error)
            self._failure = error if isinstance(error, ShimError) else ShimError(str(error))
        finally:
            self.handled.set()

    def _recall(self) -> None:
        """Take over what was done by somebody else, or by us before: whether our bundle is there, and its exit.

        A bundle of the same id that is another one is somebody else's task.
        """
        self._gone = self._gone or identity(self._bundle) != self._identity
        if self.exit is None and not self._gone:
            self.exit = read_deleted(self._bundle)

    async def _stop(self, force: bool) -> None:
        """The client's side of deletion: a living task is refused, or killed and waited for."""
        try:
            request = StateRequest(id=self._bundle.id)
            state = await self._shim.call("State", request, StateResponse, self._parts.budgets.state)
        except (NotFound, ConnectionClosed):
            return
        if state.status == Status.STOPPED:
            return
        if not force:
            if state.status == Status.CREATED and state.pid == 0:
                return
            name = Status.Name(state.status).lower()
            raise FailedPrecondition(f"task must be stopped before deletion: {name}")
        budget = self._parts.budgets.drain
        with trio.move_on_after(budget.seconds) as scope:
            await self._kill()
        if scope.cancelled_caught:
            raise budget.exceeded(f"task {self._bundle.id} did not end after SIGKILL")

    async def _kill(self) -> None:
        """SIGKILL, and wait for the end."""
        with contextlib.suppress(NotFound, ConnectionClosed):
            await self._shim.call("Kill", KillRequest(id=self._bundle.id, signal=9), Empty)
            await self._shim.call("Wait", WaitRequest(id=self._bundle.id), WaitResponse)

    async def _call_delete(self) -> DeleteResponse:
        return await self._shim.call("Delete", DeleteRequest(id=self._bundle.id), DeleteResponse)

    async def _bury(self) -> None:
        """For a shim that is gone, or hangs up instead of answering; what it found is kept."""
        await self._parts.try_step(f"end the shim of {self._bundle.id}", self._end_shim)
        self.exit, _ = await bury(self._parts, self._bundle, self._binary, self.pid)
        self._shut_down = True

    async def _end_shim(self) -> None:
        """End a shim that should have left by now.  One that serves other tasks too is theirs."""
        if await trio.to_thread.run_sync(is_shared, self._bundle, self._shim.address):
            return
        if not self._shim.ended and self._shim.kill():
            await self._shim.wait_ended()
        await remove_dead_socket(self._shim.address)

    async def _shut_down_shim(self) -> None:
        """Ask the shim to leave and wait until it did; a shim that has hung up has left.

        A shim with other tasks stays, by its own decision: it does not hang up, and is not waited for to the end.
        """
        if self._shut_down:
            return
        await self._parts.socket.wait_taken()
        budget = self._parts.budgets.shutdown
        with contextlib.suppress(ConnectionClosed):
            await self._shim.call("Shutdown", ShutdownRequest(id=self._bundle.id), Empty, budget)
        self._shut_down = True
        if await trio.to_thread.run_sync(is_shared, self._bundle, self._shim.address):
            return
        with trio.move_on_after(budget.seconds):
            await self._shim.wait_ended()

    async def _remove(self) -> None:
        """Hang up and remove mounts and bundle; the last of a group also the socket of a shim that was killed."""
        self._watching.cancel()
        self._shim.close()
        self._log.cancel()
        await remove_bundle(self._parts, self._bundle, self._shim.address)
        self._gone = True
        self.handled.set()

    @property
    def _cleanup(self) -> float:
        return self._parts.budgets.cleanup.seconds


async def remove_bundle(parts: Parts, bundle: Bundle, address: str) -> None:
    """Undo the bundle's mounts, remove it, and then the socket at `address` if nobody is left to use it.

    Within the clean-up budget, whose error says that it stays; FailedPrecondition when something is mounted or in use.
    """
    budget = parts.budgets.cleanup
    with trio.move_on_after(budget.seconds):
        await deactivate(parts.activations, bundle)
        await delete_bundle(bundle)
        if address and not await trio.to_thread.run_sync(is_shared, bundle, address):
            await remove_dead_socket(address)
        return
    raise budget.exceeded(f"the bundle of {bundle.id} could not be removed, and stays,")
