"""One connection of the server: a reader, a task for each request, an outbox.

What holds: requests run at once and answer in any order; a request runs under the deadline that its caller sent; when
the peer hangs up every request is cancelled; whatever a handler raises becomes an answer and never touches another
call.  At most 4,096 requests and 256 MiB (a request counts until its answer has been written) are held; beyond that the
connection is not read, and only it.  While it is not read a hang-up is looked for once a second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import trio

from shim.errors import DeadlineExceeded, Internal, ShimError, Unimplemented, Unknown
from shim.rpc import context
from shim.rpc.stream import CLIENT_SLOTS, SINGLE_SLOT, ServerStream
from shim.rpc.transport import Outbox, Transport
from shim.wire.envelope import NAMESPACE_KEY
from shim.wire.server import Call, Event, HalfClose, Refusal, ServerConnection, StreamData

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from shim.rpc.service import Handler, Nowait, Registry

log = logging.getLogger("shim.rpc")

# A stream's handler may run this many bytes ahead of a peer that does not read: two socket buffers' worth.
STREAM_AHEAD: Final = 512 << 10
HANG_UP_POLL: Final = 1.0


@attrs.frozen
class Limits:
    """What one connection may hold, and how long (seconds) a stream's message waits for a slot."""

    requests: int = 4096
    held_bytes: int = 256 << 20
    stream_patience: float = 1.0


@attrs.define(eq=False)
class RunningCall:
    """A request while it runs; `scope` carries its deadline.  `since` is Trio's clock."""

    service: str
    method: str
    namespace: str
    since: float
    scope: trio.CancelScope
    stream: ServerStream | None = None
    given_up: bool = False


Observer = Callable[[RunningCall, float, int], None]
"""Told of each call when it has ended: the call, how long it took in seconds, the status of its answer."""


