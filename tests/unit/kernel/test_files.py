"""Files, directory locks, and what /proc says."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import trio

from shim.errors import DataLoss, DeadlineExceeded
from shim.kernel import procfs
from shim.kernel.files import read_bounded, read_text, write_atomic
from shim.kernel.locks import open_directory_lock

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

NOBODY = 4_000_000


def test_a_file_is_replaced_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "exit.json"
    old = os.umask(0o077)
    try:
        write_atomic(path, b"first", mode=0o644)
        assert path.stat().st_mode & 0o777 == 0o644
        write_atomic(str(path), b"second")
    finally:
        os.umask(old)
    assert path.read_bytes() == b"second"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["exit.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomic(tmp_path / "taken", b"data")
    assert os.listdir(tmp_path) == ["taken"]
    with pytest.raises(FileNotFoundError):
        write_atomic(tmp_path / "no" / "file", b"data")


def test_reading_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_bounded(path, limit=5) == b"12345"
    assert read_text(path) == "12345"
    with pytest.raises(DataLoss, match="longer than 4 bytes"):
        read_bounded(path, limit=4)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(DataLoss, match="not text"):
        read_text(path)


async def test_a_lock_excludes_and_is_released(tmp_path: Path, autojump_clock: MockClock) -> None:
    directory = str(tmp_path)
    order: list[str] = []

    async def second() -> None:
        async with open_directory_lock(directory, seconds=60):
            order.append("second")

    async with trio.open_nursery() as nursery, open_directory_lock(directory, seconds=1):
        nursery.start_soon(second)
        await trio.sleep(10)
        order.append("first")
    assert order == ["first", "second"]


async def test_a_lock_is_not_waited_for_too_long(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_directory_lock(str(tmp_path), seconds=1):
        begun = trio.current_time()
        with pytest.raises(DeadlineExceeded, match="locked by another process"):
            async with open_directory_lock(str(tmp_path), seconds=2):
                pass
        assert trio.current_time() - begun == pytest.approx(2)


def test_what_proc_says_of_ourselves() -> None:
    me = os.getpid()
    assert procfs.start_time(me) > 0
    assert procfs.state(me) == "R"
    assert procfs.parent(me) == os.getppid()
    assert procfs.namespace_id(me, "pid") == os.stat("/proc/self/ns/pid").st_ino
    assert any("pytest" in word for word in procfs.command_line(me))


def test_the_oom_score_is_clipped() -> None:
    old = procfs.oom_score_adj(os.getpid())
    try:
        procfs.set_oom_score_adj(os.getpid(), 5000)
        assert procfs.oom_score_adj(os.getpid()) == 1000
    finally:
        procfs.set_oom_score_adj(os.getpid(), old)


@pytest.mark.parametrize(
    "question",
    [procfs.start_time, procfs.state, procfs.parent, procfs.children, procfs.command_line, procfs.oom_score_adj],
)
def test_a_process_that_is_gone(question: object) -> None:
    assert callable(question)
    with pytest.raises(ProcessLookupError):
        question(NOBODY)
