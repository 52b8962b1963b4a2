"""Events as a manager sees them: checked, handed to whoever listens, and published for shims that cannot any more.

Invariants: only an event that a daemon would take is passed on (protocol.md 5.2), else its sender gets
InvalidArgument; a subscriber that does not keep up loses the oldest events and is told how many, and never holds up
the others; the end of a task is told once, whether its shim tells it, a manager for it, or both.
"""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict, deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import attrs
import trio

from shim.errors import InvalidArgument, ShimError
from shim.model.names import check_identifier
from shim.wire import typeurl
from shim.wire.proto.envelope_pb2 import Envelope
from shim.wire.proto.events_pb2 import (
    TaskCheckpointed,
    TaskCreate,
    TaskDelete,
    TaskExecAdded,
    TaskExecStarted,
    TaskExit,
    TaskOOM,
    TaskPaused,
    TaskResumed,
    TaskStart,
)
from shim.wire.times import timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from google.protobuf.message import Message

    from shim.manager.records import TaskExit as End

LOG: Final = logging.getLogger("shim.manager")
BACKLOG: Final = 1024
"""Events that wait for one subscriber: some seconds of a busy machine, a few hundred kilobytes at the most."""
ENDS_REMEMBERED: Final = 4096
ENDS_SECONDS: Final = 600.0
"""Longer than a shim keeps an event that it could not send."""
EXIT_TOPIC: Final = "/tasks/exit"
DELETE_TOPIC: Final = "/tasks/delete"

TaskEvent = (
    TaskCheckpointed
    | TaskCreate
    | TaskDelete
    | TaskExecAdded
    | TaskExecStarted
    | TaskExit
    | TaskOOM
    | TaskPaused
    | TaskResumed
    | TaskStart
)
_KINDS: Final[tuple[type[TaskEvent], ...]] = (
    TaskCheckpointed,
    TaskCreate,
    TaskDelete,
    TaskExecAdded,
    TaskExecStarted,
    TaskExit,
    TaskOOM,
    TaskPaused,
    TaskResumed,
    TaskStart,
)
_BY_NAME: Final[dict[str, type[TaskEvent]]] = {kind.DESCRIPTOR.full_name: kind for kind in _KINDS}


def check_envelope(envelope: Envelope) -> None:
    """Raise InvalidArgument unless `envelope` is one that a daemon would take."""
    check_identifier(envelope.namespace, "event namespace")
    topic = envelope.topic
    if not topic.startswith("/"):
        raise InvalidArgument(f"topic {topic!r:.100} must start with a slash")
    for part in topic[1:].split("/"):
        check_identifier(part, f"a part of topic {topic!r:.100}")
    if not envelope.HasField("timestamp"):
        raise InvalidArgument("event without a timestamp")


def make_envelope(namespace: str, topic: str, event: Message) -> Envelope:
    """An event of ours, with the time of now."""
    return Envelope(timestamp=timestamp(time.time_ns()), namespace=namespace, topic=topic, event=typeurl.pack(event))


def end_of_task(namespace: str, task_id: str, end: End) -> tuple[Envelope, Envelope]:
    """The exit and the delete event of a task whose shim cannot send them (protocol.md 9.5)."""
    at = timestamp(end.exited_at_ns if end.exited_at_ns is not None else time.time_ns())
    gone = TaskExit(container_id=task_id, id=task_id, pid=end.pid, exit_status=end.status, exited_at=at)
    deleted = TaskDelete(container_id=task_id, pid=end.pid, exit_status=end.status, exited_at=at)
    return make_envelope(namespace, EXIT_TOPIC, gone), make_envelope(namespace, DELETE_TOPIC, deleted)


@attrs.frozen
class EventFilter:
    """Which events a subscriber wants; what is empty lets all pass.  `topics` match as a whole or at a slash."""

    namespace: str = ""
    topics: tuple[str, ...] = ()
    container: str = ""

    def passes(self, envelope: Envelope) -> bool:
        """Whether the event is wanted."""
        if self.namespace and envelope.namespace != self.namespace:
            return False
        if self.topics and not any(
            envelope.topic == topic or envelope.topic.startswith(topic.rstrip("/") + "/") for topic in self.topics
        ):
            return False
        return not self.container or container_of(envelope) == self.container


