"""What the shim tells the daemon: one method for each fact, in the daemon's words (protocol.md 5.1).

The order of calls is the order of publication; nothing here waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from shim.wire.proto.events_pb2 import (
    TaskCreate,
    TaskDelete,
    TaskExit,
    TaskIO,
    TaskStart,
)
from shim.wire.proto.mount_pb2 import Mount as WireMount
from shim.wire.times import timestamp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.message import Message

    from shim.model.exits import ExitRecord
    from shim.model.mounts import Mount
    from shim.task.process import StdioPaths


class Publishing(Protocol):
    """The one thing asked of a publisher."""

    def publish(self, topic: str, event: Message) -> None:
        """Queue an event; never blocks."""


class TaskEvents:
    """The events of tasks."""

    def __init__(self, publisher: Publishing) -> None:
        self._publish = publisher.publish

    def created(
        self, id_: str, pid: int, bundle: str, mounts: Sequence[Mount], stdio: StdioPaths, checkpoint: str
    ) -> None:
        """A task exists."""
        rootfs = [WireMount(type=m.type, source=m.source, target=m.target, options=m.options) for m in mounts]
        io = TaskIO(stdin=stdio.stdin, stdout=stdio.stdout, stderr=stdio.stderr, terminal=stdio.terminal)
        event = TaskCreate(container_id=id_, bundle=bundle, rootfs=rootfs, io=io, checkpoint=checkpoint, pid=pid)
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
