"""Deletion over managers that come and go, and shims that are lost: one exit, told once, nothing left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from shim.errors import Internal, NotFound, Unavailable
from shim.manager.events import EventFilter, event_in
from shim.manager.manager import open_manager
from shim.wire.proto.events_pb2 import TaskDelete, TaskExit
from shim.wire.proto.task_pb2 import DeleteResponse
from shim.wire.times import timestamp
from tests.fakes.shim_server import EXITED_AT, open_fake_shim

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from shim.manager.manager import Manager
    from shim.wire.proto.envelope_pb2 import Envelope
    from tests.unit.manager.conftest import Place


def prepare(place: Place, *, status: int = 137, pid: int = 42) -> None:
    (place.path / "start").write_text(f'{{"version":3,"address":"unix://{place.path}/s","protocol":"ttrpc"}}')
    found = DeleteResponse(exit_status=status, pid=pid, exited_at=timestamp(EXITED_AT))
    (place.path / "delete").write_bytes(found.SerializeToString())


def recording(place: Place, told: list[Envelope]) -> Place:
    return attrs.evolve(place, config=attrs.evolve(place.config, on_event=told.append))


def runs(place: Place) -> list[str]:
    return [line.split()[0] for line in (place.path / "runs").read_text().splitlines()]


async def refuse(_: Message) -> Message:
    await trio.lowlevel.checkpoint()
    raise Internal("not now")


async def test_a_retry_by_another_manager_returns_the_same_exit_and_tells_nobody_again(place: Place) -> None:
    prepare(place)
    told: list[Envelope] = []
    place = recording(place, told)
    async with open_fake_shim(place.path / "s") as shim:
        shim.behave["Shutdown"] = refuse
        async with open_manager(place.config) as manager:
            task = await manager.create("ns", "t1", b"{}", runtime="fake.given.v1")
            with pytest.raises(Internal):
                await task.delete()
            kept = json.loads(Path(task.bundle.file("deleted.json")).read_bytes())
            assert kept == {"pid": 42, "status": 7, "exited_at_ns": EXITED_AT, "shim_lost": False}
        del shim.behave["Shutdown"]
        async with open_manager(place.config) as manager:
            ended = await manager.delete("ns", "t1")
            assert (ended.status, ended.exited_at_ns, ended.pid) == (7, EXITED_AT, 42)
        assert shim.calls.count("Delete") == 1
    assert place.left == []
    assert told == []
    assert runs(place) == ["start"]


async def test_a_retry_after_the_shim_left_too_needs_only_the_record(place: Place) -> None:
    prepare(place)
    async with open_fake_shim(place.path / "s") as shim:
        shim.behave["Shutdown"] = refuse
        async with open_manager(place.config) as manager:
            task = await manager.create("ns", "t1", b"{}", runtime="fake.given.v1")
            with pytest.raises(Internal):
                await task.delete()
    async with open_manager(place.config) as manager:
        assert (await manager.delete("ns", "t1")).status == 7
        with pytest.raises(NotFound):
            await manager.delete("ns", "t1")
    assert place.left == []
    assert runs(place) == ["start"]


async def test_a_lost_shim_is_cleaned_up_and_its_end_told_once_without_anybody_asking(place: Place) -> None:
    """Field faults Q6 and Q7."""
    prepare(place, status=9)
    async with open_manager(place.config) as manager:
        with manager.subscribe(EventFilter(namespace="ns", container="t1")) as events:
            async with open_fake_shim(place.path / "s") as shim:
                task = await manager.create("ns", "t1", b"{}", runtime="fake.given.v1")
                shim.hang_up()
                with trio.fail_after(5):
                    gone, deleted = event_in(await anext(events)), event_in(await anext(events))
            assert isinstance(gone, TaskExit)
            assert isinstance(deleted, TaskDelete)
            assert (gone.id, gone.pid, gone.exit_status, gone.exited_at.ToNanoseconds()) == ("t1", 42, 9, EXITED_AT)
            assert (deleted.pid, deleted.exit_status) == (42, 9)
            assert (await task.wait()).shim_lost
            assert (await task.delete()).status == 9
            with trio.move_on_after(0.1) as quiet:
                await anext(events)
            assert quiet.cancelled_caught
    assert place.left == []
    assert not (place.path / "s").exists()


@pytest.mark.parametrize("pid", [0, 4_294_967_295])
async def test_a_pid_that_the_delete_command_does_not_know_is_the_one_that_we_know(place: Place, pid: int) -> None:
    prepare(place, pid=pid)
    async with open_fake_shim(place.path / "s") as shim, open_manager(place.config) as manager:
        task = await manager.create("ns", "t1", b"{}", runtime="fake.given.v1")
        shim.hang_up()
        assert (await task.wait()).pid == 42
    assert place.left == []


async def test_a_delete_command_that_fails_makes_the_exit_unknown_and_the_bundle_goes(place: Place) -> None:
    prepare(place)
    told: list[Envelope] = []
    place = recording(place, told)
    (place.path / "delete").unlink()
    async with open_fake_shim(place.path / "s") as shim, open_manager(place.config) as manager:
        task = await manager.create("ns", "t1", b"{}", runtime="fake.given.v1")
        shim.hang_up()
        ended = await task.wait()
        assert (ended.status, ended.shim_lost) == (255, True)
    assert place.left == []
    assert [envelope.topic for envelope in told] == ["/tasks/exit", "/tasks/delete"]


async def test_after_a_deletion_that_was_done_a_lost_shim_is_not_told_again(place: Place) -> None:
    prepare(place)
    told: list[Envelope] = []
    place = recording(place, told)
    async with open_fake_shim(place.path / "s") as shim, open_manager(place.config) as manager:
        shim.behave["Shutdown"] = refuse
        task = await manager.create("ns", "t1", b"{}", runtime="fake.given.v1")
        with pytest.raises(Internal):
            await task.delete()
        shim.hang_up()
        await task.ending.handled.wait()
        assert (await task.delete()).status == 7
    assert (place.left, told, runs(place)) == ([], [], ["start"])


async def test_a_caller_that_goes_away_does_not_stop_the_deletion(place: Place) -> None:
    prepare(place)
    async with open_fake_shim(place.path / "s") as shim, open_manager(place.config) as manager:
        begun, go_on = trio.Event(), trio.Event()

        async def slow(_: Message) -> Message:
            begun.set()
            await go_on.wait()
            return DeleteResponse(exit_status=7, pid=42, exited_at=timestamp(EXITED_AT))

        shim.behave["Delete"] = slow
        task = await manager.create("ns", "t1", b"{}", runtime="fake.given.v1")
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(task.delete)
                await begun.wait()
                scope.cancel()
        assert len(place.left) == 2
        go_on.set()
        with trio.fail_after(5):
            await task.ending.handled.wait()
        assert shim.calls[-1] == "Shutdown"
    assert place.left == []


async def test_shutdown_follows_every_deletion_whatever_the_version(place: Place) -> None:
    for version in (2, 3):
        prepare(place)
        (place.path / "start").write_text(f'{{"version":{version},"address":"unix://{place.path}/s"}}')
        async with open_fake_shim(place.path / "s") as shim, open_manager(place.config) as manager:
            await (await manager.create("ns", "t1", b"{}", runtime="fake.given.v1")).delete()
            assert shim.calls[-2:] == ["Delete", "Shutdown"]
    assert place.left == []


async def test_two_managers_delete_one_task_and_one_of_them_did(place: Place) -> None:
    prepare(place)
    results: list[str] = []

    async def delete(manager: Manager) -> None:
        try:
            results.append(str((await manager.delete("ns", "t1")).status))
        except (NotFound, Unavailable) as error:
            results.append(type(error).__name__)

    async with open_fake_shim(place.path / "s") as shim:
        async with open_manager(place.config) as one, open_manager(place.config) as two:
            await one.create("ns", "t1", b"{}", runtime="fake.given.v1")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(delete, one)
                nursery.start_soon(delete, two)
        assert shim.calls.count("Delete") == 1
    assert sorted(results) == ["7", "NotFound"]
    assert place.left == []


async def test_a_task_of_the_same_id_that_came_later_is_left_alone(place: Place) -> None:
    prepare(place)
    async with open_manager(place.config) as one, open_manager(place.config) as two:
        async with open_fake_shim(place.path / "s"):
            await one.create("ns", "t1", b"{}", runtime="fake.given.v1")
            old = await two.attach("ns", "t1")
            await one.delete("ns", "t1")
            with trio.fail_after(5):
                await old.ending.handled.wait()
        async with open_fake_shim(place.path / "s"):
            await one.create("ns", "t1", b"{}", runtime="fake.given.v1")
            with pytest.raises(NotFound):
                await old.delete(force=True)
            assert len(place.left) == 2
            await one.delete("ns", "t1")
    assert place.left == []


async def test_letting_go_changes_nothing(place: Place) -> None:
    prepare(place)
    async with open_fake_shim(place.path / "s") as shim, open_manager(place.config) as manager:
        task = await manager.create("ns", "t1", b"{}", runtime="fake.given.v1")
        task.detach()
        await task.shim.lost.wait()
        again = await manager.attach("ns", "t1")
        assert (await again.wait()).status == 7
        await again.delete()
        assert shim.calls.count("Delete") == 1
    assert place.left == []
