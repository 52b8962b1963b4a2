"""Both ends of a connection joined in memory: calls, streams (protocol.md 1.6), and peers that send nonsense."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim.errors import DeadlineExceeded, Internal, InvalidArgument, NotFound, ResourceExhausted, ShimError, Unknown
from shim.wire.client import LAST_ID, Answer, ClientConnection, StreamItem
from shim.wire.frames import DATA, HEADER, MAX_LENGTH, NO_DATA, REMOTE_CLOSED, REQUEST, RESPONSE, encode_frame
from shim.wire.proto.ttrpc_pb2 import Request, Response
from shim.wire.server import Call, HalfClose, Refusal, ServerConnection, StreamData
from tests.fakes.echo import ECHO, ask, tell


class Pair:
    """Two real machines and the bytes between them."""

    def __init__(self) -> None:
        self.client = ClientConnection()
        self.server = ServerConnection({ECHO.name: ECHO})

    def start(self, method: str, text: str | None = "x") -> tuple[int, Call]:
        request = None if text is None else ask(text)
        stream_id, frame = self.client.start(ECHO, ECHO.methods[method], request)
        (event,) = self.server.receive(frame)
        assert isinstance(event, Call)
        return stream_id, event


def refused(event: object) -> ShimError:
    """The error inside a refusal, as a client reads it."""
    assert isinstance(event, Refusal)
    client = ClientConnection()
    while client.next_id < event.stream_id:
        client.next_id += 2
    client.start(ECHO, ECHO.methods["One"], ask())
    (answer,) = client.receive(event.frame)
    assert isinstance(answer, Answer)
    assert answer.error is not None
    return answer.error


def test_ids_are_odd_and_answers_come_in_any_order() -> None:
    pair = Pair()
    calls = [pair.start("One", text)[1] for text in "abc"]
    assert [call.stream_id for call in calls] == [1, 3, 5]
    for call in reversed(calls):
        assert isinstance(call.request, type(ask()))
        (answer,) = pair.client.receive(pair.server.answer(call.stream_id, tell(call.request.id)))
        assert answer == Answer(call.stream_id, tell(call.request.id))


def test_a_dropped_calls_answer_is_passed_over() -> None:
    pair = Pair()
    stream_id, call = pair.start("One")
    pair.client.drop(stream_id)
    assert pair.client.receive(pair.server.answer(call.stream_id, tell())) == []


def test_a_client_stream() -> None:
    pair = Pair()
    stream_id, call = pair.start("Upload", None)
    assert call.request is None
    for text in ("a", ""):
        message = ask(text)
        assert pair.server.receive(pair.client.send(stream_id, message)) == [StreamData(stream_id, message)]
    assert pair.server.receive(pair.client.half_close(stream_id)) == [HalfClose(stream_id)]
    (late,) = pair.server.receive(pair.client.send(stream_id, ask("c")))
    assert isinstance(refused(late), InvalidArgument)
    (answer,) = pair.client.receive(pair.server.answer(stream_id, tell("sum")))
    assert answer == Answer(stream_id, tell("sum"))
    (gone,) = pair.server.receive(pair.client.send(stream_id, ask("c")))
    assert isinstance(refused(gone), InvalidArgument)


def test_a_client_stream_may_open_with_a_message() -> None:
    assert Pair().start("Upload", "first")[1].request == ask("first")


def test_a_server_stream() -> None:
    pair = Pair()
    stream_id, call = pair.start("Download", "")
    assert call.request == ask("")
    for text in ("a", ""):
        frame = pair.server.send(stream_id, tell(text))
        assert pair.client.receive(frame) == [StreamItem(stream_id, tell(text))]
    assert pair.client.receive(pair.server.finish(stream_id)) == [Answer(stream_id)]


def test_a_server_stream_may_end_with_its_last_message() -> None:
    pair = Pair()
    stream_id, _ = pair.start("Download")
    frame = encode_frame(stream_id, DATA, REMOTE_CLOSED, tell("last").SerializeToString())
    assert pair.client.receive(frame) == [StreamItem(stream_id, tell("last")), Answer(stream_id)]


def test_a_server_stream_may_fail() -> None:
    pair = Pair()
    stream_id, _ = pair.start("Both")
    (answer,) = pair.client.receive(pair.server.fail(stream_id, NotFound("gone")))
    assert isinstance(answer, Answer)
    assert isinstance(answer.error, NotFound)


def test_a_closing_data_frame_with_a_body_is_delivered_and_then_refused() -> None:
    pair = Pair()
    stream_id, _ = pair.start("Upload")
    events = pair.server.receive(encode_frame(stream_id, DATA, REMOTE_CLOSED, ask("z").SerializeToString()))
    assert events[:2] == [StreamData(stream_id, ask("z")), HalfClose(stream_id)]
    assert isinstance(refused(events[2]), InvalidArgument)


def test_data_for_a_unary_call_is_refused() -> None:
    pair = Pair()
    stream_id, call = pair.start("One")
    (event,) = pair.server.receive(pair.client.send(stream_id, ask()))
    assert isinstance(refused(event), InvalidArgument)
    assert call.method.name == "One"


def test_data_that_does_not_parse_ends_the_stream() -> None:
    pair = Pair()
    stream_id, _ = pair.start("Both")
    (event,) = pair.server.receive(encode_frame(stream_id, DATA, 0, b"\xff\xff"))
    assert isinstance(event, Refusal)
    assert event.ends
    assert isinstance(refused(event), Internal)


def test_a_full_buffer_is_an_invalid_argument() -> None:
    pair = Pair()
    stream_id, _ = pair.start("Upload")
    (answer,) = pair.client.receive(pair.server.overflow(stream_id))
    assert isinstance(answer, Answer)
    assert isinstance(answer.error, InvalidArgument)
    assert answer.error.message.startswith("data handling error: ")


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (encode_frame(1, DATA, 0, b""), Internal),
        (encode_frame(1, RESPONSE, 0, b"\xff\xff"), Internal),
        (encode_frame(1, RESPONSE, 0, Response(payload=b"\xff\xff").SerializeToString()), Internal),
        (HEADER.pack(MAX_LENGTH + 1, 1, RESPONSE, 0) + bytes(MAX_LENGTH + 1), ResourceExhausted),
    ],
    ids=["data", "no response", "no message", "too long"],
)
def test_an_answer_without_sense_fails_its_own_call(frame: bytes, error: type[ShimError]) -> None:
    client = ClientConnection()
    client.start(ECHO, ECHO.methods["One"], ask())
    client.start(ECHO, ECHO.methods["One"], ask())
    (answer,) = client.receive(frame)
    assert isinstance(answer, Answer)
    assert isinstance(answer.error, error)
    assert client.receive(ServerConnection({}).answer(3, tell())) == [Answer(3, tell())]


def test_a_deadline_of_the_server_is_a_plain_deadline_error() -> None:
    client = ClientConnection()
    client.start(ECHO, ECHO.methods["One"], ask())
    (answer,) = client.receive(ServerConnection({}).fail(1, DeadlineExceeded()))
    assert isinstance(answer, Answer)
    assert isinstance(answer.error, DeadlineExceeded)
    assert answer.error.message == ""


def test_a_status_of_code_zero_is_a_success() -> None:
    client = ClientConnection()
    client.start(ECHO, ECHO.methods["One"], ask())
    response = Response(payload=tell("ok").SerializeToString())
    response.status.SetInParent()
    assert client.receive(encode_frame(1, RESPONSE, 0, response.SerializeToString())) == [Answer(1, tell("ok"))]


def test_a_request_over_the_limit_uses_no_id() -> None:
    client = ClientConnection()
    with pytest.raises(ResourceExhausted):
        client.start(ECHO, ECHO.methods["One"], ask("x" * MAX_LENGTH))
    assert client.start(ECHO, ECHO.methods["One"], ask())[0] == 1


def test_a_connections_ids_end() -> None:
    client = ClientConnection()
    client.next_id = LAST_ID
    assert client.start(ECHO, ECHO.methods["One"], ask())[0] == LAST_ID
    with pytest.raises(ResourceExhausted):
        client.start(ECHO, ECHO.methods["One"], ask())


def test_an_answer_over_the_limit_is_refused_and_can_still_be_a_failure() -> None:
    pair = Pair()
    stream_id, _ = pair.start("One")
    with pytest.raises(ResourceExhausted) as caught:
        pair.server.answer(stream_id, tell("x" * MAX_LENGTH))
    (answer,) = pair.client.receive(pair.server.fail(stream_id, caught.value))
    assert isinstance(answer, Answer)
    assert isinstance(answer.error, ResourceExhausted)


def test_a_failures_text_is_cut_and_made_unicode() -> None:
    pair = Pair()
    stream_id, _ = pair.start("One")
    (answer,) = pair.client.receive(pair.server.fail(stream_id, Unknown("\udcff" + "y" * MAX_LENGTH)))
    assert isinstance(answer, Answer)
    assert answer.error is not None
    assert 1000 < len(answer.error.message) < 100_000


def test_the_connection_lives_after_each_fault() -> None:
    server = ServerConnection({ECHO.name: ECHO})
    junk = [
        encode_frame(2, REQUEST, 0, b""),
        encode_frame(7, REQUEST, 0, b"\xff"),
        encode_frame(7, REQUEST, 0, b"\xff"),
        encode_frame(9, DATA, NO_DATA, b""),
        HEADER.pack(MAX_LENGTH + 1, 11, REQUEST, 0) + bytes(MAX_LENGTH + 1),
    ]
    events = server.receive(b"".join(junk))
    assert [type(event) for event in events] == [Refusal] * len(junk)
    good = Request(service=ECHO.name, method="One", payload=ask("y").SerializeToString())
    (event,) = server.receive(encode_frame(13, REQUEST, 0, good.SerializeToString()))
    assert isinstance(event, Call)
    assert event.request == ask("y")


FRAME_BYTES = st.builds(
    encode_frame, st.integers(0, 9), st.integers(0, 4), st.integers(0, 7), st.binary(max_size=30) | st.just(b"\n\0")
)


@given(st.lists(FRAME_BYTES | st.binary(max_size=30), max_size=10), st.integers(1, 50))
def test_no_bytes_make_either_end_raise(pieces: list[bytes], cut: int) -> None:
    pair = Pair()
    for method in ("One", "Upload", "Download", "Both"):
        pair.start(method)
    data = b"".join(pieces)
    for at in range(0, len(data), cut):
        pair.server.receive(data[at : at + cut])
        pair.client.receive(data[at : at + cut])
