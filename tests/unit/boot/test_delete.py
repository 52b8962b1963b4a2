"""What `delete` makes of a bundle's files, whatever is in them; the acts are tested with real containers (P4, D1)."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from shim import convert
from shim.boot.delete import believable, read_bundle
from shim.boot.flags import Flags
from shim.boot.orphans import hold_init
from shim.model.exits import ExitRecord
from shim.model.options import RuncOptions

if TYPE_CHECKING:
    from pathlib import Path

FLAGS = Flags(namespace="n", id="i", address="/g.sock")
RECORD = ExitRecord(pid=9, status=7, exited_at_ns=5, namespace="n", id="i")


def test_empty_bundle_gives_defaults_and_no_complaint(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bundle = read_bundle(str(tmp_path), FLAGS)
    assert (bundle.options, bundle.pid, bundle.record) == (RuncOptions(), 0, None)
    assert len(bundle.sockets) == 1
    assert capfd.readouterr().err == ""


def test_full_bundle(tmp_path: Path) -> None:
    (tmp_path / "options.json").write_text('{"root":"/r","binary_name":"a"}')
    (tmp_path / "runtime").write_text("b\n")
    (tmp_path / "init.pid").write_text("12")
    (tmp_path / "exit.json").write_bytes(convert.exit_record_to_json(RECORD))
    (tmp_path / "address").write_text("unix:///x/s")
    (tmp_path / "bootstrap.json").write_text('{"version":3,"address":"unix:///y/s","protocol":"ttrpc"}')
    (tmp_path / "s").symlink_to("/z")
    bundle = read_bundle(str(tmp_path), FLAGS)
    assert bundle.options == RuncOptions(root="/r", binary_name="b")
    assert (bundle.pid, bundle.record) == (12, RECORD)
    computed, linked, *noted = bundle.sockets
    assert computed.startswith("/run/containerd/s/")
    assert linked == computed.replace("/run/containerd/s/", "/z/")
    assert noted == ["/x/s", "/y/s"]


def test_group_decides_the_socket(tmp_path: Path) -> None:
    alone = read_bundle(str(tmp_path), FLAGS).sockets
    (tmp_path / "config.json").write_text('{"annotations":{"io.containerd.runc.v2.group":"g"}}')
    assert read_bundle(str(tmp_path), FLAGS).sockets != alone


@pytest.mark.parametrize("junk", [b"", b"\xff\0", b"{", b"[]", b"-5", b"99999999999999999999", b"x" * 2_000_000])
def test_junk_is_told_and_tolerated(tmp_path: Path, junk: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    names = ("options.json", "init.pid", "exit.json", "address", "bootstrap.json", "config.json")
    for name in names:
        (tmp_path / name).write_bytes(junk)
    bundle = read_bundle(str(tmp_path), FLAGS)
    assert (bundle.options, bundle.pid, bundle.record) == (RuncOptions(), 0, None)
    assert len(bundle.sockets) == 1
    lines = capfd.readouterr().err.splitlines()
    assert lines
    assert all(line.startswith("containerd-shim-trio-v2: ") for line in lines)


def test_pid_of_the_runtimes_own_record(tmp_path: Path) -> None:
    (tmp_path / "options.json").write_text(json.dumps({"root": str(tmp_path)}))
    state = tmp_path / "n" / "i"
    state.mkdir(parents=True)
    (state / "state.json").write_text('{"init_process_pid":77}')
    assert read_bundle(str(tmp_path), FLAGS).pid == 77
    (state / "state.json").write_text('{"init_process_pid":"77"}')
    assert read_bundle(str(tmp_path), FLAGS).pid == 0


@pytest.mark.parametrize(
    ("record", "believed"),
    [
        (RECORD, True),
        (ExitRecord(9, 7, 5), True),
        (ExitRecord(9, 7, 5, namespace="n", id="j"), False),
        (ExitRecord(9, 7, 5, namespace="m", id="i"), False),
        (ExitRecord(0, 7, 5), False),
        (ExitRecord(9, -1, 5), False),
        (ExitRecord(9, 256, 5), False),
        (ExitRecord(2**40, 7, 5), False),
        (ExitRecord(9, 7, 0), False),
    ],
)
def test_which_records_are_believed(record: ExitRecord, believed: bool) -> None:
    assert believable(record, FLAGS) == (record if believed else None)


@pytest.mark.parametrize("pid", [-1, 0, 1, 2**22])
def test_no_process_is_no_init(tmp_path: Path, pid: int) -> None:
    (tmp_path / "init.pid").touch()
    assert hold_init(pid, str(tmp_path / "init.pid")) is None


def test_process_of_our_own_mount_namespace_is_never_init(tmp_path: Path) -> None:
    (tmp_path / "init.pid").touch()
    assert hold_init(os.getppid(), str(tmp_path / "init.pid")) is None
    assert hold_init(os.getpid(), str(tmp_path / "missing")) is None
