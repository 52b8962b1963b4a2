"""One use of everything that a shim does, in memory, before the template forks.

What Python fills on first use (specialised byte code, caches of protobuf, cattrs, trio and re) is then shared by all
forks instead of being made in each.  No process is started, no thread is used, no file is left; the loop has ended
before the template serves.
"""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import trio
from google.protobuf.empty_pb2 import Empty

from shim import convert
from shim.errors import ShimError
from shim.kernel.children import SubreaperChildren
from shim.model.exits import ExitRecord
from shim.model.options import RuncOptions
from shim.rpc.client import open_client
from shim.rpc.publisher import Publisher
from shim.rpc.server import Service, TtrpcServer
from shim.task.events import TaskEvents
from shim.task.jobs import Jobs
from shim.task.service import TaskService
from shim.wire.proto import task_pb2 as task
from shim.wire.services import EVENTS, TASK_V3

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from google.protobuf.message import Message

    from shim.rpc.client import Client

ROUNDS: Final = 20
"""Calls of each kind: more than the interpreter needs to specialise a function."""
_NOWHERE: Final = "/nonexistent/bundle"


class _OneStream(trio.abc.Listener[trio.SocketStream]):
    """A listener to which exactly one client has connected."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._waiting = [stream]

    async def accept(self) -> trio.SocketStream:
        """The client; nobody else ever comes."""
        if not self._waiting:
            await trio.sleep_forever()
        return self._waiting.pop()

    async def aclose(self) -> None:
        """Nothing to close."""
        await trio.lowlevel.checkpoint()


def warm_up() -> None:
    """Do it.  Raises what goes wrong: a template that cannot do this could not serve either."""
    convert.exit_record_from_json(convert.exit_record_to_json(ExitRecord(1, 0, 1)))
    convert.options_from_json(convert.options_to_json(RuncOptions(root="/", systemd_cgroup=True)))
    trio.run(_serve_in_memory)  # noqa: TID251 - it has ended before the template serves


async def _serve_in_memory() -> None:
    async def forward(request: Message) -> Empty:
        del request
        return Empty()

    async with trio.open_nursery() as nursery:
        children = SubreaperChildren()
        await nursery.start(children.run_reaper)
        sink = TtrpcServer([Service(EVENTS, {"Forward": forward})])
        publisher = Publisher("warm-up", lambda: _connected(sink, nursery))
        nursery.start_soon(publisher.run_publisher)
        events = TaskEvents(publisher)
        service = TaskService(
            namespace="warm-up", nursery=nursery, janitor=Jobs(nursery), children=children, events=events
        )
        async with _connected(TtrpcServer(service.services()), nursery) as client:
            for _ in range(ROUNDS):
                events.exited("c", "c", ExitRecord(1, 0, 1))
                await _calls(client)
        await publisher.flush()
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def _connected(server: TtrpcServer, nursery: trio.Nursery) -> AsyncIterator[Client]:
    """A client of `server`, over a pair of sockets."""
    ours, theirs = (trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in socket.socketpair())
    nursery.start_soon(server.serve, _OneStream(ours))
    async with open_client(theirs) as client:
        yield client


async def _calls(client: Client) -> None:
    """Each call that needs no container, and those that must find none."""
    requests: dict[str, Message] = {
        "Connect": task.ConnectRequest(id="c"),
        "State": task.StateRequest(id="c"),
        "Create": task.CreateTaskRequest(id="c", bundle=_NOWHERE, stdout=_NOWHERE),
        "Start": task.StartRequest(id="c"),
        "Exec": task.ExecProcessRequest(id="c", exec_id="e"),
        "Kill": task.KillRequest(id="c", signal=9),
        "Wait": task.WaitRequest(id="c"),
        "Delete": task.DeleteRequest(id="c"),
    }
    for method, request in requests.items():
        try:
            await client.call(TASK_V3, method, request, timeout=5, namespace="warm-up")
        except ShimError:
            continue
