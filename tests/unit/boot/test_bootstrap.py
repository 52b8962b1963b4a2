"""Each generation's input and answer; each answer is read the way that generation reads it (field-faults P1)."""

from __future__ import annotations

import json

import pytest
from google.protobuf.any_pb2 import Any
from hypothesis import given
from hypothesis import strategies as st

from shim.boot.bootstrap import MAX_INPUT_BYTES, Caller, StartInput, answer, read_input, read_options
from shim.boot.flags import Flags
from shim.errors import InvalidArgument
from shim.wire.proto.bootstrap_pb2 import BootstrapParams, BootstrapResult, Extension
from shim.wire.proto.mount_pb2 import MountCapabilities
from shim.wire.proto.runc_options_pb2 import Options
from shim.wire.proto.runtime_options_pb2 import Options as RuntimeOptions
from shim.wire.typeurl import pack, unpack

FLAGS = Flags(namespace="default", id="t1", address="/x/g.sock")
ADDRESS = "unix:///run/containerd/s/abc"
OPTIONS = pack(Options(systemd_cgroup=True))
OLD = {"TTRPC_ADDRESS": "/x/t.sock", "MAX_SHIM_VERSION": "2"}
OLDEST = {"TTRPC_ADDRESS": "/x/t.sock"}


def params(**fields: object) -> bytes:
    message = BootstrapParams(
        instance_id="t1",
        namespace="default",
        containerd_ttrpc_address="/p/t.sock",
        containerd_grpc_address="/p/g.sock",
        extensions=[
            Extension(value=Any(type_url="type.googleapis.com/other.Thing", value=b"x")),
            Extension(value=OPTIONS),
        ],
        **fields,  # type: ignore[arg-type]  # test data
    )
    return message.SerializeToString()


@pytest.mark.parametrize(
    ("data", "environment", "expected"),
    [
        (b"", OLDEST, StartInput(Caller.TEXT, None, "/x/g.sock", "/x/t.sock")),
        (OPTIONS.SerializeToString(), OLDEST, StartInput(Caller.TEXT, OPTIONS, "/x/g.sock", "/x/t.sock")),
        (b"", OLD, StartInput(Caller.JSON, None, "/x/g.sock", "/x/t.sock")),
        (OPTIONS.SerializeToString(), OLD, StartInput(Caller.JSON, OPTIONS, "/x/g.sock", "/x/t.sock")),
        (params(), OLD, StartInput(Caller.BOOTSTRAP, OPTIONS, "/x/g.sock", "/p/t.sock")),
        (params(), {}, StartInput(Caller.BOOTSTRAP, OPTIONS, "/x/g.sock", "/p/t.sock")),
        (
            params(socket_dir="/d", log_level=-4),
            OLD,
            StartInput(Caller.BOOTSTRAP, OPTIONS, "/x/g.sock", "/p/t.sock", "/d", debug=True),
        ),
    ],
)
def test_what_each_generation_says(data: bytes, environment: dict[str, str], expected: StartInput) -> None:
    told = read_input(data, FLAGS, environment)
    assert told == expected
    assert told.wants_address_file is (told.caller is not Caller.BOOTSTRAP)


@pytest.mark.parametrize(("level", "debug"), [(-8, True), (-4, True), (-3, False), (0, False), (12, False)])
def test_log_level_of_the_parameters(level: int, debug: bool) -> None:
    assert read_input(params(log_level=level), FLAGS, {}).debug is debug


def test_options_of_another_runtime_are_found_too() -> None:
    value = pack(RuntimeOptions(config_path="/c"), "type.googleapis.com/")
    message = BootstrapParams(instance_id="t1", namespace="default", extensions=[Extension(value=value)])
    assert read_input(message.SerializeToString(), FLAGS, {}).options == value


def test_an_any_parses_as_parameters_too_and_is_still_an_any() -> None:
    data = Any(type_url="t1", value=b"x").SerializeToString()
    assert BootstrapParams.FromString(data).instance_id == "t1"
    assert read_input(data, FLAGS, OLD).caller is Caller.JSON


@pytest.mark.parametrize(
    "data",
    [
        b"junk",
        b"\0",
        b"{}",
        b'{"version":2}',
        b"\x0a\xff",
        Any(value=b"x").SerializeToString(),
        OPTIONS.SerializeToString() + b"\n",
        b"x" * (MAX_INPUT_BYTES + 1),
    ],
)
def test_junk_is_refused_in_one_line(data: bytes) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read_input(data, FLAGS, OLD)
    assert "input" in caught.value.message
    assert "\n" not in caught.value.message


def test_parameters_for_somebody_else_are_refused_by_name() -> None:
    with pytest.raises(InvalidArgument, match="'t1' in 'default'"):
        read_input(params(), Flags(namespace="default", id="t2"), {})


@given(st.binary(max_size=64))
def test_no_input_raises_anything_else(data: bytes) -> None:
    try:
        read_input(data, FLAGS, {})
    except InvalidArgument:
        return
    assert not data or read_options(data) is not None


def test_answer_as_16_reads_it() -> None:
    assert answer(Caller.TEXT, ADDRESS).decode().strip() == ADDRESS


def test_answer_as_17_reads_it() -> None:
    assert json.loads(answer(Caller.JSON, ADDRESS)) == {"version": 2, "address": ADDRESS, "protocol": "ttrpc"}


def test_answer_as_24_reads_it() -> None:
    result = BootstrapResult.FromString(answer(Caller.BOOTSTRAP, ADDRESS))
    assert (result.version, result.address, result.protocol) == (3, ADDRESS, "ttrpc")
    [claim] = result.extensions
    assert claim.value.type_url == "type.googleapis.com/containerd.types.MountCapabilities"
    assert unpack(claim.value, MountCapabilities) == MountCapabilities()


def test_older_answers_do_not_parse_as_the_newer_form() -> None:
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(answer(Caller.BOOTSTRAP, ADDRESS))
