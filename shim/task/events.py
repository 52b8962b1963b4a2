"""What the shim tells the daemon: one method for each fact, in the daemon's words (protocol.md 5.1).

The order of calls is the order of publication; nothing here waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from shim.wire.proto.events_pb2 import (
    TaskCreate,
    TaskDelete,
    TaskExecAdded,
    TaskExecStarted,
    TaskExit,
    TaskIO,
    TaskOOM,
    TaskPaused,
    TaskResumed,
    TaskStart,
)
from shim.wire.proto.mount_pb2 import Mount
from shim.wire.times import timestamp

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from shim.model.exits import ExitRecord
    from shim.task.container import Container


class Publishing(Protocol):
    """The one thing asked of a publisher."""

    def publish(self, topic: str, event: Message) -> None:
        """Queue an event; never blocks."""


class TaskEvents:
    """The events of tasks."""

    def __init__(self, publisher: Publishing) -> None:
        self._publish = publisher.publish

    def created(self, container: Container) -> None:
        """A task exists."""
        stdio = container.init.stdio
        event = TaskCreate(
            container_id=container.id,
            bundle=str(container.bundle),
            rootfs=[
                Mount(type=mount.type, source=mount.source, target=mount.target, options=mount.options)
                for mount in container.mounts
            ],
            io=TaskIO(stdin=stdio.stdin, stdout=stdio.stdout, stderr=stdio.stderr, terminal=stdio.terminal),
            checkpoint=container.checkpoint,
            pid=container.init.pid,
        )
        self._publish("/tasks/create", event)

    def started(self, id_: str, pid: int) -> None:
        """Init runs."""
        self._publish("/tasks/start", TaskStart(container_id=id_, pid=pid))

    def exited(self, container: str, process: str, record: ExitRecord) -> None:
        """A process ended; `process` is the task id for init, else the exec id."""
        event = TaskExit(
            container_id=container,
            id=process,
            pid=record.pid,
            exit_status=record.status,
            exited_at=timestamp(record.exited_at_ns),
        )
        self._publish("/tasks/exit", event)

    def deleted(self, id_: str, record: ExitRecord | None) -> None:
        """A task is gone."""
        event = TaskDelete(
            container_id=id_,
            pid=record.pid if record else 0,
            exit_status=record.status if record else 0,
            exited_at=timestamp(record.exited_at_ns if record else None),
        )
        self._publish("/tasks/delete", event)

    def exec_added(self, container: str, process: str) -> None:
        """An exec is known."""
        self._publish("/tasks/exec-added", TaskExecAdded(container_id=container, exec_id=process))

    def exec_started(self, container: str, process: str, pid: int) -> None:
        """An exec runs."""
        self._publish("/tasks/exec-started", TaskExecStarted(container_id=container, exec_id=process, pid=pid))

    def paused(self, container: str) -> None:
        """A task is frozen."""
        self._publish("/tasks/paused", TaskPaused(container_id=container))

    def resumed(self, container: str) -> None:
        """A task is thawed."""
        self._publish("/tasks/resumed", TaskResumed(container_id=container))

    def oom(self, container: str) -> None:
        """The kernel killed something of the task for want of memory."""
        self._publish("/tasks/oom", TaskOOM(container_id=container))
