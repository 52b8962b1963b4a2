"""The ttrpc server over a Trio listener.

One nursery owns the accept loop and every connection.  Temporary refusals of accept are waited out, 1 ms doubling to
1 s, random within (protocol.md 1.4).  Peers on unix sockets must be the same user and group as this process
(protocol.md 1.7), else they are closed unheard.  A bug in here ends the serve scope, a bug in a handler never does.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import socket
import struct
from typing import TYPE_CHECKING, Final

import trio

from shim.rpc.connection import Connection, Limits, Observer, RunningCall
from shim.rpc.service import Handler, Nowait, Registry, Service
from shim.rpc.transport import transport_for

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Handler", "Limits", "Nowait", "RunningCall", "Service", "TtrpcServer", "serve_ttrpc"]

log = logging.getLogger("shim.rpc")

CREDENTIALS: Final = struct.Struct("3i")
FIRST_BACKOFF: Final = 0.001
LAST_BACKOFF: Final = 1.0
TEMPORARY: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EAGAIN, errno.EINTR, errno.ECONNABORTED}
)
# How long calls in flight may take once the server stops: long enough for an answer that is due, short of the 3 s that
# a caller grants a shim to leave (design section 12).
STOP_GRACE: Final = 1.0


class TtrpcServer:
    """A set of services and the connections that use them; `stop` may be called from any task of the run."""

    def __init__(
        self,
        services: Sequence[Service],
        *,
        limits: Limits | None = None,
        check_peer: bool = True,
        observe: Observer | None = None,
    ) -> None:
        self._registry = Registry.of(services)
        self._limits = limits or Limits()
        self._check_peer = check_peer
        self._observe = observe
        self._stopping = trio.Event()
        self._grace = STOP_GRACE
        self.connections: set[Connection] = set()

    def stop(self, grace: float = STOP_GRACE) -> None:
        """Begins the graceful stop: nobody new is accepted, nothing more is read.

        Idle connections close at once.  Calls in flight have `grace` seconds to answer and to get rid of their answers;
        then they are cancelled and get none.  `serve` returns when the last connection has closed.
        """
        self._grace = grace
        self._stopping.set()

    async def serve(
        self,
        listener: trio.abc.Listener[trio.abc.Stream],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serves until cancelled, or stopped and drained; closes the listener in any case."""
        try:
            async with trio.open_nursery() as nursery:
                with trio.CancelScope() as accepting:
                    nursery.start_soon(self._cancel_on_stop, accepting)
                    task_status.started()
                    await self._accept(listener, nursery)
                await listener.aclose()
                for connection in self.connections:
                    connection.stop(self._grace)
        finally:
            await trio.aclose_forcefully(listener)

    async def _cancel_on_stop(self, accepting: trio.CancelScope) -> None:
        await self._stopping.wait()
        accepting.cancel()

    async def _accept(self, listener: trio.abc.Listener[trio.abc.Stream], nursery: trio.Nursery) -> None:
        backoff = FIRST_BACKOFF
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                if error.errno not in TEMPORARY:
                    raise
                log.warning("accept: %s; again within %.3f s", error, backoff)
                await trio.sleep(random.uniform(0, backoff))
                backoff = min(backoff * 2, LAST_BACKOFF)
                continue
            backoff = FIRST_BACKOFF
            nursery.start_soon(self._serve_connection, stream, name="connection")

    async def _serve_connection(self, stream: trio.abc.Stream) -> None:
        if self._check_peer and not same_user(stream):
            await trio.aclose_forcefully(stream)
            return
        connection = Connection(transport_for(stream), self._registry, self._limits, self._observe)
        if self._stopping.is_set():
            connection.stop(self._grace)
        self.connections.add(connection)
        try:
            await connection.run_connection()
        finally:
            self.connections.discard(connection)


def same_user(stream: trio.abc.Stream) -> bool:
    """Whether the peer of a unix socket has our effective uid and gid; True for streams that have no such peer."""
    if not isinstance(stream, trio.SocketStream) or stream.socket.family != socket.AF_UNIX:
        return True
    raw = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    pid, uid, gid = CREDENTIALS.unpack(raw)
    if (uid, gid) == (os.geteuid(), os.getegid()):
        return True
    log.warning("refused a connection of pid %d, uid %d, gid %d", pid, uid, gid)
    return False


async def serve_ttrpc(
    listener: trio.abc.Listener[trio.abc.Stream],
    services: Sequence[Service],
    *,
    limits: Limits | None = None,
    check_peer: bool = True,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until cancelled, for callers that need no graceful stop; see `TtrpcServer` for those that do."""
    await TtrpcServer(services, limits=limits, check_peer=check_peer).serve(listener, task_status=task_status)
