"""The task service, v2 and v3: requests in, the containers' answers out (protocol.md 3).

Handlers are short: they look a container up, begin a job where the verb must run to its end, and put the answer into
words.  What exists and what is being made is held here and nowhere else.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Final

import trio
from google.protobuf.empty_pb2 import Empty

from shim.errors import AlreadyExists, InvalidArgument, NotFound, ShimError
from shim.model.mounts import Mount
from shim.model.names import check_identifier
from shim.rpc.service import Service
from shim.task.container import Container
from shim.task.options import decode_options
from shim.task.process import Process, StdioPaths
from shim.wire.proto.task_pb2 import (
    ConnectRequest,
    ConnectResponse,
    CreateTaskRequest,
    CreateTaskResponse,
    DeleteRequest,
    DeleteResponse,
    KillRequest,
    PidsRequest,
    PidsResponse,
    ShutdownRequest,
    StartRequest,
    StartResponse,
    StateRequest,
    StateResponse,
    WaitRequest,
    WaitResponse,
)
from shim.wire.proto.task_types_pb2 import ProcessInfo
from shim.wire.services import TASK_V2, TASK_V3
from shim.wire.times import timestamp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shim.kernel.children import Children
    from shim.model.exits import ExitRecord
    from shim.rpc.service import Handler
    from shim.task.events import TaskEvents
    from shim.task.jobs import Jobs

MAX_SIGNAL: Final = 64
"""The last real-time signal, signal(7)."""
CONTAINERS: Final = 4096
"""Tasks of one shim: beyond any pod, and a bound for a client gone mad."""


class TaskService:
    """All tasks of this shim.

    `stop` is called when Shutdown finds nothing left.  Creation runs in `janitor`, which outlives any container.
    """

    def __init__(
        self, *, namespace: str, nursery: trio.Nursery, janitor: Jobs, children: Children, events: TaskEvents
    ) -> None:
        self.shutdown = trio.Event()
        self.containers: dict[str, Container] = {}
        self._creating: set[str] = set()
        self._namespace = namespace
        self._nursery = nursery
        self._janitor = janitor
        self._children = children
        self._events = events

    def services(self) -> Sequence[Service]:
        """The two names of the one service."""
        handlers: dict[str, Handler] = {
            "State": self.state,
            "Create": self.create,
            "Start": self.start,
            "Delete": self.delete,
            "Pids": self.pids,
            "Kill": self.kill,
            "Wait": self.wait,
            "Connect": self.connect,
            "Shutdown": self.shut_down,
        }
        return [Service(TASK_V3, handlers), Service(TASK_V2, handlers)]

    async def create(self, request: CreateTaskRequest) -> CreateTaskResponse:
        """A new task; a caller that goes away takes it down with it.

        Raises InvalidArgument for an odd id or unknown options, AlreadyExists for a taken id, and what
        `Container.create` raises; nothing is left of a task that failed.
        """
        check_identifier(request.id, "task id")
        if request.id in self.containers or request.id in self._creating:
            raise AlreadyExists(f"task {request.id}")
        if len(self.containers) >= CONTAINERS:
            raise InvalidArgument(f"this shim has {CONTAINERS} tasks already")
        if not request.bundle.startswith("/"):
            raise InvalidArgument(f"bundle {request.bundle!r} is not an absolute path")
        container = Container(
            id_=request.id,
            bundle=request.bundle,
            namespace=self._namespace,
            options=decode_options(request.options if request.HasField("options") else None),
            mounts=[Mount(m.type, m.source, m.target, m.options[:]) for m in request.rootfs],
            stdio=StdioPaths(request.stdin, request.stdout, request.stderr, request.terminal),
            children=self._children,
            events=self._events,
        )
        self._creating.add(request.id)
        await self._janitor.run_or_cancel(f"create {request.id}", partial(self._create, container))
        return CreateTaskResponse(pid=container.init.pid)

    async def start(self, request: StartRequest) -> StartResponse:
        """Let a process run; once begun it goes on without the caller."""
        container = self._container(request.id)
        process = self._process(container, request.exec_id)
        await container.jobs.run(f"start {request.id}", container.start)
        return StartResponse(pid=process.pid)

    async def kill(self, request: KillRequest) -> Empty:
        """Send a signal.  InvalidArgument for one that does not exist; 0 only asks whether the process is there."""
        if request.signal > MAX_SIGNAL:
            raise InvalidArgument(f"unknown signal {request.signal}")
        container = self._container(request.id)
        self._process(container, request.exec_id)
        work = partial(container.kill, request.signal, everyone=request.all)
        await container.jobs.run(f"kill {request.id}", work)
        return Empty()

    async def delete(self, request: DeleteRequest) -> DeleteResponse:
        """Take a task down; once begun it goes on without the caller, and only then is the task forgotten."""
        container = self._container(request.id)
        self._process(container, request.exec_id)
        work = partial(self._delete_task, container, trio.current_effective_deadline())
        record = await container.jobs.run(f"delete {request.id}", work)
        if record is None:
            return DeleteResponse(exited_at=timestamp(None))
        return DeleteResponse(pid=record.pid, exit_status=record.status, exited_at=timestamp(record.exited_at_ns))

    async def state(self, request: StateRequest) -> StateResponse:
        """What is known of a process; waits for nothing but a start in flight."""
        process = self._process(self._container(request.id), request.exec_id)
        await process.settled()
        container = self._container(request.id)
        record = process.exit
        return StateResponse(
            id=process.id,
            bundle=str(container.bundle),
            pid=process.pid,
            status=process.status,  # type: ignore[arg-type]  # the numbers of the wire's enum
            stdin=process.stdio.stdin,
            stdout=process.stdio.stdout,
            stderr=process.stdio.stderr,
            terminal=process.stdio.terminal,
            exit_status=record.status if record else 0,
            exited_at=timestamp(record.exited_at_ns if record else None),
        )

    async def wait(self, request: WaitRequest) -> WaitResponse:
        """Until the process has ended."""
        process = self._process(self._container(request.id), request.exec_id)
        await process.exited.wait()
        record = process.exit
        if record is None:
            return WaitResponse(exited_at=timestamp(None))
        return WaitResponse(exit_status=record.status, exited_at=timestamp(record.exited_at_ns))

    async def pids(self, request: PidsRequest) -> PidsResponse:
        """The processes in the container, by their pids on the host."""
        container = self._container(request.id)
        return PidsResponse(processes=[ProcessInfo(pid=pid) for pid in await container.pids()])

    async def connect(self, request: ConnectRequest) -> ConnectResponse:
        """Who serves; never fails, pid 0 for a task that is not here."""
        container = self.containers.get(request.id)
        return ConnectResponse(shim_pid=os.getpid(), task_pid=container.init.pid if container else 0)

    async def shut_down(self, request: ShutdownRequest) -> Empty:
        """Leave when no task is left; the daemon asks after every deletion."""
        del request
        if not self.containers and not self._creating:
            self.shutdown.set()
        return Empty()

    async def _create(self, container: Container) -> None:
        try:
            await self._nursery.start(container.run_container)
            await container.create()
        except BaseException:
            await container.roll_back()
            raise
        else:
            self.containers[container.id] = container
            self._announce(container)
        finally:
            self._creating.discard(container.id)

    def _announce(self, container: Container) -> None:
        init = container.init
        self._events.created(container.id, init.pid, str(container.bundle), container.mounts, init.stdio, checkpoint="")

    async def _delete_task(self, container: Container, deadline: float) -> ExitRecord | None:
        record = await container.delete(deadline)
        del self.containers[container.id]
        container.leave()
        return record

    def _container(self, id_: str) -> Container:
        container = self.containers.get(id_)
        if container is None:
            raise NotFound("container not created")
        if container.broken is not None:
            raise ShimError(f"task {id_} failed inside the shim: {container.broken!r}")
        return container

    def _process(self, container: Container, exec_id: str) -> Process:
        if exec_id:
            raise NotFound(f"process does not exist {exec_id}")
        return container.init
