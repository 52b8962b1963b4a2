"""One task that hands events to the daemon, in the order in which they became true (design section 8).

A daemon that is absent, refuses, stalls or dies costs nobody else anything: `publish` never waits, the queue is
bounded, each attempt is bounded, and the head is tried again, with pauses that grow, until it is too old.  Only
failures that may pass are tried again; anything else drops the one event with a log line.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

import trio

from shim.errors import DeadlineExceeded, ResourceExhausted, ShimError, Unavailable
from shim.rpc.event_queue import QUEUE_EVENTS, EventQueue, Queued
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
        self._flushing = False
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
        if self._connect is None:
            self._queue.dropped += 1
            return
        request = ForwardRequest()
        envelope = request.envelope
        envelope.timestamp.CopyFrom(timestamp(time.time_ns()))
        envelope.namespace = self._namespace
        envelope.topic = topic
        envelope.event.CopyFrom(pack(event))
        victim = self._queue.push(Queued(topic, request, trio.current_time() + self._kept))
        if victim is not None:
            log.warning("event queue full: %s dropped, %d in all", victim.topic, self._queue.dropped)
        self._changed()

    async def run_publisher(self) -> None:
        """Send until cancelled, or until a flush has tried what was left."""
        pause = FIRST_PAUSE
        while not (self._flushing and not self._queue):
            if not self._queue:
                await self._change.wait()
                continue
            progressed = await self._send_over_one_connection()
            if self._flushing:
                continue
            if progressed:
                pause = FIRST_PAUSE
            else:
                await self._rest(pause)
                pause = min(pause * 2, LAST_PAUSE)

    async def flush(self) -> None:
        """Give each queued event one attempt, all within 2 s; `run_publisher` then returns, and no more is sent."""
        self._flushing = True
        self._changed()
        with trio.move_on_after(FLUSH_SECONDS):
            while self._queue:
                await self._change.wait()

    async def _send_over_one_connection(self) -> bool:
        """Send until the connection or an attempt fails; whether anything was delivered or decided."""
        assert self._connect is not None
        self._drop_expired()
        try:
            async with self._connect() as client:
                return await self._send(client)
        except ShimError as error:  # nobody to connect to
            if self._flushing:
                while self._queue:
                    self._give_up(self._queue.head, str(error))
            return False

    async def _send(self, client: Client) -> bool:
        progressed = False
        while True:
            self._drop_expired()
            while not self._queue:
                if self._flushing:
                    return progressed
                await self._change.wait()
            head = self._queue.head
            try:
                await client.call(EVENTS, "Forward", head.request, namespace=self._namespace, timeout=self._attempt)
            except _PASSING as error:
                if self._flushing:
                    self._give_up(head, str(error))
                # A connection that has served and then broke, as when the daemon restarts, is made again at once.
                return progressed
            except ShimError as error:
                self._give_up(head, str(error))
            else:
                self._done(head, delivered=True)
            progressed = True

    def _drop_expired(self) -> None:
        while self._queue and trio.current_time() >= self._queue.head.expires:
            self._give_up(self._queue.head, "it is too old")

    async def _rest(self, seconds: float) -> None:
        """Pause, cut short by a flush."""
        with trio.move_on_after(seconds):
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
