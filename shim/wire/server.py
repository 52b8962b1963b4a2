"""The server's end of a connection, without any I/O: bytes in, events out; answers in, bytes out.

All decisions of protocol.md 1.4 and 1.6 about what a frame means are here; who runs a call, for how long, and who
writes the bytes is the caller's matter.  Nothing a peer can send raises: it becomes an event, mostly a `Refusal` that
carries the frame to be written back.  A connection outlives every fault of a single frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from google.protobuf.message import DecodeError, Message

from shim.errors import Internal, InvalidArgument, ShimError, Unimplemented
from shim.wire.envelope import encode_answer, encode_failure, encode_refusal, read_metadata
from shim.wire.frames import (
    DATA,
    NO_DATA,
    REMOTE_CLOSED,
    REQUEST,
    Frame,
    FrameDecoder,
    Oversize,
    encode_frame,
    oversize_error,
)
from shim.wire.proto.ttrpc_pb2 import Request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shim.wire.services import MethodSpec, ServiceSpec


@attrs.frozen
class Call:
    """A request to be run.  `request` is None only for a client stream that opened without a message.

    `timeout_ns` is what was left of the caller's time when it sent, 0 for no deadline; `size` counts the frame's bytes.
    """

    stream_id: int
    service: ServiceSpec
    method: MethodSpec
    request: Message | None
    timeout_ns: int
    metadata: Mapping[str, Sequence[str]]
    size: int


@attrs.frozen
class StreamData:
    """A further message on an open stream."""

    stream_id: int
    message: Message


@attrs.frozen
class HalfClose:
    """The peer sends no more on this stream."""

    stream_id: int


@attrs.frozen
class Refusal:
    """A frame to be written back; `ends` when the call that ran on this stream is to be given up."""

    stream_id: int
    frame: bytes
    ends: bool = False


Event = Call | StreamData | HalfClose | Refusal


@attrs.define
class _Open:
    method: MethodSpec
    half_closed: bool = False


class ServerConnection:
    """One connection's state: the last request id and the streams that are open."""

    def __init__(self, services: Mapping[str, ServiceSpec]) -> None:
        self._services = services
        self._decoder = FrameDecoder()
        self._last_id = 0
        self._open: dict[int, _Open] = {}

    @property
    def held(self) -> int:
        """Bytes kept of a frame that has not ended."""
        return self._decoder.held

    def receive(self, chunk: bytes) -> list[Event]:
        """What these bytes mean, in the order of the socket."""
        events: list[Event] = []
        for frame in self._decoder.feed(chunk):
            if isinstance(frame, Oversize):
                events.append(self._refuse(frame.stream_id, oversize_error(frame.length)))
            elif frame.stream_id % 2 != 1:
                events.append(self._refuse(frame.stream_id, InvalidArgument("stream ids of a client must be odd")))
            elif frame.kind == REQUEST:
                events.append(self._request(frame))
            elif frame.kind == DATA:
                events.extend(self._data(frame))
        return events

    def _refuse(self, stream_id: int, error: ShimError, *, ends: bool = False) -> Refusal:
        return Refusal(stream_id, encode_refusal(stream_id, error), ends)

    def _request(self, frame: Frame) -> Event:
        stream_id = frame.stream_id
        if stream_id <= self._last_id:
            return self._refuse(stream_id, InvalidArgument("stream ids cannot be reused and must increase"))
        self._last_id = stream_id
        envelope = Request()
        try:
            envelope.ParseFromString(frame.data)
        except DecodeError as error:
            return self._refuse(stream_id, InvalidArgument(f"unmarshal request error: {error}"))
        service = self._services.get(envelope.service)
        if service is None:
            return self._refuse(stream_id, Unimplemented(f"service {envelope.service}"))
        method = service.methods.get(envelope.method)
        if method is None:
            return self._refuse(stream_id, Unimplemented(f"method {envelope.method}"))
        payload = envelope.payload
        request: Message | None = None
        if payload or not method.client_streams:
            request = method.request()
            try:
                request.ParseFromString(payload)
            except DecodeError as error:
                return self._refuse(stream_id, Internal(f"ttrpc: error unmarshalling payload: {error}"))
        if method.client_streams or method.server_streams:
            self._open[stream_id] = _Open(method, half_closed=not method.client_streams)
        metadata = read_metadata(envelope.metadata)
        return Call(stream_id, service, method, request, envelope.timeout_nano, metadata, len(frame.data))

    def _data(self, frame: Frame) -> list[Event]:
        stream_id = frame.stream_id
        stream = self._open.get(stream_id)
        if stream is None:
            return [self._refuse(stream_id, InvalidArgument("the stream is no longer active"))]
        events: list[Event] = []
        if not frame.flags & NO_DATA:
            if stream.half_closed:
                return [self._refuse(stream_id, InvalidArgument("data handling error: the stream was closed"))]
            message = stream.method.request()
            try:
                message.ParseFromString(frame.data)
            except DecodeError as error:
                del self._open[stream_id]
                text = f"ttrpc: error unmarshalling payload: {error}"
                return [self._refuse(stream_id, Internal(text), ends=True)]
            events.append(StreamData(stream_id, message))
        if frame.flags & REMOTE_CLOSED:
            if not stream.half_closed:
                stream.half_closed = True
                events.append(HalfClose(stream_id))
            if frame.data:
                text = "a data frame that closes the stream cannot carry data"
                events.append(self._refuse(stream_id, InvalidArgument(text)))
        return events

    def answer(self, stream_id: int, message: Message) -> bytes:
        """The frame of a call's one result; ResourceExhausted (nothing changed) when it is too long to send."""
        frame = encode_answer(stream_id, message)
        self._open.pop(stream_id, None)
        return frame

    def fail(self, stream_id: int, error: ShimError, others: Sequence[ShimError] = ()) -> bytes:
        """The frame of a call's failure."""
        self._open.pop(stream_id, None)
        return encode_failure(stream_id, error, others)

    def send(self, stream_id: int, message: Message) -> bytes:
        """One message of a server stream; ResourceExhausted when it is too long to send."""
        return encode_frame(stream_id, DATA, 0, message.SerializeToString())

    def finish(self, stream_id: int) -> bytes:
        """The end of a server stream that went well."""
        self._open.pop(stream_id, None)
        return encode_frame(stream_id, DATA, REMOTE_CLOSED | NO_DATA, b"")

    def refuse(self, stream_id: int, error: ShimError) -> bytes:
        """The frame for a call that nobody runs, or that broke the protocol; its text goes out as it is."""
        self._open.pop(stream_id, None)
        return encode_refusal(stream_id, error)

    def overflow(self, stream_id: int) -> bytes:
        """The frame for a stream whose messages nobody takes; the stream is over."""
        return self.refuse(stream_id, InvalidArgument("data handling error: the stream's buffer is full"))
