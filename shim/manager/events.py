"""The socket on which shims publish their events (protocol.md 5.2).

One manager listens for a whole state directory: whoever holds the lock of its `events` directory.  A manager that comes
second holds a connection to the first, whose end tells it to take over; meanwhile its shims publish to the first.

Invariants: an event reaches the callback only after the receiver's checks (namespace, topic, time), else its sender
gets InvalidArgument; the callback is sync and must not block; a socket file left by a dead manager is replaced, one of
a living manager never.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
from typing import TYPE_CHECKING, Final

import trio
from google.protobuf.empty_pb2 import Empty

from shim.errors import InvalidArgument, ShimError
from shim.kernel.fds import OwnedFd
from shim.model.names import check_identifier
from shim.rpc.dial import dial
from shim.rpc.server import Service, serve_ttrpc
from shim.wire.services import EVENTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from shim.manager.layout import Layout
    from shim.wire.proto.envelope_pb2 import Envelope
    from shim.wire.proto.events_ttrpc_pb2 import ForwardRequest

LOG: Final = logging.getLogger("shim.manager")
BACKLOG: Final = 128
TURN_SECONDS: Final = 0.02
"""Between two tries for the lock while its holder is about to listen, or has hung up and is about to let go."""


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


async def run_events(
    layout: Layout,
    on_event: Callable[[Envelope], None],
    *,
    task_status: trio.TaskStatus[bool] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the event socket until cancelled; starts with False when another manager serves it, and waits its turn."""

    async def forward(request: ForwardRequest) -> Empty:
        check_envelope(request.envelope)
        try:
            on_event(request.envelope)
        except Exception:
            LOG.exception("the event callback failed for %s", request.envelope.topic)
        await trio.lowlevel.checkpoint()
        return Empty()

    with OwnedFd(os.open(layout.events_lock, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as lock:
        first = _try_lock(lock)
        if not first:
            LOG.debug("another manager listens on %s", layout.events_address)
            task_status.started(False)
            while not _try_lock(lock):
                await _wait_gone(layout.events_address)
        listener = await _listen(layout)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(serve_ttrpc, listener, [Service(EVENTS, {"Forward": forward})])
                if first:
                    task_status.started(True)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(layout.events_address)


def _try_lock(lock: OwnedFd) -> bool:
    try:
        fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def _wait_gone(address: str) -> None:
    """Wait until who listens there hangs up; a moment only when nobody listens yet, or not any more."""
    try:
        stream = await dial(address)
    except ShimError:
        await trio.sleep(TURN_SECONDS)
        return
    async with stream:
        with contextlib.suppress(trio.BrokenResourceError):
            while await stream.receive_some():
                pass


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
