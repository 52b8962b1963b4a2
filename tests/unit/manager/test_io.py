"""Log and stream fifos, and the event socket."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import trio
from google.protobuf.empty_pb2 import Empty
from google.protobuf.timestamp_pb2 import Timestamp

from shim.errors import InvalidArgument, Unavailable
from shim.manager.events import run_events
from shim.manager.layout import Layout
from shim.manager.logs import LONGEST_LINE, open_log, run_log
from shim.manager.stdio import copy_output, open_stdio, write_input
from shim.rpc.client import open_unix_client
from shim.wire.proto.envelope_pb2 import Envelope
from shim.wire.proto.events_ttrpc_pb2 import ForwardRequest
from shim.wire.services import EVENTS

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


def envelope(**changes: object) -> Envelope:
    fields = {"namespace": "ns", "topic": "/tasks/exit", "timestamp": Timestamp(seconds=1), **changes}
    return Envelope(**fields)  # type: ignore[arg-type]


async def test_events_reach_the_callback_when_they_are_sound(tmp_path: Path) -> None:
    layout = Layout(str(tmp_path / "s"), str(tmp_path / "r"))
    layout.prepare()
    got: list[str] = []
    async with trio.open_nursery() as nursery:
        assert await nursery.start(run_events, layout, lambda event: got.append(event.topic))
        assert os.stat(layout.events_address).st_mode & 0o777 == 0o600
        async with open_unix_client(layout.events_address) as client:
            await client.call(EVENTS, "Forward", ForwardRequest(envelope=envelope()), Empty)
            for wrong in (
                envelope(namespace=""),
                envelope(namespace="a/b"),
                envelope(topic="tasks"),
                envelope(topic="/"),
                envelope(topic="/tasks//exit"),
                envelope(timestamp=None),
            ):
                with pytest.raises(InvalidArgument):
                    await client.call(EVENTS, "Forward", ForwardRequest(envelope=wrong), Empty)
        nursery.cancel_scope.cancel()
    assert got == ["/tasks/exit"]
    assert not os.path.exists(layout.events_address)


async def forward_patiently(layout: Layout) -> None:
    """As a shim's publisher: again while nobody listens."""
    while True:
        try:
            async with open_unix_client(layout.events_address) as client:
                await client.call(EVENTS, "Forward", ForwardRequest(envelope=envelope()), Empty)
                return
        except* Unavailable:
            await trio.sleep(0.01)


async def test_one_manager_listens_and_the_next_takes_over(tmp_path: Path) -> None:
    layout = Layout(str(tmp_path / "s"), str(tmp_path / "r"))
    layout.prepare()
    got: list[str] = []
    with trio.fail_after(5):
        async with trio.open_nursery() as second:
            async with trio.open_nursery() as first:
                assert await first.start(run_events, layout, lambda _: got.append("first"))
                assert not await second.start(run_events, layout, lambda _: got.append("second"))
                await forward_patiently(layout)
                first.cancel_scope.cancel()
            await forward_patiently(layout)
            second.cancel_scope.cancel()
    assert got == ["first", "second"]
    assert not os.path.exists(layout.events_address)


async def test_a_socket_that_a_dead_manager_left_is_replaced(tmp_path: Path) -> None:
    layout = Layout(str(tmp_path / "s"), str(tmp_path / "r"))
    layout.prepare()
    (tmp_path / "s" / "events.sock").touch()
    async with trio.open_nursery() as nursery:
        assert await nursery.start(run_events, layout, lambda _: None)
        nursery.cancel_scope.cancel()


async def test_a_callback_that_fails_does_not_reach_the_shim(tmp_path: Path) -> None:
    layout = Layout(str(tmp_path / "s"), str(tmp_path / "r"))
    layout.prepare()

    def fail(_: Envelope) -> None:
        raise ValueError("a bug of the callback")

    async with trio.open_nursery() as nursery:
        await nursery.start(run_events, layout, fail)
        async with open_unix_client(layout.events_address) as client:
            await client.call(EVENTS, "Forward", ForwardRequest(envelope=envelope()), Empty)
        nursery.cancel_scope.cancel()