class Subscription:
    """A bounded stream of events, oldest first; an async iterator that ends only after `end`."""

    def __init__(self, wanted: EventFilter, bound: int) -> None:
        self._wanted: Final = wanted
        self._waiting: deque[Envelope] = deque()
        self._bound: Final = bound
        self._arrived = trio.Event()
        self._ended = False
        self.missed = 0
        """How many were dropped, since they were not taken in time."""

    def offer(self, envelope: Envelope) -> None:
        """For the hub."""
        if not self._wanted.passes(envelope):
            return
        if len(self._waiting) >= self._bound:
            self._waiting.popleft()
            self.missed += 1
        self._waiting.append(envelope)
        self._arrived.set()

    def end(self) -> None:
        """No more comes after what is waiting."""
        self._ended = True
        self._arrived.set()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Envelope:
        await trio.lowlevel.checkpoint()
        while not self._waiting:
            if self._ended:
                raise StopAsyncIteration
            self._arrived = trio.Event()
            await self._arrived.wait()
        return self._waiting.popleft()


class EventHub:
    """Where events of one manager meet; `EventSocket` fills it."""

    def __init__(self, on_event: Callable[[Envelope], None]) -> None:
        self._on_event: Final = on_event
        self._subscriptions: set[Subscription] = set()
        self._ends: OrderedDict[tuple[str, str, str, int], float] = OrderedDict()

    @contextmanager
    def subscribe(self, wanted: EventFilter, bound: int = BACKLOG) -> Iterator[Subscription]:
        """What comes while the block runs."""
        subscription = Subscription(wanted, bound)
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)

    def dispatch(self, envelope: Envelope) -> None:
        """Hand an event that was checked to all who want it; the end of a process only the first time."""
        if self.has_seen(envelope):
            LOG.debug("%s came again", envelope.topic)
            return
        end = _end_in(envelope)
        if end is not None:
            self._ends[end] = time.monotonic()
            self._ends.move_to_end(end)
            if len(self._ends) > ENDS_REMEMBERED:
                self._ends.popitem(last=False)
        for subscription in self._subscriptions:
            subscription.offer(envelope)
        try:
            self._on_event(envelope)
        except Exception:
            LOG.exception("the event callback failed for %s", envelope.topic)

    def has_seen(self, envelope: Envelope) -> bool:
        """Whether the same end of the same process was told already: lately, for pids come again."""
        end = _end_in(envelope)
        return end is not None and time.monotonic() - self._ends.get(end, -math.inf) < ENDS_SECONDS


def event_in(envelope: Envelope) -> TaskEvent | None:
    """The message of a task's event; None for one of another kind, or that does not parse."""
    kind = _BY_NAME.get(typeurl.type_name(envelope.event.type_url))
    if kind is None:
        return None
    try:
        return typeurl.unpack(envelope.event, kind)
    except ShimError:
        return None


def container_of(envelope: Envelope) -> str:
    """The task that an event is about; empty when it does not say."""
    event = event_in(envelope)
    return "" if event is None else event.container_id


def _end_in(envelope: Envelope) -> tuple[str, str, str, int] | None:
    """The identity of a task's end: exit and deletion happen once each for one task and pid, where that is known."""
    if envelope.topic not in {EXIT_TOPIC, DELETE_TOPIC}:
        return None
    event = event_in(envelope)
    if event is None or not isinstance(event, TaskExit | TaskDelete) or not event.pid:
        return None
    if isinstance(event, TaskExit) and event.id == event.container_id:
        return (envelope.namespace, event.container_id, EXIT_TOPIC, event.pid)
    if isinstance(event, TaskDelete) and not event.id:
        return (envelope.namespace, event.container_id, DELETE_TOPIC, event.pid)
    return None
