"""Our server and client against frames that the Go shim wrote (tests/data/ttrpc_frames.txt)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import attrs
import pytest

from shim.errors import FailedPrecondition, NotFound, ShimError
from shim.wire.client import Answer, ClientConnection
from shim.wire.frames import Frame, FrameDecoder
from shim.wire.proto.task_pb2 import ConnectRequest, ShutdownRequest, StateRequest, WaitRequest
from shim.wire.proto.ttrpc_pb2 import Response
from shim.wire.server import Call, Refusal, ServerConnection
from shim.wire.services import TASK_V3

RECORDED: Final = Path(__file__).parents[2] / "data" / "ttrpc_frames.txt"
# Where the text is the protocol library's own, or a sentence that means the same, only its start is compared.
PREFIXES: Final = ("service ", "method ", "unmarshal request error: ", "ttrpc: error unmarshalling payload: ")


@attrs.frozen
class Case:
    name: str
    asked: list[bytes]
    answered: list[bytes]


def read_cases() -> dict[str, Case]:
    cases = {}
    for block in RECORDED.read_text(encoding="utf-8").split("\n\n")[1:]:
        title, *lines = block.strip().splitlines()
        asked = [read_frame(line[2:]) for line in lines if line.startswith(">")]
        answered = [read_frame(line[2:]) for line in lines if line.startswith("<")]
        case = Case(title.removeprefix("# "), asked, answered)
        cases[case.name] = case
    return cases


def read_frame(text: str) -> bytes:
    match = re.fullmatch(r"([0-9a-f]+)(?: \+ (\d+) zero bytes)?", text)
    assert match is not None
    return bytes.fromhex(match[1]) + bytes(int(match[2] or 0))


CASES: Final = read_cases()
REFUSED: Final = [
    "unknown service",
    "unknown method",
    "even id",
    "id used twice",
    "data on no stream",
    "body that is no request",
    "payload that is no message",
    "unknown kind of frame",
    "a request of 4 MiB and one byte",
]


def frames_of(data: bytes) -> list[Frame]:
    found = FrameDecoder().feed(data)
    return [frame for frame in found if isinstance(frame, Frame)]


def described(data: bytes) -> list[tuple[int, int, int, int, str]]:
    """What is compared of answers: stream id, kind, flags, status code and the known part of the text."""
    rows = []
    for frame in frames_of(data):
        status = Response.FromString(frame.data).status
        text = next((prefix for prefix in PREFIXES if status.message.startswith(prefix)), "")
        rows.append((frame.stream_id, frame.kind, frame.flags, status.code, text))
    return rows


@pytest.mark.parametrize("name", REFUSED)
def test_our_server_refuses_what_the_go_shim_refuses(name: str) -> None:
    case = CASES[name]
    events = ServerConnection({TASK_V3.name: TASK_V3}).receive(b"".join(case.asked))
    refusals = [event for event in events if isinstance(event, Refusal)]
    assert len(refusals) == len(events)
    assert described(b"".join(refusal.frame for refusal in refusals)) == described(b"".join(case.answered))


def test_texts_that_name_something_are_the_go_shims() -> None:
    for name in ("unknown service", "unknown method"):
        (event,) = ServerConnection({TASK_V3.name: TASK_V3}).receive(b"".join(CASES[name].asked))
        assert isinstance(event, Refusal)
        assert event.frame == CASES[name].answered[0]


CALLS: Final = [
    ("state of a task that is not there", "State", StateRequest(id="nope"), 5_000_000_000),
    ("connect answered", "Connect", ConnectRequest(id="cap"), 0),
    ("wait for a task that is not there", "Wait", WaitRequest(id="nope"), 0),
    ("shutdown: an empty answer", "Shutdown", ShutdownRequest(id="cap", now=True), 0),
]


@pytest.mark.parametrize(("name", "method", "request_", "timeout_ns"), CALLS, ids=[call[1] for call in CALLS])
def test_our_client_writes_and_our_server_reads_the_recorded_requests(
    name: str, method: str, request_: StateRequest, timeout_ns: int
) -> None:
    spec = TASK_V3.methods[method]
    client = ClientConnection()
    metadata = {"Containerd-Namespace-TTRPC": ["capns"]}
    assert client.start(TASK_V3, spec, request_, timeout_ns, metadata) == (1, CASES[name].asked[0])
    (call,) = ServerConnection({TASK_V3.name: TASK_V3}).receive(CASES[name].asked[0])
    assert isinstance(call, Call)
    assert call.method is spec
    assert call.request == request_
    assert call.timeout_ns == timeout_ns
    assert call.metadata == {"containerd-namespace-ttrpc": ["capns"]}


def test_our_server_writes_the_recorded_answers() -> None:
    server = ServerConnection({TASK_V3.name: TASK_V3})
    missing = NotFound("container not created")
    assert server.fail(1, missing) == CASES["state of a task that is not there"].answered[0]
    response = TASK_V3.methods["Shutdown"].response()
    assert server.answer(1, response) == CASES["shutdown: an empty answer"].answered[0]


def test_our_client_reads_the_recorded_answers() -> None:
    def answer(name: str, method: str) -> Answer:
        client = ClientConnection()
        client.start(TASK_V3, TASK_V3.methods[method], StateRequest())
        (event,) = client.receive(CASES[name].answered[0])
        assert isinstance(event, Answer)
        return event

    failed = answer("state of a task that is not there", "State")
    assert isinstance(failed.error, NotFound)
    assert failed.error.message == "container not created"
    assert failed.message is None
    empty = answer("shutdown: an empty answer", "Shutdown")
    assert empty.error is None
    assert empty.message == TASK_V3.methods["Shutdown"].response()
    connected = answer("connect answered", "Connect")
    assert connected.message is not None
    assert connected.error is None


def test_joined_errors_travel_as_details() -> None:
    others: list[ShimError] = [FailedPrecondition("b"), NotFound("c")]
    (frame,) = frames_of(ServerConnection({}).fail(1, NotFound("a"), others))
    status = Response.FromString(frame.data).status
    assert (status.code, status.message) == (5, "a: not found")
    assert [detail.type_url for detail in status.details] == ["type.googleapis.com/google.rpc.Status"] * 2