class Connection:
    """A connection being served.  `calls` shows what runs on it, by stream id."""

    def __init__(
        self,
        transport: Transport,
        registry: Registry,
        limits: Limits,
        observe: Observer | None = None,
    ) -> None:
        self._transport = transport
        self._handlers = registry.handlers
        self._nowait = registry.nowait
        self._wire = ServerConnection(registry.specs)
        self._limits = limits
        self._observe = observe
        self._held = 0
        self._change: trio.Event | None = None
        self._reading = trio.CancelScope()
        self._grace: float | None = None
        self._nursery: trio.Nursery
        self._outbox: Outbox
        self.calls: dict[int, RunningCall] = {}

    @property
    def queued(self) -> tuple[int, int]:
        """Frames and bytes that the peer has not taken."""
        return len(self._outbox), self._outbox.held

    def stop(self, grace: float) -> None:
        """Reads no more; calls in flight have `grace` seconds to answer, then the connection closes."""
        self._grace = grace
        self._reading.cancel()

    async def run_connection(self) -> None:
        """Serves until the peer hangs up or `stop`; closes the transport in any case."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._outbox = Outbox(self._transport, nursery, self._settled)
                with self._reading:
                    await self._read()
                if self._reading.cancelled_caught and self._grace is not None:
                    with trio.move_on_after(self._grace):
                        await self._wait_idle()
                nursery.cancel_scope.cancel()
        finally:
            await self._transport.aclose()

    async def _read(self) -> None:
        while True:
            try:
                chunk = await self._transport.receive()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
            if not chunk:
                return
            for event in self._wire.receive(chunk):
                if isinstance(event, Call):
                    self._begin(event)
                else:
                    await self._stream_event(event)
                if self._full() and not await self._wait_room():
                    return

    def _full(self) -> bool:
        waiting = len(self.calls) + len(self._outbox)
        if not waiting:
            return False
        held = self._held + self._outbox.held + self._wire.held
        return waiting >= self._limits.requests or held >= self._limits.held_bytes

    async def _wait_room(self) -> bool:
        """Waits until more may be held; False when the peer hung up meanwhile."""
        while self._full():
            with trio.move_on_after(HANG_UP_POLL) as patience:
                await self._wait_change()
            if patience.cancelled_caught and self._transport.hung_up():
                return False
        return True

    async def _wait_idle(self) -> None:
        while self.calls or len(self._outbox):
            await self._wait_change()

    async def _wait_change(self) -> None:
        if self._change is None:
            self._change = trio.Event()
        await self._change.wait()

    def _settled(self) -> None:
        """Something was answered or written: whoever waits for room or silence may look again."""
        if self._change is not None:
            self._change.set()
            self._change = None

    async def _stream_event(self, event: Event) -> None:
        running = self.calls.get(event.stream_id)
        if isinstance(event, Refusal):
            if event.ends and running is not None:
                self._give_up(running)
            self._outbox.post(event.frame)
        elif running is None or running.stream is None:
            return
        elif isinstance(event, HalfClose):
            running.stream.end()
        elif isinstance(event, StreamData):
            try:
                running.stream.feed_nowait(event.message)
            except trio.WouldBlock:
                with trio.move_on_after(self._limits.stream_patience) as patience:
                    await running.stream.feed(event.message)
                if patience.cancelled_caught and event.stream_id in self.calls:
                    self._outbox.post(self._wire.overflow(event.stream_id))
                    self._give_up(running)

    def _give_up(self, running: RunningCall) -> None:
        running.given_up = True
        running.scope.cancel()

    def _begin(self, call: Call) -> None:
        at_once = self._nowait[call.service.name].get(call.method.name)
        if at_once is not None and self._answer_at_once(call, at_once):
            return
        handler = self._handlers[call.service.name].get(call.method.name)
        if handler is None:
            self._outbox.post(self._wire.refuse(call.stream_id, Unimplemented(f"method {call.method.name}")))
            return
        now = trio.current_time()
        scope = trio.CancelScope(deadline=now + call.timeout_ns / 1e9) if call.timeout_ns else trio.CancelScope()
        names = call.metadata.get(NAMESPACE_KEY)
        running = RunningCall(call.service.name, call.method.name, names[0] if names else "", now, scope)
        argument: Message | ServerStream | None = call.request
        if call.method.streaming:
            argument = running.stream = self._open_stream(call)
        self.calls[call.stream_id] = running
        self._held += call.size
        self._nursery.start_soon(self._run_call, call, running, handler, argument, name=call.method.name)

    def _answer_at_once(self, call: Call, at_once: Nowait) -> bool:
        """Answers in the reader itself, which saves a task and a turn of the scheduler; False when it would block."""
        names = call.metadata.get(NAMESPACE_KEY)
        context.namespace.set(names[0] if names else "")
        context.metadata.set(call.metadata)
        code = 0
        try:
            frame = self._answer(call, at_once(call.request))
        except trio.WouldBlock:
            return False
        except Exception as error:
            first, others = translate(error, call.method.name, call.service.name)
            code = first.code
            frame = self._wire.fail(call.stream_id, first, others)
        self._outbox.post(frame)
        if self._observe is not None:
            now = trio.current_time()
            scope = trio.CancelScope()
            running = RunningCall(call.service.name, call.method.name, context.namespace.get(), now, scope)
            self._observe(running, 0.0, code)
        return True

    def _open_stream(self, call: Call) -> ServerStream:
        slots = CLIENT_SLOTS if call.method.client_streams else SINGLE_SLOT
        stream = ServerStream(slots, partial(self._send_on_stream, call.stream_id))
        if call.request is not None:
            stream.feed_nowait(call.request)
        if not call.method.client_streams:
            stream.end()
        return stream

    async def _send_on_stream(self, stream_id: int, message: Message) -> None:
        while self._outbox.held > STREAM_AHEAD:
            await self._wait_change()
        self._outbox.post(self._wire.send(stream_id, message))
        await trio.lowlevel.checkpoint()

    async def _run_call(
        self, call: Call, running: RunningCall, handler: Handler, argument: Message | ServerStream | None
    ) -> None:
        context.namespace.set(running.namespace)
        context.metadata.set(call.metadata)
        frame: bytes | None = None
        code = 0
        try:
            with running.scope:
                try:
                    frame = self._answer(call, await handler(argument))
                except Exception as error:
                    first, others = translate(error, running.method, running.service)
                    code = first.code
                    frame = self._wire.fail(call.stream_id, first, others)
            if frame is None and not running.given_up:
                code = DeadlineExceeded.code
                frame = self._wire.fail(call.stream_id, DeadlineExceeded())
            if frame is not None and not running.given_up:
                self._outbox.post(frame)
        finally:
            if running.stream is not None:
                running.stream.close()
            del self.calls[call.stream_id]
            self._held -= call.size
            self._settled()
        if self._observe is not None:
            self._observe(running, trio.current_time() - running.since, code)

    def _answer(self, call: Call, message: Message | None) -> bytes:
        if message is None:
            if call.method.server_streams:
                return self._wire.finish(call.stream_id)
            raise Unknown(f"method {call.method.name} gave neither a message nor an error")
        if not isinstance(message, call.method.response):
            raise Internal(f"method {call.method.name} gave a {type(message).__name__}")
        return self._wire.answer(call.stream_id, message)


def translate(error: Exception, method: str, service: str) -> tuple[ShimError, list[ShimError]]:
    """What the caller is told of an exception: the error, and those joined to it.

    A group that a handler's nursery made stands for what is in it.  Anything that is not of this package is a bug: it
    is logged with its traceback and told as Internal.
    """
    leaves = flatten(error)
    if all(isinstance(leaf, ShimError | trio.TooSlowError) for leaf in leaves):
        told = [leaf if isinstance(leaf, ShimError) else DeadlineExceeded() for leaf in leaves]
        return told[0], told[1:]
    log.error("%s of %s failed", method, service, exc_info=error)
    bug = next(leaf for leaf in leaves if not isinstance(leaf, ShimError))
    return Internal(f"{type(bug).__name__}: {bug}"), []


def flatten(error: Exception) -> list[Exception]:
    """The exceptions inside nested groups, in order; a plain one stands for itself."""
    if not isinstance(error, ExceptionGroup):
        return [error]
    return [leaf for inner in error.exceptions for leaf in flatten(inner)]
