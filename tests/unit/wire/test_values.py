"""Type URLs, times, addresses and service tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim.errors import InvalidArgument
from shim.wire.address import HybridVsockAddress, UnixAddress, VsockAddress, parse_address
from shim.wire.proto.mount_pb2 import MountCapabilities
from shim.wire.proto.runc_options_pb2 import CheckpointOptions, Options
from shim.wire.services import EVENTS, MOUNTS, SANDBOX, TASK_V2, TASK_V3
from shim.wire.times import GO_ZERO_SECONDS, nanoseconds, timestamp
from shim.wire.typeurl import GOOGLE_PREFIX, SPEC_URL, is_a, pack, pack_json, unpack


def test_a_packed_message_has_its_bare_name() -> None:
    assert pack(Options(root="/r")).type_url == "containerd.runc.v1.Options"
    assert pack(MountCapabilities(), GOOGLE_PREFIX).type_url == "type.googleapis.com/containerd.types.MountCapabilities"


@pytest.mark.parametrize("prefix", ["", GOOGLE_PREFIX, "a/b/"])
def test_any_prefix_is_read(prefix: str) -> None:
    packed = pack(Options(root="/r"), prefix)
    assert is_a(packed, Options)
    assert not is_a(packed, CheckpointOptions)
    assert unpack(packed, CheckpointOptions, Options) == Options(root="/r")


def test_an_unknown_url_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgument, match=SPEC_URL):
        unpack(pack_json(SPEC_URL, b"{}"), Options)


def test_a_damaged_value_is_refused() -> None:
    packed = pack(Options())
    packed.value = b"\xff"
    with pytest.raises(InvalidArgument):
        unpack(packed, Options)


def test_no_time_is_gos_zero_time() -> None:
    assert timestamp(None).seconds == GO_ZERO_SECONDS
    assert nanoseconds(timestamp(None)) is None


@given(st.integers(-(10**18), 2 * 10**18))
def test_times_go_and_come_back(ns: int) -> None:
    sent = timestamp(ns)
    assert 0 <= sent.nanos < 10**9
    assert nanoseconds(sent) == ns


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("unix:///run/x.sock", UnixAddress("/run/x.sock")),
        ("/run/x.sock", UnixAddress("/run/x.sock")),
        ("containerd-shim/x.sock", UnixAddress("\0containerd-shim/x.sock")),
        ("vsock://3:1024", VsockAddress(3, 1024)),
        ("hvsock:///run/a:b.sock:1024", HybridVsockAddress("/run/a:b.sock", 1024)),
    ],
)
def test_addresses(text: str, address: object) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "unix://run/x", "tcp://1.2.3.4:5", "vsock://3", "vsock://a:1", "hvsock://x:1"])
def test_addresses_of_no_known_form(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_address(text)


def test_tables() -> None:
    assert (TASK_V2.name, TASK_V3.name) == ("containerd.task.v2.Task", "containerd.task.v3.Task")
    assert TASK_V2.methods == TASK_V3.methods
    assert len(TASK_V3.methods) == 17
    assert not any(method.streaming for method in TASK_V3.methods.values())
    assert SANDBOX.name == "containerd.runtime.sandbox.v1.Sandbox"
    assert len(SANDBOX.methods) == 10
    assert SANDBOX.methods["PingSandbox"].request.DESCRIPTOR.name == "PingRequest"
    assert EVENTS.name == "containerd.services.events.ttrpc.v1.Events"
    assert MOUNTS.methods["List"].server_streams
