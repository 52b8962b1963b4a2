"""One task as its manager sees it: the calls to its shim, and what is done when the shim is gone.

Invariants: the deletion is task Delete, then Shutdown, then hanging up, then the bundle (protocol.md 9.6), and can be
repeated after any failure: an exit that the shim once gave is kept, and a retry returns it.  A shim that hangs up
instead of answering is dead: its `delete` command is run once, its process killed, and that exit is the answer
(field fault C7).  A task whose deletion failed keeps its bundle.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Final

import attrs
import trio
from google.protobuf.empty_pb2 import Empty

from shim.errors import ConnectionClosed, FailedPrecondition, NotFound, ShimError
from shim.manager.bundle import delete_bundle
from shim.manager.launch import run_delete
from shim.manager.sockets import is_shared, remove_dead_socket
from shim.wire.proto.task_pb2 import (
    CloseIORequest,
    DeleteRequest,
    DeleteResponse,
    KillRequest,
    ResizePtyRequest,
    ShutdownRequest,
    StartRequest,
    StartResponse,
    StateRequest,
    StateResponse,
    WaitRequest,
    WaitResponse,
)
from shim.wire.proto.task_types_pb2 import Status
from shim.wire.times import nanoseconds

if TYPE_CHECKING:
    from shim.manager.bundle import Bundle
    from shim.manager.connection import ShimConnection
    from shim.manager.launch import Launcher
    from shim.manager.steps import StepTimes

LOG: Final = logging.getLogger("shim.manager")
UNKNOWN_STATUS: Final = 255
"""What containerd reports where nobody knows the exit (protocol.md 9.5)."""


@attrs.frozen
class TaskExit:
    """How a task ended: `status` is 0 to 255 (128 + signal); `exited_at_ns` None when the shim did not know."""

    status: int
    exited_at_ns: int | None = None
    pid: int = 0
    shim_lost: bool = False
    """The shim was gone and the exit is what its `delete` command found."""


class Task:
    """A created task; made by the manager."""

    def __init__(
        self,
        launcher: Launcher,
        bundle: Bundle,
        binary: str,
        shim: ShimConnection,
        times: StepTimes,
        log: trio.CancelScope,
    ) -> None:
        self._launcher: Final = launcher
        self._log: Final = log
        self._changing: Final = trio.Lock()
        self._exit: TaskExit | None = None
        self._shut_down = False
        self.bundle: Final = bundle
        self.binary: Final = binary
        self.shim: Final = shim
        self.times: Final = times
        self.pid = 0

    def __repr__(self) -> str:
        return f"<Task {self.bundle.namespace}/{self.bundle.id} pid {self.pid}>"

    @property
    def id(self) -> str:
        """The task's id."""
        return self.bundle.id

    async def start(self) -> int:
        """Start the created process and return its pid."""
        with self.times.timed("start"):
            answer = await self.shim.call("Start", StartRequest(id=self.id), StartResponse)
        self.pid = answer.pid
        return answer.pid

    async def state(self) -> StateResponse:
        """What the shim says of the task; within the state budget."""
        return await self.shim.call("State", StateRequest(id=self.id), StateResponse, self._launcher.budgets.state)

    async def wait(self) -> TaskExit:
        """Wait for the end.  When the shim is lost meanwhile, the exit that its `delete` command finds."""
        with self.times.timed("wait"):
            try:
                answer = await self.shim.call("Wait", WaitRequest(id=self.id), WaitResponse)
            except ConnectionClosed:
                async with self._changing:
                    return await self._clean_up_lost()
        return TaskExit(answer.exit_status, nanoseconds(answer.exited_at), self.pid)

    async def kill(self, signal: int, *, all_processes: bool = False) -> None:
        """Send a signal; NotFound when the process has ended."""
        await self.shim.call("Kill", KillRequest(id=self.id, signal=signal, all=all_processes), Empty)

    async def resize(self, width: int, height: int) -> None:
        """Tell the terminal its size in characters."""
        await self.shim.call("ResizePty", ResizePtyRequest(id=self.id, width=width, height=height), Empty)

    async def close_stdin(self) -> None:
        """End the container's input, once what was written is read."""
        await self.shim.call("CloseIO", CloseIORequest(id=self.id, stdin=True), Empty)

    async def delete(self, *, force: bool = False) -> TaskExit:
        """Delete the task, shut its shim down and remove the bundle; returns the exit.

        FailedPrecondition while it is created, running or paused, unless `force` kills it first.  NotFound when the
        shim knew nothing of it, after all else was done.  Retriable: whatever was reached is not done again.
        """
        async with self._changing:
            missing: NotFound | None = None
            if self._exit is None:
                await self._stop(force)
                with self.times.timed("delete"):
                    try:
                        self._exit = _exit_of(await self._delete())
                    except NotFound as error:
                        missing = error
                    except ConnectionClosed:
                        await self._clean_up_lost()
            with self.times.timed("shutdown"):
                await self._shut_down_shim()
                await self.remove()
            if self._exit is None:
                raise missing or NotFound(f"task {self.id}")
            return self._exit

    async def give_up(self) -> None:
        """Clean up a task that is not wanted; never raises, each step within a clean-up budget of its own, shielded.

        Killed first: the Go shims' Delete of a created task waits for the end of an output that init still holds.  The
        `delete` command is run in any case, for some failures leave what the runtime made behind (protocol.md 3.4);
        a shim that is still there then is killed.
        """
        for step in (self._kill, self._delete, self._shut_down_shim, self._run_delete, self._end_shim, self.remove):
            with trio.move_on_after(self._launcher.budgets.cleanup.seconds, shield=True):
                try:
                    await step()
                except (ShimError, OSError) as error:
                    LOG.info("giving up %s: %s", self.id, error)

    async def remove(self) -> None:
        """Hang up and remove the bundle."""
        self.shim.close()
        self._log.cancel()
        await delete_bundle(self.bundle)

    async def _stop(self, force: bool) -> None:
        """The client's side of deletion: a living task is refused, or killed and waited for."""
        try:
            state = await self.state()
        except (NotFound, ConnectionClosed):
            return
        if state.status == Status.STOPPED:
            return
        if not force:
            if state.status == Status.CREATED and state.pid == 0:
                return
            name = Status.Name(state.status).lower()
            raise FailedPrecondition(f"task must be stopped before deletion: {name}")
        budget = self._launcher.budgets.drain
        with trio.move_on_after(budget.seconds) as scope:
            await self._kill()
        if scope.cancelled_caught:
            raise budget.exceeded(f"task {self.id} did not end after SIGKILL")

    async def _kill(self) -> None:
        """SIGKILL, and wait for the end."""
        with contextlib.suppress(NotFound, ConnectionClosed):
            await self.kill(9)
            await self.shim.call("Wait", WaitRequest(id=self.id), WaitResponse)

    async def _delete(self) -> DeleteResponse:
        return await self.shim.call("Delete", DeleteRequest(id=self.id), DeleteResponse)

    async def _run_delete(self) -> DeleteResponse:
        return await run_delete(self._launcher, self.bundle, self.binary)

    async def _end_shim(self) -> None:
        """End a shim that should have left by now, and remove the socket that it then cannot remove itself.

        One that serves other tasks too is theirs.
        """
        if await trio.to_thread.run_sync(is_shared, self.bundle, self.shim.address):
            return
        if not self.shim.ended and self.shim.kill():
            await self.shim.wait_ended()
        await remove_dead_socket(self.shim.address)

    async def _clean_up_lost(self) -> TaskExit:
        """For a shim that is gone, or hangs up instead of answering; what it found is kept."""
        if self._exit is not None:
            return self._exit
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 2 * self._launcher.budgets.cleanup.seconds):
            await self._end_shim()
            try:
                found = _exit_of(await self._run_delete())
                self._exit = attrs.evolve(found, shim_lost=True)
            except ShimError as error:
                LOG.warning("the shim of %s is gone, and so is the exit: %s", self.id, error)
        if self._exit is None:
            self._exit = TaskExit(UNKNOWN_STATUS, None, self.pid, shim_lost=True)
        return self._exit

    async def _shut_down_shim(self) -> None:
        """Ask the shim to leave and wait until it did; a shim that has hung up has left.

        A shim with other tasks stays, by its own decision: it does not hang up, and is not waited for to the end.
        """
        if self._shut_down:
            return
        budget = self._launcher.budgets.shutdown
        with contextlib.suppress(ConnectionClosed):
            await self.shim.call("Shutdown", ShutdownRequest(id=self.id), Empty, budget)
        self._shut_down = True
        with trio.move_on_after(budget.seconds):
            await self.shim.wait_ended()


def _exit_of(answer: DeleteResponse) -> TaskExit:
    return TaskExit(answer.exit_status, nanoseconds(answer.exited_at), answer.pid)
