"""A service with every shape of method, and ways to reach it in memory.

Its messages are the task service's, for want of others: what a test sends stands in `id`.
"""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import trio
from trio.testing import memory_stream_pair

from shim.rpc.client import Client, open_client
from shim.rpc.server import Service, TtrpcServer
from shim.wire.proto.task_pb2 import StateRequest, StateResponse
from shim.wire.services import MethodSpec, ServiceSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from shim.rpc.connection import Limits, Observer
    from shim.rpc.service import Handler, Nowait

METHODS: Final = [
    MethodSpec("One", StateRequest, StateResponse),
    MethodSpec("Other", StateRequest, StateResponse),
    MethodSpec("Upload", StateRequest, StateResponse, client_streams=True),
    MethodSpec("Download", StateRequest, StateResponse, server_streams=True),
    MethodSpec("Both", StateRequest, StateResponse, client_streams=True, server_streams=True),
]
ECHO: Final = ServiceSpec("test.Echo", {method.name: method for method in METHODS})


def ask(text: str = "x") -> StateRequest:
    """A request that says so."""
    return StateRequest(id=text)


def tell(text: str = "x") -> StateResponse:
    """An answer that says so."""
    return StateResponse(id=text)


async def echo(request: StateRequest) -> StateResponse:
    """The plainest handler."""
    return tell(request.id)


class MemoryListener(trio.abc.Listener[trio.abc.Stream]):
    """A listener whose streams are in memory, or of a real socket pair; accept raises what `refuse` holds first."""

    def __init__(self, *, real: bool = False) -> None:
        self._real = real
        self._send, self._receive = trio.open_memory_channel["trio.abc.Stream"](100)
        self.refuse: list[OSError] = []
        self.closed = False

    def connect(self) -> trio.abc.Stream:
        """The client's end of a new connection; BrokenResourceError once closed."""
        mine: trio.abc.Stream
        theirs: trio.abc.Stream
        if self._real:
            pair = socket.socketpair()
            mine, theirs = (trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in pair)
        else:
            mine, theirs = memory_stream_pair()
        self._send.send_nowait(theirs)
        return mine

    async def accept(self) -> trio.abc.Stream:
        """See trio."""
        if self.refuse:
            await trio.lowlevel.checkpoint()
            raise self.refuse.pop(0)
        return await self._receive.receive()

    async def aclose(self) -> None:
        """See trio."""
        self.closed = True
        self._receive.close()
        await trio.lowlevel.checkpoint()


class Running:
    """A server that runs, and how to reach it."""

    def __init__(self, server: TtrpcServer, listener: MemoryListener) -> None:
        self.server = server
        self.listener = listener
        self.ended = trio.Event()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """A client on a new connection."""
        async with open_client(self.listener.connect()) as client:
            yield client


@asynccontextmanager
async def open_server(
    handlers: dict[str, Handler],
    *,
    real: bool = False,
    limits: Limits | None = None,
    observe: Observer | None = None,
    nowait: dict[str, Nowait] | None = None,
) -> AsyncIterator[Running]:
    """Serves these methods of `ECHO` while the block runs."""
    running = Running(
        TtrpcServer([Service(ECHO, handlers, nowait or {})], limits=limits, observe=observe), MemoryListener(real=real)
    )

    async def serve() -> None:
        await running.server.serve(running.listener)
        running.ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        yield running
        nursery.cancel_scope.cancel()
