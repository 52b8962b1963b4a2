"""A shim's task service as a test calls it: `Shim` is a connection, `Task` and `Exec` the processes behind it."""

from __future__ import annotations

import contextlib
import json
import signal
from typing import TYPE_CHECKING, TypeVar

import attrs
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message

from shim import errors
from shim.wire.proto import mount_pb2, task_pb2
from shim.wire.proto.runc_options_pb2 import ProcessDetails
from shim.wire.typeurl import LINUX_RESOURCES_URL, PROCESS_URL, unpack
from tests.system.harness.bundles import Bundle, make_process
from tests.system.harness.processes import wait_ended

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shim.rpc.client import Client
    from shim.wire.services import ServiceSpec
    from tests.system.harness.driver import StartAnswer
    from tests.system.harness.fifos import LogDrain

Answer = TypeVar("Answer", bound=Message)

CREATED, RUNNING, STOPPED, PAUSED, PAUSING = 1, 2, 3, 4, 5
CALL_TIMEOUT = 20.0


@attrs.define
class Shim:
    """One connection to one shim process."""

    client: Client
    service: ServiceSpec
    namespace: str
    answer: StartAnswer
    log: LogDrain
    options: AnyMessage
    pid: int = 0
    tasks: dict[str, Task] = attrs.field(factory=dict)

    async def call(
        self, method: str, request: Message, kind: type[Answer], *, timeout: float | None = CALL_TIMEOUT
    ) -> Answer:
        """One call; `timeout` is the deadline that travels with it."""
        answer = await self.client.call(self.service, method, request, timeout=timeout, namespace=self.namespace)
        assert isinstance(answer, kind), f"{method} answered {type(answer).__name__}"
        return answer

    async def send(self, method: str, request: Message, *, timeout: float | None = CALL_TIMEOUT) -> None:
        """One call whose answer is empty."""
        await self.client.call(self.service, method, request, timeout=timeout, namespace=self.namespace)

    async def connect(self, identifier: str) -> task_pb2.ConnectResponse:
        """The shim's pid and the task's."""
        return await self.call("Connect", task_pb2.ConnectRequest(id=identifier), task_pb2.ConnectResponse)

    async def create(
        self,
        bundle: Bundle,
        *,
        options: AnyMessage | None = None,
        identifier: str | None = None,
        stdin: str = "",
        stdout: str = "",
        stderr: str = "",
        terminal: bool = False,
        rootfs: Sequence[mount_pb2.Mount] = (),
        checkpoint: str = "",
        timeout: float | None = CALL_TIMEOUT,
    ) -> Task:
        """Create the bundle's task, with the driver's options unless others are given."""
        chosen = bundle.id if identifier is None else identifier
        request = task_pb2.CreateTaskRequest(
            id=chosen,
            bundle=str(bundle.path),
            rootfs=rootfs,
            terminal=terminal,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            checkpoint=checkpoint,
            options=options or self.options,
        )
        answer = await self.call("Create", request, task_pb2.CreateTaskResponse, timeout=timeout)
        task = Task(self, chosen, "", pid=answer.pid, bundle=bundle)
        self.tasks[chosen] = task
        return task

    def known(self, identifier: str) -> Process:
        """A handle on a task of that id, existing or not."""
        return Process(self, identifier, "")

    async def shutdown(self, *, timeout: float = 5) -> None:
        """Shutdown, and wait for the process to end; a connection that closes first is as good as an answer."""
        with contextlib.suppress(errors.ConnectionClosed):
            await self.send("Shutdown", task_pb2.ShutdownRequest(id="x"))
        await wait_ended(self.pid, timeout=timeout)


