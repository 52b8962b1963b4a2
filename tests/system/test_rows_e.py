"""Fault rows E: order and content of events."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import pytest
import trio

if TYPE_CHECKING:
    from tests.system.harness.driver import Driver
    from tests.system.harness.task import Shim

LIFE: Final = ["/tasks/create", "/tasks/start", "/tasks/exit", "/tasks/delete"]


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
