"""One task over a fake shim: order of the deletion, retries, and shims that hang up."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from shim.errors import AlreadyExists, DeadlineExceeded, FailedPrecondition, Internal, NotFound, Unavailable
from shim.manager.manager import open_manager
from shim.model.budgets import Budget
from shim.wire.proto.task_pb2 import DeleteResponse
from shim.wire.proto.task_types_pb2 import Status
from shim.wire.services import TASK_V2
from shim.wire.times import timestamp
from tests.fakes.shim_server import EXITED_AT, FakeShim, open_fake_shim

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from google.protobuf.message import Message

    from shim.manager.manager import Manager
    from shim.manager.tasks import Task
    from shim.wire.services import ServiceSpec
    from tests.unit.manager.conftest import Place


@asynccontextmanager
async def open_task(place: Place, *specs: ServiceSpec) -> AsyncIterator[tuple[Manager, Task, FakeShim]]:
    (place.path / "start").write_text(f'{{"version":3,"address":"unix://{place.path}/s","protocol":"ttrpc"}}')
    found = DeleteResponse(exit_status=137, pid=42, exited_at=timestamp(EXITED_AT))
    (place.path / "delete").write_bytes(found.SerializeToString())
    async with open_fake_shim(place.path / "s", *specs) as shim, open_manager(place.config) as manager:
        task = await manager.create("ns", "t1", b"{}", runtime="fake.given.v1")
        yield manager, task, shim


async def test_the_deletion_goes_in_order_and_removes_everything(place: Place) -> None:
    async with open_task(place) as (_, task, shim):
        assert await task.start() == 42
        assert (await task.wait()).status == 7
        ended = await task.delete()
        assert (ended.status, ended.exited_at_ns, ended.shim_lost) == (7, EXITED_AT, False)
        assert shim.calls == ["Connect", "Create", "Start", "Wait", "State", "Delete", "Shutdown"]
    assert place.left == []
    assert (place.path / "runs").read_text().split()[0] == "start"


@pytest.mark.parametrize(
    ("status", "name"), [(Status.CREATED, "created"), (Status.RUNNING, "running"), (Status.PAUSED, "paused")]
)
async def test_a_living_task_is_refused_unless_forced(place: Place, status: Status, name: str) -> None:
    async with open_task(place) as (_, task, shim):
        shim.status = status
        with pytest.raises(FailedPrecondition, match=f"task must be stopped before deletion: {name}"):
            await task.delete()
        assert "Delete" not in shim.calls
        await task.delete(force=True)
        assert shim.calls[-4:] == ["Kill", "Wait", "Delete", "Shutdown"]
    assert place.left == []


async def test_a_retry_after_a_failed_shutdown_returns_the_exit_that_was_given(place: Place) -> None:
    async with open_task(place) as (_, task, shim):

        async def refuse(_: Message) -> Message:
            await trio.lowlevel.checkpoint()
            raise Internal("not now")

        shim.behave["Shutdown"] = refuse
        with pytest.raises(Internal):
            await task.delete()
        assert len(place.left) == 2
        del shim.behave["Shutdown"]
        assert (await task.delete()).status == 7
        assert shim.calls.count("Delete") == 1
    assert place.left == []


async def test_a_task_that_the_shim_does_not_know_is_removed_and_said_to_be_missing(place: Place) -> None:
    async with open_task(place) as (_, task, shim):

        async def unknown(_: Message) -> Message:
            await trio.lowlevel.checkpoint()
            raise NotFound("container not created")

        shim.behave["Delete"] = unknown
        with pytest.raises(NotFound, match="container not created"):
            await task.delete()
        assert shim.calls[-1] == "Shutdown"
    assert place.left == []


async def test_a_shim_that_hangs_up_during_delete_is_dead_and_cleaned_up(place: Place) -> None:
    """Field fault C7."""
    async with open_task(place) as (_, task, shim):

        async def die(_: Message) -> Message:
            shim.hang_up()
            await trio.sleep_forever()
            raise AssertionError

        shim.behave["Delete"] = die
        ended = await task.delete()
        assert (ended.status, ended.pid, ended.shim_lost) == (137, 42, True)
        assert await task.delete() == ended
    assert place.left == []
    assert [line.split()[0] for line in (place.path / "runs").read_text().splitlines()] == ["start", "delete"]


async def test_a_shim_that_dies_while_it_is_waited_for_gives_the_exit_of_its_delete_command(place: Place) -> None:
    async with open_task(place) as (_, task, shim):

        async def die(_: Message) -> Message:
            shim.hang_up()
            await trio.sleep_forever()
            raise AssertionError

        shim.behave["Wait"] = die
        assert (await task.wait()).shim_lost
        assert (await task.delete()).status == 137
    assert place.left == []


async def test_when_even_the_delete_command_fails_the_exit_is_unknown_and_the_bundle_goes(place: Place) -> None:
    async with open_task(place) as (_, task, shim):
        (place.path / "delete").unlink()
        shim.hang_up()
        await task.shim.lost.wait()
        assert (await task.delete()).status == 255
    assert place.left == []


async def test_a_shim_that_says_three_and_speaks_two_is_asked_again_once(place: Place) -> None:
    async with open_task(place, TASK_V2) as (_, task, shim):
        assert task.shim.version == 2
        await task.delete()
        assert shim.calls == ["Connect", "Create", "State", "Delete", "Shutdown"]
    assert place.left == []


async def test_an_id_that_is_taken_is_refused_and_its_task_untouched(place: Place) -> None:
    """Field fault M5."""
    async with open_task(place) as (manager, task, shim):
        before = sorted(path.name for path in Path(task.bundle.path).iterdir())
        with pytest.raises(AlreadyExists):
            await manager.create("ns", "t1", b"{}", runtime="fake.given.v1")
        assert sorted(path.name for path in Path(task.bundle.path).iterdir()) == before
        assert shim.calls == ["Connect", "Create"]
        await task.delete()
    assert place.left == []


async def test_a_create_that_fails_is_undone(place: Place) -> None:
    (place.path / "start").write_text(f"unix://{place.path}/s")
    (place.path / "delete").write_bytes(b"")
    async with open_fake_shim(place.path / "s") as shim, open_manager(place.config) as manager:

        async def refuse(_: Message) -> Message:
            await trio.lowlevel.checkpoint()
            raise Internal("no")

        shim.behave["Create"] = refuse
        with pytest.raises(Internal):
            await manager.create("ns", "t1", b"{}", runtime="fake.given.v1")
        assert shim.calls == ["Connect", "Create", "Kill", "Wait", "Delete", "Shutdown"]
    assert place.left == []
    assert "delete" in (place.path / "runs").read_text()


async def test_a_task_is_found_again_by_another_manager(place: Place) -> None:
    (place.path / "start").write_text(f"unix://{place.path}/s")
    async with open_fake_shim(place.path / "s") as shim:
        async with open_manager(place.config) as manager:
            await manager.create("ns", "t1", b"{}", runtime="fake.given.v1")
        async with open_manager(place.config) as manager:
            task = await manager.attach("ns", "t1")
            assert (await task.state()).status == Status.STOPPED
            assert (await task.delete()).status == 7
            with pytest.raises(NotFound):
                await manager.attach("ns", "t1")
        assert shim.calls[-1] == "Shutdown"
    assert place.left == []


async def test_attaching_to_a_shim_that_is_gone_or_silent_says_so(place: Place) -> None:
    (place.path / "start").write_text(f"unix://{place.path}/s")
    (place.path / "delete").write_bytes(b"")
    config = attrs.evolve(
        place.config, budgets=attrs.evolve(place.config.budgets, load=Budget("io.containerd.timeout.shim.load", 0.2))
    )
    async with open_fake_shim(place.path / "s") as shim:
        async with open_manager(config) as manager:
            await manager.create("ns", "t1", b"{}", runtime="fake.given.v1")

        async def never(_: Message) -> Message:
            await trio.sleep_forever()
            raise AssertionError

        shim.behave["Connect"] = never
        async with open_manager(config) as manager:
            with pytest.raises(DeadlineExceeded, match=r"no answer to Connect within 200 ms \(.*load\)"):
                await manager.attach("ns", "t1")
    async with open_manager(config) as manager:
        with pytest.raises(Unavailable):
            await manager.attach("ns", "t1")
        with pytest.raises(Unavailable):
            await manager.delete("ns", "t1")
        await manager.delete("ns", "t1", force=True)
    assert place.left == []
