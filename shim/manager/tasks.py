"""One task as its manager sees it: the calls to its shim; how it ends is in `shim.manager.ending`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import attrs
from google.protobuf.empty_pb2 import Empty

from shim.errors import ConnectionClosed
from shim.manager.ending import UNKNOWN_STATUS, Ending
from shim.manager.processes import ExecProcess, Process
from shim.manager.records import TaskExit, read_sandbox
from shim.model.names import check_identifier
from shim.wire import typeurl
from shim.wire.proto.task_pb2 import (
    ConnectRequest,
    ConnectResponse,
    ExecProcessRequest,
    PauseRequest,
    PidsRequest,
    PidsResponse,
    ResumeRequest,
    StatsRequest,
    StatsResponse,
    UpdateTaskRequest,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    import trio
    from google.protobuf.any_pb2 import Any

    from shim.manager.bundle import Bundle
    from shim.manager.connection import ShimConnection
    from shim.manager.parts import Parts
    from shim.manager.steps import StepTimes

__all__ = ["UNKNOWN_STATUS", "Streams", "Task", "TaskExit"]


@attrs.frozen
class Streams:
    """Where a process's streams are: paths of fifos or what else the shim knows; empty: /dev/null."""

    stdin: str = ""
    stdout: str = ""
    stderr: str = ""
    terminal: bool = False


class Task(Process):
    """A created task; made by the manager."""

    def __init__(
        self,
        parts: Parts,
        bundle: Bundle,
        binary: str,
        shim: ShimConnection,
        times: StepTimes,
        log: trio.CancelScope,
    ) -> None:
        super().__init__(parts, bundle, shim)
        self.binary: Final = binary
        self.times: Final = times
        self.ending: Final = Ending(parts, bundle, binary, shim, times, log)

    @property
    def sandbox(self) -> str:
        """The leader whose shim this task joined; empty when the shim is its own."""
        return read_sandbox(self.bundle)

    async def start(self) -> int:
        """Start the created process and return its pid."""
        with self.times.timed("start"):
            self.ending.pid = await super().start()
        return self.pid

    async def connect(self) -> ConnectResponse:
        """The pids of shim and task, as the shim says them; within the state budget."""
        return await self.shim.call("Connect", ConnectRequest(id=self.id), ConnectResponse, self._parts.budgets.state)

    async def wait(self) -> TaskExit:
        """Wait for the end.

        When the shim is lost meanwhile, the exit that was found after it, and the task is then deleted already;
        NotFound when somebody else deleted it before its exit reached us.
        """
        with self.times.timed("wait"):
            try:
                return await super().wait()
            except ConnectionClosed:
                return await self.ending.lost_exit()

    async def pids(self) -> list[int]:
        """The pids of everything in the container."""
        answer = await self.shim.call("Pids", PidsRequest(id=self.id), PidsResponse, self._parts.budgets.state)
        return [process.pid for process in answer.processes]

    async def stats(self) -> Any:
        """The metrics of its cgroup, of whichever type the machine has (protocol.md 6.4 and 6.5)."""
        answer = await self.shim.call("Stats", StatsRequest(id=self.id), StatsResponse, self._parts.budgets.state)
        return answer.stats

    async def pause(self) -> None:
        """Freeze every process of the container."""
        async with self.changing():
            await self.shim.call("Pause", PauseRequest(id=self.id), Empty)

    async def resume(self) -> None:
        """Let a paused container go on."""
        async with self.changing():
            await self.shim.call("Resume", ResumeRequest(id=self.id), Empty)

    async def update(self, resources: Mapping[str, object]) -> None:
        """Set new limits: the `linux.resources` of a specification."""
        value = typeurl.pack_json(typeurl.LINUX_RESOURCES_URL, json.dumps(resources).encode())
        async with self.changing():
            await self.shim.call("Update", UpdateTaskRequest(id=self.id, resources=value), Empty)

    async def exec(self, exec_id: str, process: Mapping[str, object], streams: Streams | None = None) -> ExecProcess:
        """Add a process, which is not started yet: `process` is the `process` part of a specification.

        AlreadyExists when the id is taken; InvalidArgument for what is no identifier.
        """
        check_identifier(exec_id, "exec id")
        where = streams or Streams()
        request = ExecProcessRequest(
            id=self.id,
            exec_id=exec_id,
            terminal=where.terminal,
            stdin=where.stdin,
            stdout=where.stdout,
            stderr=where.stderr,
            spec=typeurl.pack_json(typeurl.PROCESS_URL, json.dumps(process).encode()),
        )
        async with self.changing():
            await self.shim.call("Exec", request, Empty)
        return self.exec_process(exec_id)

    def exec_process(self, exec_id: str) -> ExecProcess:
        """A handle on an exec that is there already, or is not: the shim knows."""
        return ExecProcess(self._parts, self.bundle, self.shim, exec_id)

    async def delete(self, *, force: bool = False) -> TaskExit:
        """Delete the task, shut its shim down and remove the bundle; returns the exit.

        FailedPrecondition while it is created, running or paused, unless `force` kills it first.  NotFound when the
        shim knew nothing of it, after all else was done.  Retriable: whatever was reached is not done again, and the
        exit is the same.  A caller that stops waiting does not stop it.
        """
        return await self.ending.delete(force)

    async def give_up(self) -> None:
        """Clean up a task that is not wanted; never raises, in bounded time, shielded."""
        await self.ending.give_up()

    def detach(self) -> None:
        """Let go of a task that goes on: hang up, watch it no longer."""
        self.ending.let_go()
