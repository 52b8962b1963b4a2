"""The socket on which shims publish, shared by all managers of a state directory (design section 13).

One manager listens: whoever holds the lock of the `events` directory.  The others subscribe through it and publish
through it, so that every event reaches each of them once, and the end of that connection tells one of them to take
over.  While nobody listens shims keep their events and try again.

Invariants: a socket file left by a dead manager is replaced, one of a living manager never; an event that one of us
publishes waits for whoever listens next rather than being lost in the change.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections import deque
from typing import TYPE_CHECKING, Final

import trio
from google.protobuf.empty_pb2 import Empty

from shim.errors import ConnectionClosed, ShimError
from shim.kernel.fds import OwnedFd
from shim.kernel.locks import try_lock
from shim.manager.events import EventFilter, check_envelope
from shim.rpc.client import open_unix_client
from shim.rpc.server import Service, TtrpcServer
from shim.wire.proto.envelope_pb2 import Envelope
from shim.wire.proto.events_ttrpc_pb2 import ForwardRequest
from shim.wire.services import EVENTS, MethodSpec, ServiceSpec

if TYPE_CHECKING:
    from shim.manager.events import EventHub, Subscription
    from shim.manager.layout import Layout
    from shim.rpc.client import Client
    from shim.rpc.stream import ServerStream

LOG: Final = logging.getLogger("shim.manager")
BACKLOG: Final = 128
TURN_SECONDS: Final = 0.02
"""Between two tries for the lock while its holder is about to listen, or has hung up and is about to let go."""
HANDOVER_SECONDS: Final = 1.0
FORWARD_SECONDS: Final = 5.0
RELAY: Final = ServiceSpec(
    "containerd.shim.trio.manager.v1.Events", {"Subscribe": MethodSpec("Subscribe", Envelope, Envelope, False, True)}
)
"""Between our managers only: every event that the listener takes, from the moment of the first message on, which is
empty and says that the subscription stands.  The request is an empty envelope, or has the topic `RESUMED` when it comes
from one that followed another listener before: it gets what came since this one took over, too."""
RESUMED: Final = "/resumed"
REPLAYED_EVENTS: Final = 1024
REPLAY_SECONDS: Final = 5.0
"""For so long after a change of listener those who have not found the new one yet miss nothing."""


class EventSocket:
    """This manager's side of the socket; `run` must run for anything to happen."""

    def __init__(self, layout: Layout, hub: EventHub) -> None:
        self._layout: Final = layout
        self._hub: Final = hub
        self._listening = False
        self._listener: Client | None = None
        self._changed = trio.Event()
        self._since = 0.0
        self._replay: deque[Envelope] = deque(maxlen=REPLAYED_EVENTS)
        self._server: TtrpcServer | None = None
        self._relays: set[Subscription] = set()
        self._ended = trio.Event()
        self.standing: Final = trio.Event()
        """Set once events reach this manager, by its own socket or through another's."""

    @property
    def listening(self) -> bool:
        """Whether it is this manager that shims publish to."""
        return self._listening

    async def run(self, *, task_status: trio.TaskStatus[bool] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve or follow until cancelled; starts with whether it is this manager that listens.

        When it is another one, this does not wait for it: it may be stopped, and then only events are late.
        """
        first = True
        with OwnedFd(os.open(self._layout.events_lock, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as lock:
            while not try_lock(lock):
                if first:
                    LOG.debug("another manager listens on %s", self._layout.events_address)
                    task_status.started(False)
                    first = False
                try:
                    async with open_unix_client(self._layout.events_address) as client:
                        await self._follow(client)
                except ShimError:  # not there yet, or not any more
                    await trio.sleep(TURN_SECONDS)
            await self._serve(task_status if first else trio.TASK_STATUS_IGNORED)

    async def wait_taken(self) -> None:
        """Until somebody listens, as far as this manager knows: for who is about to let a shim leave with its events.

        Given up after a moment: there may be nobody for long, and shims keep events by a bound of their own.
        """
        with trio.move_on_after(HANDOVER_SECONDS):
            while not (self._listening or self._listener is not None):
                await self._changed.wait()

    async def publish(self, envelope: Envelope) -> None:
        """Give an event of ours to everybody, through whoever listens; bounded by the caller's deadline."""
        while True:
            if self._listening:
                self._take(envelope)
                await trio.lowlevel.checkpoint()
                return
            client, changed = self._listener, self._changed
            if client is not None:
                with contextlib.suppress(ConnectionClosed):
                    await client.call(EVENTS, "Forward", ForwardRequest(envelope=envelope), timeout=FORWARD_SECONDS)
                    return
            await changed.wait()

    async def stop(self) -> None:
        """Take no more events, hand on those that were taken, and let another listen; at once for who only follows.

        An event that was not taken is its shim's to send again.  Bounded by the server's grace, and by the caller.
        """
        if self._server is None:
            return
        self._server.stop()
        for subscription in self._relays:
            subscription.end()
        await self._ended.wait()

    async def _serve(self, task_status: trio.TaskStatus[bool]) -> None:
        async def forward(request: ForwardRequest) -> Empty:
            check_envelope(request.envelope)
            self._take(request.envelope)
            await trio.lowlevel.checkpoint()
            return Empty()

        async def subscribe(stream: ServerStream) -> None:
            request = await stream.receive()
            assert isinstance(request, Envelope)
            with self._hub.subscribe(EventFilter()) as events:
                self._relays.add(events)
                try:
                    missed = list(self._replay) if request.topic == RESUMED else []
                    for envelope in (Envelope(), *missed):
                        await stream.send(envelope)
                    async for envelope in events:
                        await stream.send(envelope)
                finally:
                    self._relays.discard(events)

        services = [Service(EVENTS, {"Forward": forward}), Service(RELAY, {"Subscribe": subscribe})]
        try:
            listener = await _listen(self._layout)
        except OSError as error:  # a full or read-only disk: tasks can still be looked at, without events
            LOG.warning("no events come: %s cannot be made: %s", self._layout.events_address, error.strerror)
            task_status.started(False)
            await trio.sleep_forever()
        try:
            async with trio.open_nursery() as nursery:
                self._server = TtrpcServer(services)
                await nursery.start(self._server.serve, listener)
                self._since = trio.current_time()
                self._set(True, None)
                task_status.started(True)
        finally:
            self._server = None
            self._set(False, None)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._layout.events_address)
            self._ended.set()

    async def _follow(self, client: Client) -> None:
        request = Envelope(topic=RESUMED if self.standing.is_set() else "")
        async with client.open_stream(RELAY, "Subscribe", request) as stream:
            await stream.receive()
            self._set(False, client)
            try:
                while True:
                    envelope = await stream.receive()
                    assert isinstance(envelope, Envelope)
                    self._hub.dispatch(envelope)
            except trio.EndOfChannel:
                return
            finally:
                self._set(False, None)

    def _take(self, envelope: Envelope) -> None:
        """For the listener: an event to all who are there, and for a while to those who are still on their way."""
        if trio.current_time() - self._since <= REPLAY_SECONDS:
            self._replay.append(envelope)
        else:
            self._replay.clear()
        self._hub.dispatch(envelope)

    def _set(self, listening: bool, listener: Client | None) -> None:
        self._listening, self._listener = listening, listener
        self._changed.set()
        self._changed = trio.Event()
        if listening or listener is not None:
            self.standing.set()


async def _listen(layout: Layout) -> trio.SocketListener:
    """A new socket; its mode is set before it listens, so nobody can connect to a wider one."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(layout.events_address)
    sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        await sock.bind(layout.events_address)
        os.chmod(layout.events_address, 0o600)
        sock.listen(BACKLOG)
        return trio.SocketListener(sock)
    except BaseException:
        sock.close()
        raise
