"""One task that hands events to the daemon, in the order in which they became true (design section 8).

A daemon that is absent, refuses, stalls or dies costs nobody else anything: `publish` never waits, the queue is
bounded, each attempt (dial and call alike) is bounded, and the head is tried again, with pauses that grow, until it is
too old.  Only failures that may pass are tried again; anything else drops the one event with a log line.

A deadline set around the dial would have to end while the connection inside lives on, which scopes cannot: one scope
spans the whole connection, and loses its deadline once there is one.
"""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, Final

import trio

from shim.errors import DeadlineExceeded, ResourceExhausted, ShimError, Unavailable
from shim.rpc.event_queue import QUEUE_EVENTS, EventQueue, Queued
from shim.wire.frames import MAX_LENGTH
from shim.wire.proto.events_ttrpc_pb2 import ForwardRequest
from shim.wire.services import EVENTS
from shim.wire.times import timestamp
from shim.wire.typeurl import pack

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from google.protobuf.message import Message

    from shim.rpc.client import Client

log = logging.getLogger("shim.rpc")

ATTEMPT_SECONDS: Final = 5.0
KEPT_SECONDS: Final = 300.0
FLUSH_SECONDS: Final = 2.0
FIRST_PAUSE: Final = 0.1
LAST_PAUSE: Final = 5.0
# What a frame has to carry besides the request: names, metadata, a deadline.
LONGEST_REQUEST: Final = MAX_LENGTH - (64 << 10)
_PASSING: Final = (Unavailable, DeadlineExceeded, ResourceExhausted)


class Publisher:
    """The queue and its sender.  Without `connect` there is no daemon: every event is dropped and counted."""

    def __init__(
        self,
        namespace: str,
        connect: Callable[[], AbstractAsyncContextManager[Client]] | None,
        *,
        bound: int = QUEUE_EVENTS,
        attempt: float = ATTEMPT_SECONDS,
        kept: float = KEPT_SECONDS,
    ) -> None:
        self._namespace: Final = namespace
        self._connect: Final = connect
        self._attempt: Final = attempt
        self._kept: Final = kept
        self._queue: Final = EventQueue(bound)
        self._in_flight: Queued | None = None
        self._scope: trio.CancelScope | None = None
        self._flush_until = math.inf
        self._closed = False
        self._pause = FIRST_PAUSE
        self._change = trio.Event()

    @property
    def queued(self) -> int:
        """Events not yet delivered."""
        return len(self._queue)

    @property
    def dropped(self) -> int:
        """Events given up since the start."""
        return self._queue.dropped

    def publish(self, topic: str, event: Message) -> None:
        """Queue `event`; its time is now.  Never blocks, never fails."""
        if self._connect is None or self._closed:
            self._queue.dropped += 1
            return
        request = ForwardRequest()
        envelope = request.envelope
        envelope.timestamp.CopyFrom(timestamp(time.time_ns()))
        envelope.namespace = self._namespace
        envelope.topic = topic
        envelope.event.CopyFrom(pack(event))
        if request.ByteSize() > LONGEST_REQUEST:
            # Refused by our own sender each time, it would hold up all others until it is too old.
            self._queue.dropped += 1
            log.error("event %s dropped: %d bytes are too many for a message", topic, request.ByteSize())
            return
        victim = self._queue.push(Queued(topic, request, trio.current_time() + self._kept), self._in_flight)
        if victim is not None:
            log.warning("event queue full: %s dropped, %d in all", victim.topic, self._queue.dropped)
        self._changed()

    async def run_publisher(self) -> None:
        """Send until cancelled, or until a flush has tried what was left."""
        while await self._wait_event():
            try:
                await self._send_over_one_connection()
            except ShimError as error:
                await self._attempt_failed(error)
            finally:
                self._in_flight = self._scope = None

    async def flush(self) -> None:
        """Give each queued event one attempt, all within 2 s; `run_publisher` then returns, and no more is sent.

        The time is shared evenly, an attempt under way included, so that a sink that stalls does not cost the events
        behind the first their attempt.  What could not be sent is dropped and counted.
        """
        self._flush_until = trio.current_time() + FLUSH_SECONDS
        if self._scope is not None and self._in_flight is not None:
            self._scope.deadline = min(self._scope.deadline, self._attempt_ends(self._in_flight))
        self._changed()
        with trio.move_on_after(FLUSH_SECONDS):
            while self._queue:
                await self._change.wait()
        self._closed = True
        left = self._queue.clear()
        if left:
            log.warning("%d events dropped: the shim leaves", left)
        self._changed()

    @property
    def _flushing(self) -> bool:
        return self._flush_until < math.inf

    async def _wait_event(self) -> bool:
        """Wait for an event that is not too old; False when a flush has left none."""
        while True:
            while self._queue and trio.current_time() >= self._queue.head.expires:
                self._give_up(self._queue.head, "it is too old")
            if self._queue:
                return True
            if self._flushing:
                return False
            await self._change.wait()

    def _begin_attempt(self) -> float:
        """Take the head for an attempt; when that attempt has to end."""
        self._in_flight = self._queue.head
        return self._attempt_ends(self._in_flight)

    def _attempt_ends(self, event: Queued) -> float:
        now = trio.current_time()
        share = (self._flush_until - now) / max(len(self._queue), 1)
        return min(now + self._attempt, event.expires, now + share)

    async def _send_over_one_connection(self) -> None:
        """Send until the connection is lost or a flush has tried all; raises the failure of an attempt."""
        assert self._connect is not None
        with trio.CancelScope(deadline=self._begin_attempt()) as self._scope:
            whole = self._scope
            async with self._connect() as client:
                whole.deadline = math.inf
                await self._send(client)
            return
        raise DeadlineExceeded("no connection in time")

    async def _send(self, client: Client) -> None:
        while not client.closed.is_set():
            with trio.CancelScope(deadline=self._begin_attempt()) as self._scope:
                head = self._queue.head
                try:
                    await client.call(EVENTS, "Forward", head.request, namespace=self._namespace)
                except _PASSING:
                    raise
                except ShimError as error:
                    self._give_up(head, str(error))
                else:
                    self._done(head, delivered=True)
            if self._scope.cancelled_caught:
                raise DeadlineExceeded("no answer to Forward in time")
            self._in_flight = self._scope = None
            self._pause = FIRST_PAUSE
            if not await self._wait_event():
                return

    async def _attempt_failed(self, error: ShimError) -> None:
        """Pause before the next attempt; when flushing there is none, and the event goes."""
        event, self._in_flight = self._in_flight, None
        if event is None:
            return
        if self._flushing:
            self._give_up(event, str(error))
            return
        if self._pause == FIRST_PAUSE:
            log.warning("events wait, %s first: %s", event.topic, error)
        until = min(trio.current_time() + self._pause, event.expires)
        self._pause = min(self._pause * 2, LAST_PAUSE)
        with trio.CancelScope(deadline=until):
            while not self._flushing:
                await self._change.wait()

    def _give_up(self, event: Queued, why: str) -> None:
        log.warning("event %s dropped: %s", event.topic, why)
        self._done(event, delivered=False)

    def _done(self, event: Queued, *, delivered: bool) -> None:
        self._queue.discard(event, delivered=delivered)
        self._changed()

    def _changed(self) -> None:
        self._change.set()
        self._change = trio.Event()
