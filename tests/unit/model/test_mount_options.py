"""Options sorted into flags, propagation and data."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim.errors import InvalidArgument
from shim.model import mount_options as options
from shim.model.mount_options import MountOptions, parse_options
from shim.model.mounts import Mount

NAMES = [
    "async",
    "atime",
    "bind",
    "defaults",
    "dev",
    "diratime",
    "dirsync",
    "exec",
    "mand",
    "noatime",
    "nodev",
    "nodiratime",
    "noexec",
    "nomand",
    "norelatime",
    "nostrictatime",
    "nosuid",
    "rbind",
    "relatime",
    "remount",
    "ro",
    "rw",
    "strictatime",
    "suid",
    "sync",
]


@pytest.mark.parametrize("name", NAMES)
def test_no_name_of_the_protocol_becomes_data(name: str) -> None:
    assert parse_options([name]).data == ()


@pytest.mark.parametrize(
    ("text", "flags", "cleared"),
    [
        ("ro,rw", 0, options.MS_RDONLY),
        ("rw,ro", options.MS_RDONLY, 0),
        ("nosuid,nodev,suid", options.MS_NODEV, options.MS_NOSUID),
        ("rbind", options.MS_BIND | options.MS_REC, 0),
        ("sync,async,noatime,atime", 0, options.MS_SYNCHRONOUS | options.MS_NOATIME),
        ("defaults", 0, 0),
    ],
)
def test_the_later_one_wins(text: str, flags: int, cleared: int) -> None:
    parsed = parse_options(text.split(","))
    assert (parsed.flags, parsed.cleared) == (flags, cleared)


def test_a_usual_overlay() -> None:
    parsed = parse_options(["index=off", "lowerdir=/a:/b", "upperdir=/u", "workdir=/w", "ro"])
    assert parsed.data == ("index=off", "lowerdir=/a:/b", "upperdir=/u", "workdir=/w")
    assert parsed.read_only
    assert parsed.remount_bind == 0


def test_a_bind_needs_a_second_call_for_what_is_the_mounts() -> None:
    assert parse_options(["rbind", "rw"]).remount_bind == 0
    assert parse_options(["rbind", "ro", "nosuid"]).remount_bind == options.MS_RDONLY | options.MS_NOSUID
    assert parse_options(["bind", "remount", "ro"]).remount_bind == 0
    assert parse_options(["bind", "remount", "ro"]).is_remount


@pytest.mark.parametrize("name", ["private", "shared", "slave", "unbindable"])
def test_propagation_is_apart(name: str) -> None:
    plain, recursive = parse_options([name]), parse_options(["r" + name])
    assert plain.flags == recursive.flags == 0
    assert plain.propagation != 0
    assert recursive.propagation == plain.propagation | options.MS_REC


def test_loop_and_id_maps() -> None:
    parsed = parse_options(["loop", "direct-io", "uidmap=0:1000:10", "gidmap=0:2000:10"])
    assert parsed == MountOptions(loop=True, direct_io=True, uidmap="0:1000:10", gidmap="0:2000:10")
    assert parse_options(["direct-io"]).data == ("direct-io",)


def test_leftovers_of_the_mount_manager_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"X-containerd\.mkdir\.path"):
        parse_options(["X-containerd.mkdir.path=/x"])


@given(st.lists(st.sampled_from([*NAMES, "rshared", "loop", "a=1", "b", "", "uidmap="])))
def test_what_is_set_is_not_cleared_and_data_keeps_its_order(names: list[str]) -> None:
    parsed = parse_options(names)
    assert parsed.flags & parsed.cleared == 0
    assert list(parsed.data) == [name for name in names if name in {"a=1", "b"}]


def test_a_mount_takes_its_options_from_any_sequence() -> None:
    assert Mount("bind", "/a", options=["ro"]).options == ("ro",)
