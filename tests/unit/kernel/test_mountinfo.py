"""The mount table and the control groups, from text."""

from __future__ import annotations

import os

import pytest

from shim.errors import NotFound
from shim.kernel import cgroups
from shim.kernel.cgroups import Hierarchy, Membership, find_hierarchies, parse_memberships
from shim.kernel.mountinfo import at_or_below, parse_mountinfo, read_mountinfo

TABLE = rb"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
30 22 0:26 / /a\040b\134c\011\012\043 rw,nosuid - tmpfs tmp\040fs rw,size=4k
31 30 0:27 /sub /a\040b\134c\011\012\043/in ro shared:2 master:1 propagate_from:3 - overlay overlay rw,lowerdir=/x
32 22 0:28 / /a ro - proc proc rw
33 22 0:29 / /\377 rw - tmpfs - rw
"""


def test_fields_and_escapes() -> None:
    root, odd, inner, _, raw = parse_mountinfo(TABLE)
    assert (root.id, root.parent, root.device, root.mount_point, root.type) == (22, 1, "254:0", "/", "ext4")
    assert root.tags == ("shared:1",)
    assert odd.mount_point == "/a b\\c\t\n#"
    assert odd.tags == ()
    assert (odd.source, odd.super_options) == ("tmp fs", ("rw", "size=4k"))
    assert inner.tags == ("shared:2", "master:1", "propagate_from:3")
    assert (inner.root, inner.options) == ("/sub", ("ro",))
    assert os.fsencode(raw.mount_point) == b"/\xff"


def test_below_is_by_whole_names() -> None:
    table = parse_mountinfo(TABLE)
    assert [entry.id for entry in at_or_below(table, "/a")] == [32]
    assert [entry.id for entry in at_or_below(table, "/a b\\c\t\n#")] == [30, 31]


@pytest.mark.parametrize("line", [b"nonsense", b"1 2 0:1 / / rw", b"x 1 0:1 / / rw - t s o", b"1 1 0:1 / / rw - t"])
def test_damaged_lines_are_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match="not a line of mountinfo"):
        parse_mountinfo(line)


def test_our_own_table_can_be_read() -> None:
    table = read_mountinfo()
    assert any(entry.mount_point == "/proc" for entry in table)
    assert {entry.id for entry in table} == {entry.id for entry in read_mountinfo(os.getpid())}


HYBRID = rb"""40 22 0:40 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
41 22 0:41 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
42 22 0:42 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,release_agent=/x,name=systemd
43 22 0:43 /part /mnt/part rw - cgroup2 cgroup2 rw
44 22 0:43 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
"""


def test_hierarchies_of_a_hybrid_layout() -> None:
    found = find_hierarchies(parse_mountinfo(HYBRID))
    assert {hierarchy.controllers: hierarchy.mount_point for hierarchy in found} == {
        ("cpu", "cpuacct"): "/sys/fs/cgroup/cpu,cpuacct",
        ("memory",): "/sys/fs/cgroup/memory",
        ("name=systemd",): "/sys/fs/cgroup/systemd",
        (): "/sys/fs/cgroup/unified",
    }


def test_memberships() -> None:
    text = "5:cpuacct,cpu:/a:b\n2:name=systemd:/\n0::/user.slice\n"
    assert parse_memberships(text) == [
        Membership(("cpuacct", "cpu"), "/a:b"),
        Membership(("name=systemd",), "/"),
        Membership((), "/user.slice"),
    ]
    assert [member.unified for member in parse_memberships(text)] == [False, False, True]


def test_a_mount_that_shows_a_part() -> None:
    hierarchy = Hierarchy((), "/mnt", "/part")
    assert hierarchy.directory("/part/x") == "/mnt/x"
    assert hierarchy.directory("/part") == "/mnt"
    assert Hierarchy((), "/mnt", "/").directory("/x") == "/mnt/x"
    with pytest.raises(NotFound):
        hierarchy.directory("/particular")


def test_our_own_cgroups_exist() -> None:
    found = cgroups.directories(os.getpid())
    assert found
    for place in found.values():
        with open(f"{place}/cgroup.procs", encoding="ascii") as stream:
            assert str(os.getpid()) in stream.read().split()


def test_a_process_that_is_gone_has_none() -> None:
    with pytest.raises(ProcessLookupError):
        cgroups.directories(4_000_000)


@pytest.mark.parametrize("path", ["/no/such/cgroup", "/../../../tmp"])
def test_moving_to_what_is_no_cgroup(path: str) -> None:
    with pytest.raises(NotFound):
        cgroups.move(os.getpid(), path)
