"""The manager and shims of an earlier manager, for real: ours and both stock ones, living, stopped, silent and dead."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from shim.errors import Internal, NotFound, ShimError
from shim.manager.connection import ShimConnection
from shim.manager.loading import Outcome
from shim.manager.manager import open_manager
from shim.model.budgets import Budget, Budgets
from shim.wire.proto.task_pb2 import DeleteRequest, DeleteResponse, ShutdownRequest
from shim.wire.proto.task_types_pb2 import Status
from tests.system.conftest import KIND
from tests.system.harness.managers import SLEEP, Room, processes_end, socket_of, until
from tests.system.harness.processes import wait_ended
from tests.system.harness.subject import Kind, Subject, find_subject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.message import Message

pytestmark = pytest.mark.slow
SHIMS = ["under test", "go-2.4", "go-1.6"] if KIND is Kind.OURS else ["under test"]
LOAD = Budgets(load=Budget("io.containerd.timeout.shim.load", 2.0))


@pytest.fixture(params=SHIMS)
def room(
    request: pytest.FixtureRequest, subject: Subject, directory: Path, rootfs: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Room]:
    chosen = subject
    if request.param != "under test":
        monkeypatch.setenv("SHIM_UNDER_TEST", request.param)
        chosen = find_subject(directory)
    made = Room(directory, str(chosen.path), chosen.kind.value, f"m{os.getpid()}-{directory.name}", rootfs)
    yield made
    assert made.left() == []


async def test_row_A1_what_ended_while_nobody_was_there_is_told_and_deleted(room: Room) -> None:
    async with open_manager(room.config()) as manager:
        task = await room.running(manager, "a1")
        pid, shim, socket = task.pid, task.shim.pid, socket_of(task)
    os.kill(pid, signal.SIGKILL)
    await wait_ended(pid, timeout=5)
    async with open_manager(room.config()) as manager:
        with trio.fail_after(10):
            report = await manager.load()
            await report.wait_reaped()
        entry = report.entries[0]
        assert (entry.outcome, entry.error) == (Outcome.REPORTED, None)
        assert entry.exit is not None
        assert entry.exit.status == 137
        assert await room.wait_told("a1") == [("TaskExit", 137, pid), ("TaskDelete", 137, pid)]
        await processes_end(shim)
        assert (await manager.load()).entries == []
    assert len(room.exits("a1")) == 2
    assert not socket.exists()


async def test_rows_Q6_Q7_a_loaded_shim_that_is_killed_takes_its_container_along(room: Room) -> None:
    async with open_manager(room.config()) as manager:
        await room.running(manager, "q6")
    async with open_manager(room.config()) as manager:
        task = (await manager.load()).tasks[0]
        pid, socket = (await task.state()).pid, socket_of(task)
        os.kill(task.shim.pid, signal.SIGKILL)
        assert await room.wait_told("q6") == [("TaskExit", 137, pid), ("TaskDelete", 137, pid)]
        await processes_end(pid)
        with trio.fail_after(10):
            assert (await task.wait()).shim_lost
        with pytest.raises(NotFound):
            await manager.attach(room.namespace, "q6")
    assert not socket.exists()


async def test_a_shim_that_is_killed_after_its_task_ended_gives_the_real_status(room: Room) -> None:
    async with open_manager(room.config()) as manager:
        task = await room.running(manager, "s1", ["/bin/busybox", "sh", "-c", "exit 3"])
        assert (await task.wait()).status == 3
        await until(lambda: bool(room.exits("s1")), timeout=5)
        os.kill(task.shim.pid, signal.SIGKILL)
        ended = await task.ending.lost_exit()
        # The 1.6 shim keeps no record of the exit, so its delete command cannot know it (protocol.md 2.9).
        assert ended.status == (137 if room.kind == "go-1.6" else 3)
        assert [kind for kind, _, _ in await room.wait_told("s1")] == ["TaskExit", "TaskDelete"]


async def test_row_Q2_a_silent_shim_is_reaped_and_its_neighbours_do_not_notice(room: Room) -> None:
    async with open_manager(room.config()) as manager:
        names = ["h1", "h2", "silent"]
        pids = {name: (await room.running(manager, name)).pid for name in names}
        listed = {entry.id: entry.shim_pid for entry in await manager.list_tasks(room.namespace)}
    os.kill(listed["silent"], signal.SIGSTOP)
    async with open_manager(room.config(budgets=LOAD)) as manager:
        began = trio.current_time()
        report = await manager.load()
        assert trio.current_time() - began < 4
        assert (report.of(Outcome.KEPT), report.of(Outcome.REAPING)) == (["h1", "h2"], ["silent"])
        assert all(entry.seconds < 1.5 for entry in report.entries if entry.outcome is Outcome.KEPT)
        with trio.fail_after(12):
            await report.wait_reaped()
        assert report.of(Outcome.CLEANED) == ["silent"]
        await processes_end(listed["silent"], pids["silent"])
        assert await room.wait_told("silent") == [
            ("TaskExit", 137, pids["silent"] if room.exits("silent")[0][2] else 0),
            ("TaskDelete", 137, room.exits("silent")[0][2]),
        ]
        for task in report.tasks:
            assert (await task.state()).status == Status.RUNNING
            await task.delete(force=True)


async def test_row_R1_a_list_names_the_silent_one_in_time(room: Room) -> None:
    async with open_manager(room.config()) as manager:
        for number in range(4):
            await room.running(manager, f"r{number}")
        pids = {entry.id: entry.shim_pid for entry in await manager.list_tasks(room.namespace)}
        os.kill(pids["r2"], signal.SIGSTOP)
        try:
            with trio.fail_after(3):
                listed = await manager.list_tasks(room.namespace)
            assert [entry.id for entry in listed if entry.state is None] == ["r2"]
        finally:
            os.kill(pids["r2"], signal.SIGCONT)
        for name in pids:
            await manager.delete(room.namespace, name, force=True)


async def test_a_leaked_shim_is_cleaned(room: Room) -> None:
    async with open_manager(room.config()) as manager:
        task = await room.create(manager, "l1")
        shim, socket = task.shim.pid, socket_of(task)
        await task.kill(9)
        await task.wait()
        await task.shim.call("Delete", DeleteRequest(id="l1"), DeleteResponse)
        task.detach()
    async with open_manager(room.config()) as manager:
        report = await manager.load()
        await report.wait_reaped()
        assert report.of(Outcome.CLEANED) == ["l1"]
        await processes_end(shim)
    assert not socket.exists()


async def test_row_Q1_bundles_whose_shims_are_gone_are_quick(room: Room) -> None:
    async with open_manager(room.config()) as manager:
        shims = [(await room.create(manager, f"q{number}")).shim.pid for number in range(4)]
    for number, pid in enumerate(shims):
        os.kill(pid, signal.SIGKILL)
        await wait_ended(pid, timeout=5)
        if number % 2:
            address = (Path(room.layout.bundle(room.namespace, f"q{number}")) / "bootstrap.json").read_text()
            os.unlink("/run/containerd/s/" + address.partition("/run/containerd/s/")[2].partition('"')[0])
    async with open_manager(room.config()) as manager:
        with trio.fail_after(10):
            report = await manager.load()
            await report.wait_reaped()
        assert len(report.of(Outcome.CLEANED)) == 4


@attrs.define
class FailOnce:
    """Shutdown fails as long as `on`."""

    on: bool = True


async def test_a_deletion_goes_on_where_it_stopped_also_in_another_manager(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch, call = FailOnce(), ShimConnection.call

    async def failing(self: ShimConnection, method: str, request: Message, *rest: object) -> Message:
        if isinstance(request, ShutdownRequest) and switch.on:
            raise Internal("not now")
        return await call(self, method, request, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(ShimConnection, "call", failing)
    async with open_manager(room.config()) as manager:
        task = await room.running(manager, "d1", ["/bin/busybox", "sh", "-c", "exit 5"])
        await task.wait()
        with pytest.raises(Internal):
            await task.delete()
        await room.wait_ended_by_shim("d1")
        told = room.exits("d1")
        pid = task.shim.pid
    switch.on = False
    async with open_manager(room.config()) as manager:
        ended = await manager.delete(room.namespace, "d1")
        assert (ended.status, ended.shim_lost) == (5, False)
        await processes_end(pid)
    assert room.exits("d1")[: len(told)] == told
    await room.wait_ended_by_shim("d1")


async def test_two_managers_share_the_tasks_and_every_event(room: Room) -> None:
    other: list[str] = []
    async with open_manager(room.config(on_event=lambda event: other.append(event.topic))) as second:
        async with open_manager(room.config()) as first:
            await first.wait_events()
            task = await room.running(first, "t1")
            again = await second.attach(room.namespace, "t1")
            assert (await again.state()).status == Status.RUNNING
            await again.kill(9)
            assert (await task.wait()).status == (await again.wait()).status == 137
            with pytest.raises(ShimError):
                await room.create(second, "t1")
            await second.delete(room.namespace, "t1")
            with trio.fail_after(5):
                await task.ending.handled.wait()
            await room.wait_ended_by_shim("t1")
        await until(lambda: len(other) >= len(room.told), timeout=5)
    assert [envelope.topic for envelope in room.told] == other


async def test_the_event_socket_is_handed_over_to_the_manager_that_stays(room: Room) -> None:
    async with trio.open_nursery() as nursery, open_manager(room.config(on_event=lambda _: None)) as first:
        ready, leave = trio.Event(), trio.Event()

        async def run_second() -> None:
            async with open_manager(room.config()) as second:
                await second.wait_events()
                ready.set()
                await leave.wait()
                if room.kind != "ours":  # a Go shim that is shut down forgets what it could not send at once
                    await until(lambda: second._parts.socket.listening, timeout=5)
                task = await second.attach(room.namespace, "e1")
                await task.delete(force=True)
                await room.wait_ended_by_shim("e1")

        nursery.start_soon(run_second)
        await ready.wait()
        await room.running(first, "e1", SLEEP)
        leave.set()
