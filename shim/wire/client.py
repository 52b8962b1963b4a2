"""The client's end of a connection, without any I/O (protocol.md 1.5, 1.6).

Ids are given in the order in which requests are made, so the bytes must be written in that order.  Nothing a peer can
send raises: an answer that makes no sense fails its own call, a frame for a stream that was dropped is passed over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
from google.protobuf.message import DecodeError, Message

from shim.errors import Internal, ResourceExhausted, ShimError
from shim.wire.envelope import NO_METADATA, encode_request, failure_of
from shim.wire.frames import (
    DATA,
    NO_DATA,
    REMOTE_CLOSED,
    REMOTE_OPEN,
    REQUEST,
    RESPONSE,
    Frame,
    FrameDecoder,
    Oversize,
    encode_frame,
    oversize_error,
)
from shim.wire.proto.ttrpc_pb2 import Response

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shim.wire.services import MethodSpec, ServiceSpec

LAST_ID: Final = 0xFFFF_FFFF


@attrs.frozen
class Answer:
    """The end of a call: a message, or an error, or neither when a server stream ended well."""

    stream_id: int
    message: Message | None = None
    error: ShimError | None = None


@attrs.frozen
class StreamItem:
    """One message of a server stream."""

    stream_id: int
    message: Message


Event = Answer | StreamItem


class ClientConnection:
    """One connection's state: the next id, and the calls that have not ended."""

    def __init__(self) -> None:
        self._decoder = FrameDecoder()
        self.next_id = 1
        self._open: dict[int, MethodSpec] = {}

    def start(
        self,
        service: ServiceSpec,
        method: MethodSpec,
        request: Message | None,
        timeout_ns: int = 0,
        metadata: Mapping[str, Sequence[str]] = NO_METADATA,
    ) -> tuple[int, bytes]:
        """A new call's id and its request frame.

        ResourceExhausted, with no id used, when the request is over the frame limit or all ids of the connection are
        used up.
        """
        stream_id = self.next_id
        if stream_id > LAST_ID:
            raise ResourceExhausted("all stream ids of this connection are used")
        flags = 0
        if method.streaming:
            flags = REMOTE_OPEN if method.client_streams else REMOTE_CLOSED
        body = encode_request(service.name, method.name, request, timeout_ns, metadata)
        frame = encode_frame(stream_id, REQUEST, flags, body)
        self.next_id = stream_id + 2
        self._open[stream_id] = method
        return stream_id, frame

    def send(self, stream_id: int, message: Message) -> bytes:
        """One message of a client stream; ResourceExhausted when it is too long to send."""
        return encode_frame(stream_id, DATA, 0, message.SerializeToString())

    def half_close(self, stream_id: int) -> bytes:
        """The end of a client stream."""
        return encode_frame(stream_id, DATA, REMOTE_CLOSED | NO_DATA, b"")

    def drop(self, stream_id: int) -> None:
        """Forgets a call; an answer that comes later is passed over.  Unknown ids are fine."""
        self._open.pop(stream_id, None)

    def receive(self, chunk: bytes) -> list[Event]:
        """What these bytes mean for the calls that are open, in order."""
        events: list[Event] = []
        for frame in self._decoder.feed(chunk):
            method = self._open.get(frame.stream_id)
            if method is None:
                continue
            if isinstance(frame, Oversize):
                events.append(self._end(frame.stream_id, error=oversize_error(frame.length)))
            elif frame.kind == RESPONSE:
                events.append(self._response(frame, method))
            elif frame.kind == DATA:
                events.extend(self._data(frame, method))
        return events

    def _end(self, stream_id: int, message: Message | None = None, error: ShimError | None = None) -> Answer:
        self._open.pop(stream_id, None)
        return Answer(stream_id, message, error)

    def _response(self, frame: Frame, method: MethodSpec) -> Answer:
        response = Response()
        try:
            response.ParseFromString(frame.data)
            failure = failure_of(response)
            if failure is not None:
                return self._end(frame.stream_id, error=failure)
            if method.server_streams:
                return self._end(frame.stream_id)
            message = method.response()
            message.ParseFromString(response.payload)
        except DecodeError as error:
            return self._end(frame.stream_id, error=Internal(f"ttrpc: error unmarshalling answer: {error}"))
        return self._end(frame.stream_id, message)

    def _data(self, frame: Frame, method: MethodSpec) -> list[Event]:
        if not method.server_streams:
            return [self._end(frame.stream_id, error=Internal("protocol error: data frame in place of an answer"))]
        events: list[Event] = []
        if not frame.flags & NO_DATA:
            message = method.response()
            try:
                message.ParseFromString(frame.data)
            except DecodeError as error:
                return [self._end(frame.stream_id, error=Internal(f"ttrpc: error unmarshalling answer: {error}"))]
            events.append(StreamItem(frame.stream_id, message))
        if frame.flags & REMOTE_CLOSED:
            events.append(self._end(frame.stream_id))
        return events
