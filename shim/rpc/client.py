"""The ttrpc client over any Trio stream.

Many tasks may call at once on one connection; answers come in any order.  A call that is cancelled or runs out of time
is dropped here only, since the protocol has no way to tell the server (protocol.md 1.2).  When the connection is lost
every open call fails with `errors.ConnectionClosed`, and `Client.closed` is set: the other side is gone.
"""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar, overload

import trio
from google.protobuf.message import Message

from shim.errors import ConnectionClosed, DeadlineExceeded, Internal, ResourceExhausted, ShimError
from shim.rpc.dial import DIAL_TIMEOUT, dial
from shim.rpc.transport import Outbox, transport_for
from shim.wire.client import Answer, ClientConnection
from shim.wire.envelope import NAMESPACE_KEY, NO_METADATA

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from shim.rpc.transport import Transport
    from shim.wire.services import MethodSpec, ServiceSpec

R = TypeVar("R", bound=Message)

LONGEST_TIMEOUT: Final = 2**63 - 1
# Messages of a server stream that wait for their reader.  The protocol has no flow control: a stream whose reader is
# this far behind fails, rather than hold up every other call or take memory without end.
STREAM_SLOTS: Final = 1024


class ClientStream:
    """An open call in which either side sends many messages."""

    def __init__(self, client: Client, stream_id: int) -> None:
        self._client = client
        self._stream_id = stream_id
        self._feed, self._messages = trio.open_memory_channel["Message"](STREAM_SLOTS)
        self._ended = trio.Event()
        self._answer: Message | None = None
        self._error: ShimError | None = None

    async def send(self, message: Message) -> None:
        """Sends one message; ConnectionClosed, or ResourceExhausted when it is over the frame limit."""
        await self._client.post(self._client.wire.send(self._stream_id, message))

    async def half_close(self) -> None:
        """Says that no more is sent; receiving goes on."""
        await self._client.post(self._client.wire.half_close(self._stream_id))

    async def receive(self) -> Message:
        """The next message; trio.EndOfChannel at an orderly end, else the error that ended the stream."""
        try:
            return await self._messages.receive()
        except trio.EndOfChannel:
            if self._error is not None:
                raise self._error from None
            raise

    async def result(self) -> Message | None:
        """Waits for the end: the one answer of a client stream, None for a server stream; or raises its error."""
        await self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._answer

    def accept(self, message: Message) -> None:
        """For the client: one message came."""
        try:
            self._feed.send_nowait(message)
        except trio.WouldBlock:
            self._client.forget(self._stream_id)
            self.end(None, ResourceExhausted(f"{STREAM_SLOTS} messages of this stream were not taken"))

    def end(self, answer: Message | None, error: ShimError | None) -> None:
        """For the client: nothing more comes."""
        self._answer, self._error = answer, error
        self._feed.close()
        self._ended.set()


class _Unary:
    """A call that waits for its one answer."""

    __slots__ = ("answer", "done", "error")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.answer: Message | None = None
        self.error: ShimError | None = None

    def accept(self, message: Message) -> None:
        """Never called: the wire room turns a data frame for a unary call into its failure."""

    def end(self, answer: Message | None, error: ShimError | None) -> None:
        self.answer, self.error = answer, error
        self.done.set()


