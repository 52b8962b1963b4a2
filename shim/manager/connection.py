"""One connection to one shim, and which task service it speaks.

A shim that says version 3 and then does not know that service is asked once more by the name of version 2, never the
other way (protocol.md 2.4, "Versions").  Each call has a budget, which the error names when it passes.

Invariants: the connection is held by a task of the manager's nursery, so leaving the manager closes it and does nothing
to the shim; `lost` is set once the other side is gone; the shim's process is held by a pidfd from the first answer on,
so that it can be ended, or known to have ended, whatever becomes of its pid.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from typing import TYPE_CHECKING, TypeVar

import trio
from google.protobuf.message import Message

from shim.errors import Unimplemented
from shim.kernel.fds import OwnedFd
from shim.rpc.client import Client, open_unix_client
from shim.wire.proto.task_pb2 import ConnectRequest, ConnectResponse
from shim.wire.services import TASK_V2, TASK_V3

if TYPE_CHECKING:
    from shim.manager.bootstrap import Answer
    from shim.model.budgets import Budget

R = TypeVar("R", bound=Message)


class ShimConnection:
    """A shim that was reached; made by `connect`."""

    def __init__(self, client: Client, answer: Answer, namespace: str, scope: trio.CancelScope) -> None:
        self._client = client
        self._scope = scope
        self._proven = answer.version < 3
        self._process: OwnedFd | None = None
        self.namespace = namespace
        self.address = answer.address
        self.version = answer.version
        self.pid = 0
        """The shim's pid as it said itself; 0 until then."""

    @property
    def lost(self) -> trio.Event:
        """Set once the connection is gone, by whichever side."""
        return self._client.closed

    async def call(self, method: str, request: Message, response: type[R], budget: Budget | None = None) -> R:
        """One call of the task service.

        Raises what the shim answered, `budget`'s error when it passes (None: the caller's own deadline only) and
        ConnectionClosed when the shim is gone.
        """
        if budget is None:
            return await self._call(method, request, response, None)
        with trio.move_on_after(budget.seconds):
            return await self._call(method, request, response, budget.seconds)
        raise budget.exceeded(f"no answer to {method}")

    async def _call(self, method: str, request: Message, response: type[R], timeout_s: float | None) -> R:
        service = TASK_V3 if self.version >= 3 else TASK_V2
        try:
            answer = await self._client.call(
                service, method, request, response, timeout=timeout_s, namespace=self.namespace
            )
        except Unimplemented:
            if self._proven:
                raise
            answer = await self._client.call(
                TASK_V2, method, request, response, timeout=timeout_s, namespace=self.namespace
            )
            self.version = 2
        self._proven = True
        return answer

    async def greet(self, task_id: str) -> ConnectResponse:
        """Ask for the pids, and take hold of the shim's process."""
        answer = await self.call("Connect", ConnectRequest(id=task_id), ConnectResponse)
        if self._process is None and answer.shim_pid > 0:
            with contextlib.suppress(OSError):
                self._process = OwnedFd(os.pidfd_open(answer.shim_pid))
                self.pid = answer.shim_pid
        return answer

    @property
    def ended(self) -> bool:
        """Whether the shim's process is known to have ended."""
        if self._process is None or self._process.closed:
            return False
        poller = select.poll()
        poller.register(self._process.fileno(), select.POLLIN)
        return bool(poller.poll(0))

    async def wait_ended(self) -> None:
        """Wait until the shim's process has ended; only until it has hung up where its process is not known."""
        if self._process is None or self._process.closed:
            await self.lost.wait()
        else:
            await trio.lowlevel.wait_readable(self._process.fileno())

    def kill(self) -> bool:
        """SIGKILL to the shim's process; False when it is not known or has ended."""
        if self._process is None or self._process.closed:
            return False
        try:
            signal.pidfd_send_signal(self._process.fileno(), signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def close(self) -> None:
        """Hang up and let go of the process."""
        self._scope.cancel()
        if self._process is not None:
            self._process.close()


async def connect(nursery: trio.Nursery, answer: Answer, namespace: str, task_id: str) -> ShimConnection:
    """Dial the address of `answer` and get a first answer, so that a shim that only listens is known here.

    Bounded by the caller's deadline.  The connection lives in `nursery`.  Unavailable when nobody listens.
    """
    scope = trio.CancelScope()
    client = await nursery.start(_hold, answer.address, scope)
    connection = ShimConnection(client, answer, namespace, scope)
    try:
        await connection.greet(task_id)
    except BaseException:
        connection.close()
        raise
    return connection


async def _hold(
    address: str, scope: trio.CancelScope, *, task_status: trio.TaskStatus[Client] = trio.TASK_STATUS_IGNORED
) -> None:
    with scope:
        async with open_unix_client(address) as client:
            task_status.started(client)
            await client.closed.wait()
