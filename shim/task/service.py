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

from shim.errors import AlreadyExists, InvalidArgument, NotFound, ResourceExhausted
from shim.model.mounts import Mount
from shim.model.names import check_identifier
from shim.rpc.service import Service
from shim.task import control, creation, execs, init
from shim.task.container import Container
from shim.task.options import decode_options
from shim.task.process import StdioPaths
from shim.task.stats import read_stats
from shim.wire.proto import task_pb2 as task
from shim.wire.proto.runc_options_pb2 import ProcessDetails
from shim.wire.proto.task_types_pb2 import ProcessInfo
from shim.wire.services import TASK_V2, TASK_V3
from shim.wire.times import timestamp
from shim.wire.typeurl import pack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shim.kernel.children import Children
    from shim.model.exits import ExitRecord
    from shim.rpc.service import Handler, Nowait
    from shim.task.events import TaskEvents
    from shim.task.jobs import Jobs

CONTAINERS: Final = 4096
"""Tasks of one shim: beyond any pod, and a bound for a client gone mad."""


class TaskService:
    """All tasks of this shim.

    `shutdown` is set when Shutdown finds nothing left.  Creation runs in `janitor`, which outlives any container.
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
            "Pause": self.pause,
            "Resume": self.resume,
            "Checkpoint": self.checkpoint,
            "Kill": self.kill,
            "Exec": self.exec,
            "Update": self.update,
            "Wait": self.wait,
            "Stats": self.stats,
            "CloseIO": self.close_io,
            "ResizePty": self.resize_pty,
            "Connect": self.connect,
            "Shutdown": self.shut_down,
        }
        nowait: dict[str, Nowait] = {"State": self.state_nowait, "Connect": self.connect_nowait}
        return [Service(TASK_V3, handlers, nowait), Service(TASK_V2, handlers, nowait)]

    async def create(self, request: task.CreateTaskRequest) -> task.CreateTaskResponse:
        """A new task; a caller that goes away takes it down with it.

        Raises InvalidArgument for an odd id or unknown options, AlreadyExists for a taken id, and what
        `creation.create` raises; nothing is left of a task that failed.
        """
        check_identifier(request.id, "task id")
        if request.id in self.containers or request.id in self._creating:
            raise AlreadyExists(f"task {request.id}")
        if len(self.containers) >= CONTAINERS:
            raise ResourceExhausted(f"this shim has {CONTAINERS} tasks already")
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
            checkpoint=request.checkpoint,
        )
        self._creating.add(request.id)
        await self._janitor.run_or_cancel(f"create {request.id}", partial(self._create, container))
        return task.CreateTaskResponse(pid=container.init.pid)

    async def start(self, request: task.StartRequest) -> task.StartResponse:
        """Let a process run; once begun it goes on without the caller."""
        container = self._container(request.id)
        if not request.exec_id:
            await container.jobs.run(f"start {request.id}", partial(init.start, container))
            return task.StartResponse(pid=container.init.pid)
        process = container.exec_process(request.exec_id)
        await container.jobs.run(f"start {request.id} {process.id}", partial(execs.start, container, process))
        return task.StartResponse(pid=process.pid)

    async def exec(self, request: task.ExecProcessRequest) -> Empty:
        """Record an exec; nothing runs yet."""
        container = self._container(request.id)
        stdio = StdioPaths(request.stdin, request.stdout, request.stderr, request.terminal)
        await execs.add(container, request.exec_id, stdio, request.spec.value)
        return Empty()

    async def kill(self, request: task.KillRequest) -> Empty:
        """Send a signal.  InvalidArgument for one that does not exist; 0 only asks whether the process is there."""
        init.check_signal(request.signal)
        container = self._container(request.id)
        if request.exec_id:
            await execs.kill(container.exec_process(request.exec_id), request.signal)
        else:
            work = partial(init.kill, container, request.signal, everyone=request.all)
            await container.jobs.run(f"kill {request.id}", work)
        return Empty()

    async def delete(self, request: task.DeleteRequest) -> task.DeleteResponse:
        """Take a process down; once begun it goes on without the caller, and only then is it forgotten."""
        container = self._container(request.id)
        deadline = trio.current_effective_deadline()
        if request.exec_id:
            process = container.exec_process(request.exec_id)
            work = partial(execs.delete, container, process, deadline)
        else:
            work = partial(self._delete_task, container, deadline)
        record = await container.jobs.run(f"delete {request.id} {request.exec_id}".rstrip(), work)
        if record is None:
            return task.DeleteResponse(exited_at=timestamp(None))
        return task.DeleteResponse(pid=record.pid, exit_status=record.status, exited_at=timestamp(record.exited_at_ns))

    async def pause(self, request: task.PauseRequest) -> Empty:
        """Freeze a task."""
        container = self._container(request.id)
        await container.jobs.run(f"pause {request.id}", partial(control.pause, container))
        return Empty()

    async def resume(self, request: task.ResumeRequest) -> Empty:
        """Thaw a task."""
        container = self._container(request.id)
        await container.jobs.run(f"resume {request.id}", partial(control.resume, container))
        return Empty()

    async def update(self, request: task.UpdateTaskRequest) -> Empty:
        """Change a task's limits; the type URL of the resources is not looked at (protocol.md 6.1)."""
        container = self._container(request.id)
        await container.jobs.run(f"update {request.id}", partial(control.update, container, request.resources.value))
        return Empty()

    async def checkpoint(self, request: task.CheckpointTaskRequest) -> Empty:
        """Write a task's processes to a directory."""
        container = self._container(request.id)
        options = request.options if request.HasField("options") else None
        work = partial(control.checkpoint, container, request.path, options)
        await container.jobs.run(f"checkpoint {request.id}", work)
        return Empty()

    async def state(self, request: task.StateRequest) -> task.StateResponse:
        """What is known of a process; waits for nothing but a start in flight."""
        await self._container(request.id).process(request.exec_id).settled()
        return self.state_nowait(request)

    def state_nowait(self, request: task.StateRequest) -> task.StateResponse:
        """State as it is answered by the connection itself; WouldBlock while a start is in flight."""
        container = self._container(request.id)
        process = container.process(request.exec_id)
        if process.is_starting:
            raise trio.WouldBlock
        record = process.exit
        return task.StateResponse(
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

    async def wait(self, request: task.WaitRequest) -> task.WaitResponse:
        """Until the process has ended."""
        process = self._container(request.id).process(request.exec_id)
        await process.exited.wait()
        record = process.exit
        if record is None:
            return task.WaitResponse(exited_at=timestamp(None))
        return task.WaitResponse(exit_status=record.status, exited_at=timestamp(record.exited_at_ns))

    async def pids(self, request: task.PidsRequest) -> task.PidsResponse:
        """The processes in the container by their pids on the host; those of execs say so."""
        container = self._container(request.id)
        owners = {process.pid: process.id for process in container.execs.values() if process.pid}
        infos = []
        for pid in await container.pids():
            info = ProcessInfo(pid=pid)
            if pid in owners:
                info.info.CopyFrom(pack(ProcessDetails(exec_id=owners[pid])))
            infos.append(info)
        return task.PidsResponse(processes=infos)

    async def stats(self, request: task.StatsRequest) -> task.StatsResponse:
        """The figures of a task's cgroup; NotFound when it has none any more."""
        return task.StatsResponse(stats=read_stats(self._container(request.id).cgroup))

    async def close_io(self, request: task.CloseIORequest) -> Empty:
        """The end of a process's stdin, remembered until it runs; the flag in the request is not looked at."""
        self._container(request.id).process(request.exec_id).close_stdin()
        return Empty()

    async def resize_pty(self, request: task.ResizePtyRequest) -> Empty:
        """The size of a process's terminal, remembered until there is one; no-op without."""
        self._container(request.id).process(request.exec_id).resize(request.width, request.height)
        return Empty()

    async def connect(self, request: task.ConnectRequest) -> task.ConnectResponse:
        """Who serves."""
        return self.connect_nowait(request)

    def connect_nowait(self, request: task.ConnectRequest) -> task.ConnectResponse:
        """Who serves; never fails, pid 0 for a task that is not here."""
        container = self.containers.get(request.id)
        return task.ConnectResponse(shim_pid=os.getpid(), task_pid=container.init.pid if container else 0)

    async def shut_down(self, request: task.ShutdownRequest) -> Empty:
        """Leave when no task is left; the daemon asks after every deletion."""
        del request
        if not self.containers and not self._creating:
            self.shutdown.set()
        return Empty()

    async def _create(self, container: Container) -> None:
        try:
            await self._nursery.start(container.run_container)
            await creation.create(container)
        except BaseException:
            await creation.roll_back(container)
            raise
        else:
            self.containers[container.id] = container
            self._events.created(container)
        finally:
            self._creating.discard(container.id)

    async def _delete_task(self, container: Container, deadline: float) -> ExitRecord | None:
        record = await init.delete(container, deadline)
        del self.containers[container.id]
        container.leave()
        return record

    def _container(self, id_: str) -> Container:
        container = self.containers.get(id_)
        if container is None:
            raise NotFound("container not created")
        container.check()
        return container
