"""A shim without a runtime: the task service of one task, in the test's own process.

Each call is noted; a test replaces a method's behaviour through `behave`.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message

from shim.rpc.server import Service, serve_ttrpc
from shim.wire.proto.task_pb2 import (
    ConnectResponse,
    CreateTaskResponse,
    DeleteResponse,
    StartResponse,
    StateResponse,
    WaitResponse,
)
from shim.wire.proto.task_types_pb2 import Status
from shim.wire.services import TASK_V2, TASK_V3
from shim.wire.times import timestamp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from shim.wire.services import ServiceSpec

Behaviour = Callable[[Message], Awaitable[Message]]
EXITED_AT = 1_700_000_000_000_000_000


class FakeShim:
    """Serves one stopped task unless told otherwise; `hang_up` ends every connection."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.status = Status.STOPPED
        self.behave: dict[str, Behaviour] = {}
        self.scope = trio.CancelScope()

    def hang_up(self) -> None:
        """As a shim that dies."""
        self.scope.cancel()

    async def answer(self, method: str, request: Message) -> Message:
        """Note the call and answer it."""
        self.calls.append(method)
        if method in self.behave:
            return await self.behave[method](request)
        await trio.lowlevel.checkpoint()
        answers: dict[str, Message] = {
            "Connect": ConnectResponse(),
            "Create": CreateTaskResponse(pid=42),
            "Start": StartResponse(pid=42),
            "State": self._state(),
            "Wait": WaitResponse(exit_status=7, exited_at=timestamp(EXITED_AT)),
            "Delete": DeleteResponse(exit_status=7, pid=42, exited_at=timestamp(EXITED_AT)),
        }
        if method == "Shutdown":
            self.hang_up_soon()
        return answers.get(method, Empty())

    def _state(self) -> StateResponse:
        if self.status != Status.STOPPED:
            return StateResponse(id="t1", status=self.status, pid=42)
        return StateResponse(id="t1", status=self.status, pid=42, exit_status=7, exited_at=timestamp(EXITED_AT))

    def hang_up_soon(self) -> None:
        """As a shim that leaves after its answer."""
        self.scope.deadline = trio.current_time() + 0.05


def _handler(shim: FakeShim, method: str) -> Behaviour:
    async def handle(request: Message) -> Message:
        return await shim.answer(method, request)

    return handle


@asynccontextmanager
async def open_fake_shim(path: Path, *specs: ServiceSpec) -> AsyncIterator[FakeShim]:
    """A fake shim that listens on the socket `path`, with both task services unless some are named."""
    shim = FakeShim()
    sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    await sock.bind(str(path))
    sock.listen(8)
    services = [
        Service(spec, {method: _handler(shim, method) for method in spec.methods})
        for spec in specs or (TASK_V2, TASK_V3)
    ]

    async def serve(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with shim.scope:
            await serve_ttrpc(trio.SocketListener(sock), services, task_status=task_status)

    async with trio.open_nursery() as nursery:
        await nursery.start(serve)
        yield shim
        nursery.cancel_scope.cancel()
