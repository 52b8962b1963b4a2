"""Load and list over fake shims: what each of them answers decides, and none holds up another."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from shim.errors import NotFound, Unknown
from shim.manager.bootstrap import Answer, answer_to_json
from shim.manager.bundle import create_bundle
from shim.manager.events import event_in
from shim.manager.loading import Outcome
from shim.manager.locks import try_task_lock
from shim.manager.manager import open_manager
from shim.manager.records import TaskExit, write_deleted, write_start
from shim.model.budgets import Budget
from shim.wire.proto.events_pb2 import TaskExit as ExitEvent
from shim.wire.proto.task_pb2 import DeleteResponse, PidsResponse
from shim.wire.proto.task_types_pb2 import ProcessInfo, Status
from shim.wire.times import timestamp
from tests.fakes.shim_server import EXITED_AT, FakeShim, open_fake_shim

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from google.protobuf.message import Message

    from shim.manager.bundle import Bundle
    from shim.wire.proto.envelope_pb2 import Envelope
    from tests.unit.manager.conftest import SHIMS, Place
else:
    from tests.unit.manager.conftest import SHIMS

BINARY = str(SHIMS / "containerd-shim-given-v1")


@pytest.fixture
def quick(place: Place) -> Place:
    """With budgets that a test can wait for, and a `delete` that answers."""
    found = DeleteResponse(exit_status=137, pid=42, exited_at=timestamp(EXITED_AT))
    (place.path / "delete").write_bytes(found.SerializeToString())
    budgets = attrs.evolve(
        place.config.budgets,
        load=Budget("io.containerd.timeout.shim.load", 0.5),
        state=Budget("io.containerd.timeout.task.state", 0.5),
        cleanup=Budget("io.containerd.timeout.shim.cleanup", 2.0),
    )
    place.config.layout.prepare()
    return attrs.evolve(place, config=attrs.evolve(place.config, budgets=budgets))


async def make(place: Place, task_id: str, *, binary: str = BINARY, listen: str = "") -> Bundle:
    """A bundle as an earlier manager left it."""
    bundle = await create_bundle(place.config.layout, "ns", task_id, b"{}")
    write_start(bundle, binary, Answer(3, f"unix://{place.path}/{listen or task_id}"))
    return bundle


async def never(_: Message) -> Message:
    await trio.sleep_forever()
    raise AssertionError


async def missing(_: Message) -> Message:
    await trio.lowlevel.checkpoint()
    raise NotFound("container not created")


async def unknown(_: Message) -> Message:
    await trio.lowlevel.checkpoint()
    raise Unknown("runc ps: no")


async def one_pid(_: Message) -> Message:
    await trio.lowlevel.checkpoint()
    return PidsResponse(processes=[ProcessInfo(pid=42)])


def runs(place: Place) -> int:
    path = place.path / "runs"
    return path.read_text().count("delete\n") if path.exists() else 0


@asynccontextmanager
async def open_shims(place: Place, *names: str) -> AsyncIterator[dict[str, FakeShim]]:
    async with AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(open_fake_shim(place.path / name)) for name in names}


async def test_each_bundle_comes_to_its_own_end(quick: Place) -> None:
    told: list[Envelope] = []
    config = attrs.evolve(quick.config, on_event=told.append)
    for name in ("living", "created", "stopped", "leaked", "silent", "refusing", "absent", "odd"):
        await make(quick, name)
    async with open_fake_shim(quick.path / "refusing"):
        pass  # the file stays, and nobody listens there any more
    async with open_shims(quick, "living", "created", "stopped", "leaked", "silent", "odd") as shims:
        shims["living"].status = Status.RUNNING
        shims["living"].behave["Pids"] = one_pid
        shims["created"].status = Status.CREATED
        shims["leaked"].behave |= {"Pids": missing, "State": missing}
        shims["silent"].behave |= {"Connect": never}
        shims["odd"].behave |= {"Pids": unknown, "State": unknown}
        async with open_manager(config) as manager:
            report = await manager.load()
            assert {entry.id: entry.outcome for entry in report.entries} == {
                "living": Outcome.KEPT,
                "created": Outcome.KEPT,
                "stopped": Outcome.REPORTED,
                "leaked": Outcome.CLEANED,
                "silent": Outcome.REAPING,
                "refusing": Outcome.CLEANED,
                "absent": Outcome.CLEANED,
                "odd": Outcome.KEPT,
            }
            assert sorted(task.id for task in report.tasks) == ["created", "living", "odd"]
            by_id = {entry.id: entry for entry in report.entries}
            assert by_id["stopped"].exit == TaskExit(7, EXITED_AT, 42)
            assert by_id["living"].seconds < 0.4
            with trio.fail_after(5):
                await report.wait_reaped()
            assert by_id["silent"].outcome is Outcome.CLEANED
            assert shims["stopped"].calls[-2:] == ["Delete", "Shutdown"]
            assert shims["leaked"].calls[-1] == "Shutdown"
            assert "Shutdown" not in shims["odd"].calls
    names = {os.path.basename(path) for path in quick.left}
    assert names == {"living", "created", "odd"}
    exits = {
        event.container_id: (event.exit_status, event.pid)
        for event in map(event_in, told)
        if isinstance(event, ExitEvent)
    }
    assert exits == {"stopped": (7, 42), "silent": (137, 42), "refusing": (137, 42), "absent": (137, 42)}
    assert len([envelope for envelope in told if envelope.topic == "/tasks/exit"]) == 4
    assert len([envelope for envelope in told if envelope.topic == "/tasks/delete"]) == 4
    assert not (quick.path / "refusing").exists()


async def test_row_Q1_twenty_bundles_with_dead_sockets_are_gone_at_once(quick: Place) -> None:
    for number in range(20):
        await make(quick, f"t{number}")
        if number % 2:
            async with open_fake_shim(quick.path / f"t{number}"):
                pass
    config = attrs.evolve(quick.config, budgets=attrs.evolve(quick.config.budgets, load=Budget("k", 5.0)))
    async with open_manager(config) as manager:
        with trio.fail_after(10):
            report = await manager.load()
        assert len(report.of(Outcome.CLEANED)) == 20
    assert quick.left == []
    assert runs(quick) == 20


async def test_one_budget_holds_for_all_calls_of_one_shim(quick: Place) -> None:
    await make(quick, "slow")
    async with open_shims(quick, "slow") as shims:
        for method in ("Connect", "Pids", "State"):

            async def slowly(request: Message, method: str = method) -> Message:
                await trio.sleep(0.3)  # each within the budget, all together beyond it
                del shims["slow"].behave[method]
                return await shims["slow"].answer(method, request)

            shims["slow"].behave[method] = slowly
        async with open_manager(quick.config) as manager:
            report = await manager.load()
            assert report.of(Outcome.REAPING) == ["slow"]
            assert report.entries[0].seconds == pytest.approx(0.5, abs=0.2)
            await report.wait_reaped()
    assert quick.left == []


async def test_a_clean_up_that_fails_takes_the_bundle_with_it_and_is_reported(quick: Place) -> None:
    (quick.path / "delete").unlink()
    await make(quick, "t1")
    async with open_manager(quick.config) as manager:
        report = await manager.load()
        entry = report.entries[0]
        assert entry.outcome is Outcome.CLEANED
        assert entry.error is not None
        assert entry.exit is not None
        assert entry.exit.status == 255
        assert (await manager.load()).entries == []
    assert quick.left == []


async def test_a_manager_that_closes_finishes_what_its_reaper_began(quick: Place) -> None:
    await make(quick, "silent")
    async with open_shims(quick, "silent") as shims:
        shims["silent"].behave["Connect"] = never
        async with open_manager(quick.config) as manager:
            report = await manager.load()
            assert report.of(Outcome.REAPING) == ["silent"]
    assert quick.left == []


async def test_a_deletion_that_was_begun_is_finished_and_told_nobody(quick: Place) -> None:
    told: list[Envelope] = []
    config = attrs.evolve(quick.config, on_event=told.append)
    for name in ("there", "gone"):
        write_deleted(await make(quick, name), TaskExit(9, 5, 42))
    async with open_shims(quick, "there") as shims, open_manager(config) as manager:
        report = await manager.load()
        assert [(entry.outcome, entry.exit) for entry in report.entries] == [(Outcome.CLEANED, TaskExit(9, 5, 42))] * 2
        assert shims["there"].calls == ["Connect", "Shutdown"]
    assert (quick.left, told) == ([], [])


async def test_what_somebody_else_is_changing_is_left_to_them(quick: Place) -> None:
    await make(quick, "t1")
    lock = try_task_lock(quick.config.layout, "ns", "t1")
    assert lock is not None
    async with open_manager(quick.config) as manager:
        assert (await manager.load()).of(Outcome.BUSY) == ["t1"]
        lock.release()
        assert (await manager.load()).of(Outcome.CLEANED) == ["t1"]


BAD = {
    "empty": None,
    "half": {"config.json": b"{}"},
    "truncated": {"shim-binary-path": BINARY.encode(), "bootstrap.json": b'{"version":3,"addre'},
    "binary": {"shim-binary-path": b"/nowhere/shim", "bootstrap.json": b'{"version":3,"address":"unix:///nowhere/s"}'},
    "blank": {"shim-binary-path": b"", "bootstrap.json": b""},
    "huge": {"shim-binary-path": BINARY.encode(), "bootstrap.json": b"[" * 2_000_000},
}


@pytest.mark.parametrize("kind", BAD)
async def test_a_bundle_that_is_damaged_goes(quick: Place, kind: str) -> None:
    files = BAD[kind]
    layout = quick.config.layout
    layout.prepare_namespace("ns")
    directory = Path(layout.bundle("ns", "t1"))
    directory.mkdir()
    for name, data in (files or {}).items():
        (directory / name).write_bytes(data)
    async with open_manager(quick.config) as manager:
        assert (await manager.load()).of(Outcome.CLEANED) == ["t1"]
    assert quick.left == []


async def test_a_living_shim_survives_the_loss_of_its_bootstrap_file(
    quick: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found where shims listen by custom, and the file is written again."""
    bundle = await make(quick, "t1")
    Path(bundle.file("bootstrap.json")).write_bytes(b'{"version":3,"addre')
    monkeypatch.setattr("shim.manager.loading.usual_address", lambda *_: f"unix://{quick.path}/t1")
    async with open_shims(quick, "t1") as shims:
        shims["t1"].status = Status.RUNNING
        async with open_manager(quick.config) as manager:
            assert (await manager.load()).of(Outcome.KEPT) == ["t1"]
            assert (await manager.attach("ns", "t1")).id == "t1"
    assert runs(quick) == 0