@attrs.define
class Process:
    """The init process of a task (`exec_id` empty) or an exec in it."""

    shim: Shim
    id: str
    exec_id: str
    pid: int = 0

    async def start(self, *, timeout: float | None = CALL_TIMEOUT) -> int:
        """Start it; its pid."""
        request = task_pb2.StartRequest(id=self.id, exec_id=self.exec_id)
        self.pid = (await self.shim.call("Start", request, task_pb2.StartResponse, timeout=timeout)).pid
        return self.pid

    async def state(self, *, timeout: float | None = CALL_TIMEOUT) -> task_pb2.StateResponse:
        """Its state now."""
        request = task_pb2.StateRequest(id=self.id, exec_id=self.exec_id)
        return await self.shim.call("State", request, task_pb2.StateResponse, timeout=timeout)

    async def wait(self, *, timeout: float | None = CALL_TIMEOUT) -> task_pb2.WaitResponse:
        """Its exit."""
        request = task_pb2.WaitRequest(id=self.id, exec_id=self.exec_id)
        return await self.shim.call("Wait", request, task_pb2.WaitResponse, timeout=timeout)

    async def kill(self, number: int = signal.SIGKILL, *, everyone: bool = False) -> None:
        """Send a signal."""
        request = task_pb2.KillRequest(id=self.id, exec_id=self.exec_id, signal=number, all=everyone)
        await self.shim.send("Kill", request)

    async def delete(self, *, timeout: float | None = CALL_TIMEOUT) -> task_pb2.DeleteResponse:
        """Forget it; its exit."""
        request = task_pb2.DeleteRequest(id=self.id, exec_id=self.exec_id)
        answer = await self.shim.call("Delete", request, task_pb2.DeleteResponse, timeout=timeout)
        if not self.exec_id:
            self.shim.tasks.pop(self.id, None)
        return answer

    async def close_io(self) -> None:
        """Let it see the end of its stdin."""
        await self.shim.send("CloseIO", task_pb2.CloseIORequest(id=self.id, exec_id=self.exec_id, stdin=True))

    async def resize(self, width: int, height: int) -> None:
        """Columns and rows of its terminal."""
        request = task_pb2.ResizePtyRequest(id=self.id, exec_id=self.exec_id, width=width, height=height)
        await self.shim.send("ResizePty", request)


@attrs.define
class Task(Process):
    """The init process, and what only a task can do."""

    bundle: Bundle = attrs.field(kw_only=True)

    async def exec(
        self,
        exec_id: str,
        args: Sequence[str],
        *,
        stdin: str = "",
        stdout: str = "",
        stderr: str = "",
        terminal: bool = False,
        env: Sequence[str] = (),
    ) -> Process:
        """Add an exec; it is not started."""
        spec = json.dumps(make_process(args, terminal=terminal, env=env)).encode()
        return await self.exec_spec(exec_id, spec, stdin=stdin, stdout=stdout, stderr=stderr, terminal=terminal)

    async def exec_spec(
        self,
        exec_id: str,
        spec: bytes,
        *,
        stdin: str = "",
        stdout: str = "",
        stderr: str = "",
        terminal: bool = False,
    ) -> Process:
        """Add an exec whose process document is these bytes, whatever they are."""
        request = task_pb2.ExecProcessRequest(
            id=self.id,
            exec_id=exec_id,
            terminal=terminal,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            spec=AnyMessage(type_url=PROCESS_URL, value=spec),
        )
        await self.shim.send("Exec", request)
        return Process(self.shim, self.id, exec_id)

    def known_exec(self, exec_id: str) -> Process:
        """A handle on an exec of that id, existing or not."""
        return Process(self.shim, self.id, exec_id)

    async def run_exec(self, exec_id: str, args: Sequence[str]) -> int:
        """Add an exec, let it run to its end, forget it; its status."""
        process = await self.exec(exec_id, args)
        await process.start()
        status = (await process.wait()).exit_status
        await process.delete()
        return status

    async def processes(self) -> dict[int, str]:
        """The pids of everything in the container, each with the id of the exec that it is, or nothing."""
        answer = await self.shim.call("Pids", task_pb2.PidsRequest(id=self.id), task_pb2.PidsResponse)
        found = {}
        for process in answer.processes:
            found[process.pid] = unpack(process.info, ProcessDetails).exec_id if process.HasField("info") else ""
        return found

    async def pids(self) -> list[int]:
        """The pids of everything in the container."""
        return list(await self.processes())

    async def pause(self) -> None:
        """Freeze it."""
        await self.shim.send("Pause", task_pb2.PauseRequest(id=self.id))

    async def resume(self) -> None:
        """Thaw it."""
        await self.shim.send("Resume", task_pb2.ResumeRequest(id=self.id))

    async def update(self, resources: bytes, *, url: str = LINUX_RESOURCES_URL) -> None:
        """Change its limits; `resources` is JSON if all is well."""
        value = AnyMessage(type_url=url, value=resources)
        await self.shim.send("Update", task_pb2.UpdateTaskRequest(id=self.id, resources=value))

    async def checkpoint(self, path: str, options: AnyMessage | None = None) -> None:
        """Write its processes to a directory."""
        await self.shim.send("Checkpoint", task_pb2.CheckpointTaskRequest(id=self.id, path=path, options=options))

    async def end(self) -> None:
        """Whatever its state: killed, waited for, deleted."""
        try:
            state = await self.state()
            if state.status != STOPPED:
                await self._kill_and_wait()
            await self.delete()
        except errors.NotFound:
            self.shim.tasks.pop(self.id, None)

    async def _kill_and_wait(self) -> None:
        with contextlib.suppress(errors.NotFound):  # ended meanwhile: Wait tells
            await self.kill(signal.SIGKILL)
        await self.wait()
