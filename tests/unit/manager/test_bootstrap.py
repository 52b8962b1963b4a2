"""Answers of `start` in every form that a 2.4 daemon reads, and what is none of them."""

from __future__ import annotations

import pytest
from google.protobuf.any_pb2 import Any
from hypothesis import given
from hypothesis import strategies as st

from shim.errors import InvalidArgument, ShimError, Unimplemented
from shim.manager.bootstrap import (
    SHOWN_BYTES,
    Answer,
    answer_to_json,
    legacy_parameters,
    parameters,
    parse_answer,
    shown,
    wants_legacy_parameters,
)
from shim.wire.proto.bootstrap_pb2 import BootstrapParams, BootstrapResult, Extension, LogLevel

ADDRESS = "unix:///run/containerd/s/f30a6ac77c2d63563d2787f841eb9b69db0233a8717b077dd7b1a9cbca59834d"
MOUNTS = Any(type_url="type.googleapis.com/containerd.types.MountCapabilities", value=b"\n\x04loop")


def result(**fields: object) -> bytes:
    message = BootstrapResult(**{"version": 3, "address": ADDRESS, "protocol": "ttrpc", **fields})  # type: ignore[arg-type]
    return message.SerializeToString()


@pytest.mark.parametrize(
    ("output", "answer"),
    [
        (result(), Answer(3, ADDRESS)),
        (result(version=2), Answer(2, ADDRESS)),
        (result(protocol=""), Answer(3, ADDRESS)),
        (result(protocol="TTRPC"), Answer(3, ADDRESS)),
        (result(metadata={"a": "b"}), Answer(3, ADDRESS, metadata={"a": "b"})),
        (result(extensions=[Extension(value=MOUNTS)]), Answer(3, ADDRESS, extensions=(MOUNTS,))),
        (f'{{"version":2,"address":"{ADDRESS}","protocol":"ttrpc"}}'.encode(), Answer(2, ADDRESS)),
        (f'{{"version":3,"address":"{ADDRESS}","protocol":"TTRPC"}}\n'.encode(), Answer(3, ADDRESS)),
        (f'{{"version":3,"address":"{ADDRESS}"}}'.encode(), Answer(3, ADDRESS)),
        (ADDRESS.encode(), Answer(2, ADDRESS)),
        (f"{ADDRESS}\n".encode(), Answer(2, ADDRESS)),
        (f"  {ADDRESS} \n".encode(), Answer(2, ADDRESS)),
        (b"vsock://3:1024", Answer(2, "vsock://3:1024")),
        (b"/containerd-shim/abstract.sock", Answer(2, "/containerd-shim/abstract.sock")),
    ],
)
def test_all_forms_are_read(output: bytes, answer: Answer) -> None:
    assert parse_answer(output) == answer


@pytest.mark.parametrize(
    ("output", "error", "text"),
    [
        (b"", InvalidArgument, "answered nothing"),
        (b" \n", InvalidArgument, "answered nothing"),
        (b"panic: oh no\ngoroutine 1", InvalidArgument, "no address, but: panic: oh no; goroutine 1"),
        (f"level=warning msg=x\n{ADDRESS}".encode(), InvalidArgument, "level=warning msg=x; unix://"),
        (b"\xff\xfe\x00junk", InvalidArgument, r"no address, but: \\xff"),
        (b"unix://relative", InvalidArgument, "not absolute"),
        (b"npipe://x", InvalidArgument, "unknown scheme npipe"),
        (b'{"version":1,"address":"unix:///x"}', InvalidArgument, "without version 2 or more"),
        (b'{"version":true,"address":"unix:///x"}', InvalidArgument, "without version 2 or more"),
        (b'{"version":3}', InvalidArgument, "without version 2 or more"),
        (b'{"version":3,"address":""}', InvalidArgument, "no address"),
        (b'{"version":3,"address":"unix:///x","metadata":[1]}', InvalidArgument, "metadata"),
        (b'{"version":3,"address":"unix:///x","extensions":[1]}', InvalidArgument, "extensions"),
        (b'{"version":4,"address":"unix:///x","protocol":"ttrpc"}', Unimplemented, "version 4"),
        (b'{"version":3,"address":"unix:///x","protocol":"grpc"}', Unimplemented, "grpc"),
        (result(version=0), Unimplemented, "version 0"),
        (result(version=4), Unimplemented, "version 4"),
        (result(protocol="grpc"), Unimplemented, "grpc"),
        (result(address="two\nlines"), InvalidArgument, "no address"),
    ],
)
def test_what_is_no_answer_is_shown(output: bytes, error: type[ShimError], text: str) -> None:
    with pytest.raises(error, match=text):
        parse_answer(output)


@given(st.binary(max_size=300))
def test_any_bytes_give_an_answer_or_one_of_our_errors(output: bytes) -> None:
    try:
        said = parse_answer(output).address
    except ShimError as error:
        said = str(error)
    assert said.isprintable()
    assert 0 < len(said) < 6 * SHOWN_BYTES


@pytest.mark.parametrize("answer", [Answer(2, ADDRESS), Answer(3, ADDRESS, "ttrpc", {"a": "b"}, (MOUNTS,))])
def test_bootstrap_json_is_read_back_whole(answer: Answer) -> None:
    assert parse_answer(answer_to_json(answer)) == answer


def test_parameters_say_what_a_daemon_says() -> None:
    options = Any(type_url="containerd.runc.v1.Options", value=b"\x01")
    data = parameters(
        "t1", "ns", address="/s/m.sock", ttrpc_address="/s/e.sock", binary="/bin/x", debug=True, options=options
    )
    message = BootstrapParams.FromString(data)
    assert message.instance_id == "t1"
    assert message.namespace == "ns"
    assert message.log_level == LogLevel.LOG_LEVEL_DEBUG
    assert message.containerd_grpc_address == "/s/m.sock"
    assert message.containerd_ttrpc_address == "/s/e.sock"
    assert message.containerd_binary == "/bin/x"
    assert message.extensions[0].value == options
    assert not message.HasField("socket_dir")


def test_legacy_parameters_are_the_bare_any_or_nothing() -> None:
    options = Any(type_url="containerd.runc.v1.Options", value=b"\x01")
    assert legacy_parameters(None) == b""
    assert Any.FromString(legacy_parameters(options)) == options


def test_an_old_shim_is_known_by_what_it_took_for_a_type() -> None:
    said = b"io.containerd.runc.v2: type with url t16: not found"
    assert wants_legacy_parameters(said, "t16")
    assert not wants_legacy_parameters(said, "t1")
    assert not wants_legacy_parameters(b"exec format error", "t16")


def test_shown_is_bounded_and_on_one_line() -> None:
    assert shown(b"a\nb\n") == "a; b"
    assert shown(b"x" * 10_000) == "x" * SHOWN_BYTES + "..."
    assert shown(b"\x1b[31mred") == r"\x1b[31mred"