async def test_a_bundle_of_a_version_to_come_is_left_alone(quick: Place) -> None:
    bundle = await make(quick, "t1")
    Path(bundle.file("bootstrap.json")).write_bytes(answer_to_json(Answer(9, "unix:///nowhere/s")))
    async with open_manager(quick.config) as manager:
        report = await manager.load()
        assert report.of(Outcome.FAILED) == ["t1"]
        assert "version 9" in str(report.entries[0].error)
    assert len(quick.left) == 2
    assert runs(quick) == 0


async def test_names_that_are_no_identifiers_and_work_directories_without_a_task(quick: Place) -> None:
    layout = quick.config.layout
    layout.prepare_namespace("ns")
    for path in (
        f"{layout.bundles('ns')}/-odd-",
        f"{layout.bundles('ns')}/.t7",
        f"{layout.works('ns')}/t8",
        f"{layout.tasks}/no namespace",
    ):
        os.makedirs(path)
    async with open_manager(quick.config) as manager:
        report = await manager.load()
        assert report.of(Outcome.FAILED) == ["-odd-"]
    assert [os.path.basename(path) for path in quick.left] == ["-odd-"]


async def test_row_Q5_an_old_bundle_does_not_block_its_id_once_it_was_loaded(quick: Place) -> None:
    await make(quick, "t1")
    (quick.path / "start").write_bytes(answer_to_json(Answer(3, f"unix://{quick.path}/s")))
    async with open_manager(quick.config) as manager:
        await manager.load()
        async with open_fake_shim(quick.path / "s"):
            await (await manager.create("ns", "t1", b"{}", runtime="fake.given.v1")).delete()
    assert quick.left == []


async def test_row_R1_listing_names_the_silent_one_and_changes_nothing(quick: Place) -> None:
    names = [f"t{number}" for number in range(10)]
    for name in names:
        await make(quick, name)
    await make(quick, "gone")
    async with open_shims(quick, *names) as shims:
        shims["t3"].behave["Connect"] = never
        async with open_manager(quick.config) as manager:
            with trio.fail_after(3):
                listed = {entry.id: entry for entry in await manager.list_tasks()}
            assert {name: entry.state is not None for name, entry in listed.items()} == {
                **{name: name != "t3" for name in names},
                "gone": False,
            }
            assert "its shim is not answering" in str(listed["t3"].error)
            assert listed["gone"].error is not None
            assert [entry.id for entry in await manager.list_tasks("ns")] == sorted(listed)
            assert await manager.list_tasks("other") == []
        assert all(set(shim.calls) <= {"Connect", "State"} for shim in shims.values())
    assert len(quick.left) == 22
    assert runs(quick) == 0