class Client:
    """A connection; make one with `open_client` or `open_unix_client`.  `closed` is set once it is lost."""

    def __init__(self, transport: Transport, nursery: trio.Nursery) -> None:
        self._transport = transport
        self._outbox = Outbox(transport, nursery, self._sent)
        self._open: dict[int, _Unary | ClientStream] = {}
        self._progress: trio.Event | None = None
        self.wire = ClientConnection()
        self.closed = trio.Event()

    @overload
    async def call(
        self,
        spec: ServiceSpec,
        method: str,
        request: Message,
        *,
        timeout: float | None = None,
        namespace: str | None = None,
        metadata: Mapping[str, Sequence[str]] = NO_METADATA,
    ) -> Message: ...

    @overload
    async def call(
        self,
        spec: ServiceSpec,
        method: str,
        request: Message,
        response: type[R],
        *,
        timeout: float | None = None,
        namespace: str | None = None,
        metadata: Mapping[str, Sequence[str]] = NO_METADATA,
    ) -> R: ...

    async def call(
        self,
        spec: ServiceSpec,
        method: str,
        request: Message,
        response: type[Message] = Message,
        *,
        timeout: float | None = None,
        namespace: str | None = None,
        metadata: Mapping[str, Sequence[str]] = NO_METADATA,
    ) -> Message:
        """One unary call; its answer, which is of the class `response` when that is given.

        `timeout` (seconds) and the deadline of the scopes around the call are sent along, whichever is sooner.  Raises
        the error that the server answered, DeadlineExceeded after `timeout`, ConnectionClosed when the connection is
        lost, ResourceExhausted when the request is over the frame limit; KeyError for a method that the table lacks.
        """
        table = spec.methods[method]
        if not issubclass(table.response, response):
            raise Internal(f"{method} answers {table.response.__name__}, not {response.__name__}")
        waiter = _Unary()
        stream_id = self._start(spec, table, request, timeout, _with_namespace(metadata, namespace), waiter)
        try:
            if timeout is None:
                await waiter.done.wait()
            else:
                with trio.move_on_after(timeout):
                    await waiter.done.wait()
        finally:
            if not waiter.done.is_set():
                self.forget(stream_id)
        if waiter.error is not None:
            raise waiter.error
        if waiter.answer is None:
            raise DeadlineExceeded(f"no answer to {method} within {timeout:g} s")
        return waiter.answer

    @asynccontextmanager
    async def open_stream(
        self,
        spec: ServiceSpec,
        method: str,
        request: Message | None = None,
        *,
        timeout: float | None = None,
        namespace: str | None = None,
        metadata: Mapping[str, Sequence[str]] = NO_METADATA,
    ) -> AsyncIterator[ClientStream]:
        """A streaming call; `request` is the one message of a client that does not stream.

        Leaving the block forgets the call.  `timeout` is sent along, and is the server's to keep.
        """
        stream = ClientStream(self, self.wire.next_id)
        table = spec.methods[method]
        stream_id = self._start(spec, table, request, timeout, _with_namespace(metadata, namespace), stream)
        try:
            yield stream
        finally:
            self.forget(stream_id)

    async def post(self, frame: bytes) -> None:
        """For streams: writes a frame, waiting while earlier ones have not left."""
        while len(self._outbox) and not self.closed.is_set():
            if self._progress is None:
                self._progress = trio.Event()
            await self._progress.wait()
        if self.closed.is_set():
            raise ConnectionClosed
        self._outbox.post(frame)
        await trio.lowlevel.checkpoint()

    def forget(self, stream_id: int) -> None:
        """Drops a call: what the server still sends for it is passed over."""
        self.wire.drop(stream_id)
        self._open.pop(stream_id, None)

    async def run_reader(self) -> None:
        """Hands out what comes until the connection is lost; then fails every open call and sets `closed`."""
        try:
            while chunk := await self._transport.receive():
                for event in self.wire.receive(chunk):
                    waiter = self._open.get(event.stream_id)
                    if waiter is None:
                        continue
                    if isinstance(event, Answer):
                        del self._open[event.stream_id]
                        waiter.end(event.message, event.error)
                    else:
                        waiter.accept(event.message)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
        finally:
            self._lose()

    def _start(
        self,
        spec: ServiceSpec,
        method: MethodSpec,
        request: Message | None,
        timeout_s: float | None,
        metadata: Mapping[str, Sequence[str]],
        waiter: _Unary | ClientStream,
    ) -> int:
        if self.closed.is_set():
            raise ConnectionClosed
        # Between the id's making and the posting nothing is awaited, so ids increase on the wire.
        stream_id, frame = self.wire.start(spec, method, request, _timeout_ns(timeout_s), metadata)
        self._open[stream_id] = waiter
        self._outbox.post(frame)
        return stream_id

    def _sent(self) -> None:
        if self._progress is not None:
            self._progress.set()
            self._progress = None

    def _lose(self) -> None:
        self.closed.set()
        self._sent()
        waiters, self._open = list(self._open.values()), {}
        for waiter in waiters:
            waiter.end(None, ConnectionClosed())


def _with_namespace(metadata: Mapping[str, Sequence[str]], namespace: str | None) -> Mapping[str, Sequence[str]]:
    return metadata if namespace is None else {**metadata, NAMESPACE_KEY: [namespace]}


def _timeout_ns(timeout_s: float | None) -> int:
    """What is left of the caller's time, in nanoseconds; 0 when it has no bound, at least 1 when it has."""
    left = trio.current_effective_deadline() - trio.current_time()
    if timeout_s is not None:
        left = min(left, timeout_s)
    if math.isinf(left) and left > 0:
        return 0
    return min(max(int(left * 1e9), 1) if left > 0 else 1, LONGEST_TIMEOUT)


@asynccontextmanager
async def open_client(stream: trio.abc.Stream) -> AsyncIterator[Client]:
    """A client on a connected stream, which is closed when the block is left.

    What the block raises comes out as it is, in no group.
    """
    transport = transport_for(stream)
    failure: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            # A lost connection ends the nursery inside the task, never the block of the caller.
            client = await nursery.start(_run_connection, transport)
            try:
                yield client
            except BaseException as error:
                failure = error
            nursery.cancel_scope.cancel()
    finally:
        await transport.aclose()
    if failure is not None:
        raise failure


async def _run_connection(transport: Transport, task_status: trio.TaskStatus[Client]) -> None:
    async with trio.open_nursery() as nursery:
        client = Client(transport, nursery)
        task_status.started(client)
        await client.run_reader()
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_unix_client(address: str, *, dial_timeout: float = DIAL_TIMEOUT) -> AsyncIterator[Client]:
    """Dials an address of protocol.md 1.7 and gives a client on it.

    Raises InvalidArgument for an address of no known form, Unavailable when nobody listens there, DeadlineExceeded
    after `dial_timeout` seconds.
    """
    async with open_client(await dial(address, dial_timeout=dial_timeout)) as client:
        yield client
