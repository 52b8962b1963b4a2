"""Log and stream fifos."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import trio

from shim.manager.logs import LONGEST_LINE, open_log, run_log
from shim.manager.stdio import copy_output, open_stdio, write_input

if TYPE_CHECKING:
    from pathlib import Path


async def test_log_lines_come_whole_and_the_last_one_without_its_end(tmp_path: Path) -> None:
    lines: list[tuple[str, str]] = []
    path = str(tmp_path / "log")
    async with trio.open_nursery() as nursery:
        scope = await nursery.start(run_log, open_log(path), "t1", lambda task, line: lines.append((task, line)))
        for chunk in (b"one\ntw", b"o\n\xff\n", b"rest"):
            with open(path, "wb", buffering=0) as shim:
                shim.write(chunk)
            await trio.testing.wait_all_tasks_blocked(0.01)
        scope.cancel()
    assert lines == [("t1", "one"), ("t1", "two"), ("t1", "\\xff"), ("t1", "rest")]
    assert os.stat(path).st_mode & 0o777 == 0o700


async def test_a_log_line_without_end_is_cut(tmp_path: Path) -> None:
    lines: list[str] = []
    path = str(tmp_path / "log")
    async with trio.open_nursery() as nursery:
        scope = await nursery.start(run_log, open_log(path), "t1", lambda _, line: lines.append(line))
        with open(path, "wb", buffering=0) as shim:
            for _ in range(3):
                shim.write(b"x" * LONGEST_LINE)
                await trio.testing.wait_all_tasks_blocked(0.01)
        scope.cancel()
    assert "".join(lines) == "x" * 3 * LONGEST_LINE
    assert max(map(len, lines)) == LONGEST_LINE


async def test_output_ends_with_its_writer_and_not_before_there_was_one(tmp_path: Path) -> None:
    got = bytearray()

    async def take(data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        got.extend(data)

    with open_stdio(str(tmp_path), stdin=False, terminal=False) as stdio:
        assert stdio.stdin_path == ""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(copy_output, stdio.stdout, take)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert nursery.child_tasks
            with open(stdio.stdout_path, "wb", buffering=0) as shim:
                shim.write(b"a" * 50_000)
                shim.write(b"b")
    assert bytes(got) == b"a" * 50_000 + b"b"


async def test_input_waits_for_its_reader(tmp_path: Path) -> None:
    with open_stdio(str(tmp_path), stdin=True, terminal=True) as stdio:
        assert stdio.stderr is None
        assert stdio.stdin is not None
        data = b"x" * 200_000
        reader = os.open(stdio.stdin_path, os.O_RDONLY | os.O_NONBLOCK)
        got = bytearray()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write_input, stdio.stdin, data)
            while len(got) < len(data):
                await trio.lowlevel.wait_readable(reader)
                got += os.read(reader, 1 << 16)
        os.close(reader)
    assert bytes(got) == data
