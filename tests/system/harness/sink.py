"""A stand-in for the daemon's event service: records every envelope that a shim forwards (protocol.md 5.2)."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import attrs
import trio
from google.protobuf.empty_pb2 import Empty

from shim.rpc.server import Service, serve_ttrpc
from shim.wire.proto import events_pb2, events_ttrpc_pb2
from shim.wire.services import EVENTS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from google.protobuf.message import Message

Event: TypeAlias = (
    events_pb2.TaskCreate
    | events_pb2.TaskStart
    | events_pb2.TaskExit
    | events_pb2.TaskDelete
    | events_pb2.TaskExecAdded
    | events_pb2.TaskExecStarted
    | events_pb2.TaskOOM
    | events_pb2.TaskPaused
    | events_pb2.TaskResumed
    | events_pb2.TaskCheckpointed
)

TYPES: Final[dict[str, type[Message]]] = {
    f"containerd.events.{kind.__name__}": kind
    for kind in (
        events_pb2.TaskCreate,
        events_pb2.TaskStart,
        events_pb2.TaskExit,
        events_pb2.TaskDelete,
        events_pb2.TaskExecAdded,
        events_pb2.TaskExecStarted,
        events_pb2.TaskOOM,
        events_pb2.TaskPaused,
        events_pb2.TaskResumed,
        events_pb2.TaskCheckpointed,
    )
}


@attrs.frozen
class Recorded:
    """One event as it arrived."""

    namespace: str
    topic: str
    type_url: str
    event: Event
    sent_at_ns: int
    received_at_ns: int

    @property
    def container_id(self) -> str:
        """The task that it is about."""
        return self.event.container_id


def exits(events: list[Recorded]) -> list[events_pb2.TaskExit]:
    """The exit messages among them, in order."""
    return [recorded.event for recorded in events if isinstance(recorded.event, events_pb2.TaskExit)]


def deletes(events: list[Recorded]) -> list[events_pb2.TaskDelete]:
    """The delete messages among them, in order."""
    return [recorded.event for recorded in events if isinstance(recorded.event, events_pb2.TaskDelete)]


@attrs.define
class Sink:
    """Everything that arrived, in order of arrival."""

    path: Path
    events: list[Recorded] = attrs.field(factory=list)
    _changed: trio.Condition = attrs.field(factory=trio.Condition)

    async def forward(self, request: Message) -> Message:
        """The handler of Events.Forward."""
        envelope = cast("events_ttrpc_pb2.ForwardRequest", request).envelope
        name = envelope.event.type_url.rpartition("/")[2]
        event = TYPES[name]()
        event.ParseFromString(envelope.event.value)
        recorded = Recorded(
            namespace=envelope.namespace,
            topic=envelope.topic,
            type_url=envelope.event.type_url,
            event=cast("Event", event),
            sent_at_ns=envelope.timestamp.ToNanoseconds(),
            received_at_ns=time.time_ns(),
        )
        async with self._changed:
            self.events.append(recorded)
            self._changed.notify_all()
        return Empty()

    def of(self, container_id: str) -> list[Recorded]:
        """The events of one task."""
        return [recorded for recorded in self.events if recorded.container_id == container_id]

    def topics(self, container_id: str) -> list[str]:
        """Their topics, in order."""
        return [recorded.topic for recorded in self.of(container_id)]

    async def wait_until(self, ready: Callable[[Sink], bool], *, timeout: float = 10) -> None:
        """Return when `ready` holds; TooSlowError after `timeout` seconds."""
        with trio.fail_after(timeout):
            async with self._changed:
                while not ready(self):
                    await self._changed.wait()

    async def wait_for_topic(self, container_id: str, topic: str, *, count: int = 1, timeout: float = 10) -> None:
        """Return when that many events of the topic came for the task."""
        await self.wait_until(lambda sink: sink.topics(container_id).count(topic) >= count, timeout=timeout)


@asynccontextmanager
async def open_sink(path: Path) -> AsyncIterator[Sink]:
    """Serve a sink on a new unix socket until the block ends."""
    sink = Sink(path)
    listener = await _listen(path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_ttrpc, listener, [Service(EVENTS, {"Forward": sink.forward})])
        try:
            yield sink
        finally:
            nursery.cancel_scope.cancel()
    path.unlink(missing_ok=True)


async def _listen(path: Path) -> trio.SocketListener:
    sock = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    await sock.bind(str(path))
    sock.listen(128)
    return trio.SocketListener(sock)
