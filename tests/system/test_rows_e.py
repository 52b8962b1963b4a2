"""Fault rows E: order and content of events."""

from __future__ import annotations

import random
import time
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest
import trio

from shim import errors
from shim.wire.proto import events_pb2
from tests.system.harness.sink import Sink, exits, open_sink

if TYPE_CHECKING:
    from pathlib import Path

    from tests.system.harness.driver import Driver
    from tests.system.harness.task import Shim

LIFE: Final = ["/tasks/create", "/tasks/start", "/tasks/exit", "/tasks/delete"]
EXEC_LIFE: Final = ["/tasks/exec-added", "/tasks/exec-started", "/tasks/exit"]
RACES: Final = 300


async def _live_through(driver: Driver, shim: Shim, identifier: str) -> None:
    task = await shim.create(driver.bundle(["true"], identifier=identifier))
    await task.start()
    await task.wait()
    await task.delete()


@pytest.mark.slow
@pytest.mark.better_than_peer(
    "the Go shim answers Wait before it queues the exit: a prompt Delete's event may overtake it"
)
async def test_E1_short_tasks_tell_their_events_in_order(driver: Driver) -> None:
    shim = await driver.start(driver.bundle(["true"], identifier="leader"))
    waiting = [f"e{number}" for number in range(300)]
    ids = list(waiting)

    async def worker() -> None:
        while waiting:
            await _live_through(driver, shim, waiting.pop())

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(worker)
    await driver.sink.wait_until(lambda sink: all(len(sink.of(identifier)) == len(LIFE) for identifier in ids))
    assert {identifier: driver.sink.topics(identifier) for identifier in ids} == dict.fromkeys(ids, LIFE)


async def test_E7_events_of_a_grouped_shim_are_filled_in(driver: Driver) -> None:
    before = time.time_ns()
    shim = await driver.start(driver.bundle(["true"], identifier="leader"))
    first = driver.bundle(["sleep", "1000"], identifier="first")
    second = driver.bundle(["true"], identifier="second", annotations={"io.containerd.runc.v2.group": "leader"})
    tasks = [await shim.create(first), await shim.create(second)]
    for task in tasks:
        await task.start()
    await tasks[0].kill(9)
    for task in tasks:
        await task.wait()
        await driver.sink.wait_for_topic(task.id, "/tasks/exit")  # the order is E1's matter
        await task.delete()
    for task in tasks:
        await driver.sink.wait_for_topic(task.id, "/tasks/delete")
        events = driver.sink.of(task.id)
        assert [recorded.topic for recorded in events] == LIFE
        assert [recorded.type_url for recorded in events] == [
            f"containerd.events.Task{name}" for name in ("Create", "Start", "Exit", "Delete")
        ]
        assert {recorded.namespace for recorded in events} == {driver.namespace}
        assert {recorded.event.pid for recorded in events if hasattr(recorded.event, "pid")} == {task.pid}
        assert all(before <= recorded.sent_at_ns <= recorded.received_at_ns for recorded in events)
        assert [recorded.sent_at_ns for recorded in events] == sorted(recorded.sent_at_ns for recorded in events)
    assert {recorded.container_id for recorded in driver.sink.events} == {"first", "second"}


async def _race(driver: Driver, shim: Shim, identifier: str, microseconds: int) -> bool:
    """An exec beside an init that is about to end; whether the exec was started."""
    task = await shim.create(driver.bundle(["usleep", str(microseconds)], identifier=identifier))
    await task.start()
    started = False
    try:
        exec_ = await task.exec("e", ["true"])
        try:
            await exec_.start()
            started = True
            assert (await exec_.wait()).exit_status in {0, 137}  # the end of init is the end of its namespace
        finally:
            await exec_.delete()
    except (errors.FailedPrecondition, errors.Unknown):
        assert not started, "refused only before it ran"
    assert (await task.wait()).exit_status == 0
    await task.delete()
    return started


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_E2_exit_of_init_comes_after_those_of_its_execs(driver: Driver) -> None:
    shim = await driver.start(driver.bundle(["true"], identifier="leader"))
    choice = random.Random(2)
    waiting = [f"e{number}" for number in range(RACES)]
    ids = list(waiting)
    started: set[str] = set()

    async def worker() -> None:
        while waiting:
            identifier = waiting.pop()
            if await _race(driver, shim, identifier, choice.randint(40_000, 50_000)):
                started.add(identifier)

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(worker)
    for identifier in ids:
        await driver.sink.wait_for_topic(identifier, "/tasks/delete")
        await driver.sink.wait_until(partial(_has_ended, identifier=identifier))
    print(f"{len(started)} of {RACES} execs were started")  # noqa: T201 - pytest shows it with a failure
    order = {identifier: _ended(driver.sink, identifier) for identifier in ids}
    assert order == {identifier: [*(["e"] if identifier in started else []), identifier] for identifier in ids}
    for identifier in started:
        topics = driver.sink.topics(identifier)
        assert topics.index("/tasks/exec-started") < topics.index("/tasks/exit")


