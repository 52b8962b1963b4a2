"""Groups and socket names; the fixed case is one seen from a real shim (protocol.md 2.7)."""

from __future__ import annotations

import hashlib

import pytest

from shim.errors import InvalidArgument
from shim.model.grouping import MAX_SOCKET_PATH, check_socket_path, group_id, socket_path, spec_annotations

RUNC = "io.containerd.runc.v2.group"
CRI = "io.kubernetes.cri.sandbox-id"


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({}, "t1"),
        ({"other": "x"}, "t1"),
        ({CRI: "pod"}, "pod"),
        ({RUNC: "group", CRI: "pod"}, "group"),
        ({RUNC: "", CRI: "pod"}, "pod"),
        ({RUNC: ""}, "t1"),
    ],
)
def test_group_of_a_task(annotations: dict[str, str], expected: str) -> None:
    assert group_id(annotations, "t1") == expected


@pytest.mark.parametrize(
    ("address", "joined"),
    [
        ("/x/g.sock", "/x/g.sock/default/t1"),
        ("/x//g.sock/", "/x/g.sock/default/t1"),
        ("/x/./y/../g.sock", "/x/g.sock/default/t1"),
        ("//x/g.sock", "/x/g.sock/default/t1"),
        ("", "default/t1"),
    ],
)
def test_socket_path_hashes_the_cleaned_join(address: str, joined: str) -> None:
    assert socket_path("/s", address, "default", "t1") == f"/s/{hashlib.sha256(joined.encode()).hexdigest()}"


def test_longest_names_fit_and_a_long_directory_does_not() -> None:
    assert len(socket_path("/run/containerd/s", "/x" * 500, "n" * 76, "i" * 76)) <= MAX_SOCKET_PATH
    with pytest.raises(InvalidArgument, match="107 bytes"):
        socket_path("/" + "d" * 41, "/a", "ns", "id")


def test_socket_path_limit_is_exact() -> None:
    assert check_socket_path("/" + "p" * (MAX_SOCKET_PATH - 1))
    with pytest.raises(InvalidArgument):
        check_socket_path("/" + "p" * MAX_SOCKET_PATH)
    with pytest.raises(InvalidArgument):
        check_socket_path("")


@pytest.mark.parametrize("group", ["..", "../other/t1", "a/../b", "./x"])
def test_a_group_cannot_name_a_shim_of_another_namespace(group: str) -> None:
    with pytest.raises(InvalidArgument):
        socket_path("/s", "/x/g.sock", "default", group)


def test_annotations_of_a_spec() -> None:
    assert spec_annotations(b'{"annotations":{"a":"b"},"process":{}}') == {"a": "b"}
    assert spec_annotations(b"{}") == {}
    assert spec_annotations(b'{"annotations":null}') == {}


@pytest.mark.parametrize(
    "config", [b"", b"{", b"[]", b"1", b"\xff", b'{"annotations":[1]}', b'{"annotations":{"a":1}}', b"[" * 100_000]
)
def test_a_broken_spec_is_one_clear_error(config: bytes) -> None:
    with pytest.raises(InvalidArgument, match=r"config\.json"):
        spec_annotations(config)
