"""The calls about one process of a task: its init (`exec_id` empty) or an exec.

Invariants: what changes the process is done under the task's lock, what only asks or signals is not; each answer is the
shim's own, each failure its error.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from google.protobuf.empty_pb2 import Empty

from shim.manager.locks import open_task_lock
from shim.manager.records import TaskExit
from shim.wire.proto.task_pb2 import (
    CloseIORequest,
    DeleteRequest,
    DeleteResponse,
    KillRequest,
    ResizePtyRequest,
    StartRequest,
    StartResponse,
    StateRequest,
    StateResponse,
    WaitRequest,
    WaitResponse,
)
from shim.wire.times import nanoseconds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from shim.manager.bundle import Bundle
    from shim.manager.connection import ShimConnection
    from shim.manager.parts import Parts

LARGEST_PID: Final = 1 << 22


class Process:
    """One process; made by a task."""

    def __init__(self, parts: Parts, bundle: Bundle, shim: ShimConnection, exec_id: str = "") -> None:
        self._parts: Final = parts
        self.bundle: Final = bundle
        self.shim: Final = shim
        self.exec_id: Final = exec_id
        self.pid = 0
        """0 until it was created (init) or started (exec)."""

    def __repr__(self) -> str:
        name = f"{self.bundle.namespace}/{self.bundle.id}"
        return f"<{type(self).__name__} {name}{f' exec {self.exec_id}' if self.exec_id else ''} pid {self.pid}>"

    @property
    def id(self) -> str:
        """The task's id."""
        return self.bundle.id

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Hold the task's lock in the block; DeadlineExceeded when somebody else keeps it too long."""
        async with open_task_lock(self._parts.layout, self.bundle.namespace, self.bundle.id, self._parts.budgets.lock):
            yield

    async def start(self) -> int:
        """Start the process and return its pid."""
        async with self.changing():
            request = StartRequest(id=self.id, exec_id=self.exec_id)
            answer = await self.shim.call("Start", request, StartResponse)
        self.pid = answer.pid
        return answer.pid

    async def state(self) -> StateResponse:
        """What the shim says of the process; within the state budget."""
        request = StateRequest(id=self.id, exec_id=self.exec_id)
        return await self.shim.call("State", request, StateResponse, self._parts.budgets.state)

    async def wait(self) -> TaskExit:
        """Wait for the end; ConnectionClosed when the shim is lost meanwhile."""
        answer = await self.shim.call("Wait", WaitRequest(id=self.id, exec_id=self.exec_id), WaitResponse)
        return TaskExit(answer.exit_status, nanoseconds(answer.exited_at), self.pid)

    async def kill(self, signal: int, *, all_processes: bool = False) -> None:
        """Send a signal; NotFound when the process has ended."""
        request = KillRequest(id=self.id, exec_id=self.exec_id, signal=signal, all=all_processes)
        await self.shim.call("Kill", request, Empty)

    async def resize(self, width: int, height: int) -> None:
        """Tell the terminal its size in characters."""
        request = ResizePtyRequest(id=self.id, exec_id=self.exec_id, width=width, height=height)
        await self.shim.call("ResizePty", request, Empty)

    async def close_stdin(self) -> None:
        """End the process's input, once what was written is read."""
        await self.shim.call("CloseIO", CloseIORequest(id=self.id, exec_id=self.exec_id, stdin=True), Empty)


class ExecProcess(Process):
    """A further process in a running task; `start` it, `wait` for it, `delete` it."""

    async def delete(self) -> TaskExit:
        """Let the shim forget it; its exit.  Whatever the shim answers while it runs."""
        request = DeleteRequest(id=self.id, exec_id=self.exec_id)
        return exit_of(await self.shim.call("Delete", request, DeleteResponse))


def exit_of(answer: DeleteResponse, known_pid: int = 0) -> TaskExit:
    """The exit in an answer to Delete; a pid that is none (the peers' "not known") is replaced by the known one."""
    pid = answer.pid if 0 < answer.pid <= LARGEST_PID else known_pid
    return TaskExit(answer.exit_status, nanoseconds(answer.exited_at), pid)