def _has_ended(sink: Sink, identifier: str) -> bool:
    return identifier in _ended(sink, identifier)


def _ended(sink: Sink, identifier: str) -> list[str]:
    """Whose exits were told of a task, in order."""
    return [event.id for event in exits(sink.of(identifier))]


@pytest.mark.parametrize("hangs_up", [False, True])
async def test_E5_exit_is_told_when_the_sink_is_back(driver: Driver, hangs_up: bool) -> None:
    path = driver.directory / "e5.sock"
    async with open_sink(path) as first:
        driver.sink = first
        task = await driver.run(["sleep", "1000"])
        await task.start()
        await first.wait_for_topic(task.id, "/tasks/start")
    await task.kill()
    with trio.fail_after(1):
        assert (await task.wait()).exit_status == 137
    with trio.fail_after(1):
        assert (await task.state()).exit_status == 137
    if hangs_up:
        await _hang_up_once(path)
    with trio.fail_after(1):
        await task.delete()
    async with open_sink(path) as second:
        driver.sink = second
        await second.wait_for_topic(task.id, "/tasks/exit", timeout=8)
        await second.wait_for_topic(task.id, "/tasks/delete", timeout=8)
        (event,) = exits(second.of(task.id))
        assert (event.id, event.pid, event.exit_status) == (task.id, task.pid, 137)


async def _hang_up_once(path: Path) -> None:
    """Take the shim's next attempt to tell an event, and close the connection under it."""
    with trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM) as listener:
        await listener.bind(str(path))
        listener.listen(1)
        with trio.fail_after(10):
            connection, _ = await listener.accept()
            with connection:
                assert await connection.recv(1)
    path.unlink()


async def test_E7_events_of_execs_in_a_grouped_shim_are_filled_in(driver: Driver) -> None:
    before = time.time_ns()
    shim = await driver.start(driver.bundle(["true"], identifier="leader"))
    group = {"io.containerd.runc.v2.group": "leader"}
    tasks = [
        await shim.create(driver.bundle(["sleep", "1000"], identifier=identifier, annotations=group))
        for identifier in ("first", "second")
    ]
    pids = {}
    for number, task in enumerate(tasks):
        await task.start()
        exec_ = await task.exec("same", ["sh", "-c", f"exit {number + 3}"])  # ids of execs are the task's own
        pids[task.id] = await exec_.start()
        await exec_.wait()
        await driver.sink.wait_for_topic(task.id, "/tasks/exit")
        await exec_.delete()
    for number, task in enumerate(tasks):
        events = driver.sink.of(task.id)[2:]
        assert [recorded.topic for recorded in events] == EXEC_LIFE
        added, started, ended = (recorded.event for recorded in events)
        assert isinstance(added, events_pb2.TaskExecAdded)
        assert isinstance(started, events_pb2.TaskExecStarted)
        assert isinstance(ended, events_pb2.TaskExit)
        assert [recorded.type_url for recorded in events] == [
            f"containerd.events.Task{name}" for name in ("ExecAdded", "ExecStarted", "Exit")
        ]
        assert (added.exec_id, started.exec_id, ended.id) == ("same", "same", "same")
        assert (started.pid, ended.pid, ended.exit_status) == (pids[task.id], pids[task.id], number + 3)
        assert {recorded.namespace for recorded in events} == {driver.namespace}
        assert all(before <= recorded.sent_at_ns <= recorded.received_at_ns for recorded in events)
        assert before <= ended.exited_at.ToNanoseconds() <= events[2].received_at_ns
    assert {recorded.container_id for recorded in driver.sink.events} == {"first", "second"}
