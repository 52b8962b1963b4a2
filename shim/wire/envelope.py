"""The envelope messages of ttrpc and the text of failures inside them (protocol.md 1.2, 1.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shim.errors import DeadlineExceeded, ShimError, from_status, wire_text
from shim.wire.frames import MAX_LENGTH, RESPONSE, encode_frame
from shim.wire.proto.rpc_status_pb2 import Status
from shim.wire.proto.ttrpc_pb2 import KeyValue, Request, Response
from shim.wire.typeurl import GOOGLE_PREFIX, pack

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from google.protobuf.message import Message

NAMESPACE_KEY: Final = "containerd-namespace-ttrpc"
LONGEST_TEXT: Final = 64 << 10
NO_METADATA: Final[Mapping[str, Sequence[str]]] = {}


def encode_request(
    service: str,
    method: str,
    request: Message | None,
    timeout_ns: int,
    metadata: Mapping[str, Sequence[str]],
) -> bytes:
    """A Request; `timeout_ns` 0 means no deadline, keys are lower-cased, a None message leaves the payload out."""
    envelope = Request(service=service, method=method, timeout_nano=timeout_ns)
    if request is not None:
        envelope.payload = request.SerializeToString()
    for key, values in metadata.items():
        lowered = key.lower()
        envelope.metadata.extend([KeyValue(key=lowered, value=value) for value in values])
    return envelope.SerializeToString()


def read_metadata(pairs: Iterable[KeyValue]) -> Mapping[str, Sequence[str]]:
    """The pairs by key; a key that repeats is a list, in order."""
    found: dict[str, list[str]] = {}
    for pair in pairs:
        found.setdefault(pair.key, []).append(pair.value)
    return found or NO_METADATA


def encode_answer(stream_id: int, message: Message) -> bytes:
    """The frame of a success: no status, and no payload when the message is empty.

    ResourceExhausted when it is over the frame limit; nothing has been sent then.
    """
    body = Response(payload=message.SerializeToString()).SerializeToString()
    return encode_frame(stream_id, RESPONSE, 0, body)


def encode_failure(stream_id: int, error: ShimError, others: Sequence[ShimError] = ()) -> bytes:
    """The frame of a failure; `others` are errors joined to the first, and travel as details.

    Never refuses: a text is cut when it is absurdly long, and what is not Unicode in it is replaced.
    """
    status = to_status(error)
    status.details.extend([pack(to_status(other), GOOGLE_PREFIX) for other in others])
    body = Response(status=status).SerializeToString()
    if len(body) > MAX_LENGTH:
        body = Response(status=to_status(error)).SerializeToString()
    return encode_frame(stream_id, RESPONSE, 0, body)


def encode_refusal(stream_id: int, error: ShimError) -> bytes:
    """The frame of a failure of the protocol itself: its text stands as it is, without the class at its end."""
    status = Status(code=error.code, message=error.message[:LONGEST_TEXT])
    return encode_frame(stream_id, RESPONSE, 0, Response(status=status).SerializeToString())


def to_status(error: ShimError) -> Status:
    """The error's number and its text as clients expect it."""
    text = wire_text(error).encode("utf-8", "replace")[:LONGEST_TEXT].decode("utf-8", "ignore")
    return Status(code=error.code, message=text)


def failure_of(response: Response) -> ShimError | None:
    """The error in a Response, None for success (status absent, or code 0)."""
    if not response.HasField("status") or response.status.code == 0:
        return None
    status = response.status
    if status.code == DeadlineExceeded.code and status.message == DeadlineExceeded.suffix:
        return DeadlineExceeded()
    return from_status(status.code, status.message)
