"""Fault rows C: Delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from shim import errors
from tests.system.harness.processes import is_running
from tests.system.harness.sink import exits

if TYPE_CHECKING:
    from tests.system.harness.driver import Driver


async def test_C1_calls_after_delete_are_not_found(driver: Driver) -> None:
    task = await driver.run(["true"])
    await task.start()
    await task.wait()
    await task.delete()
    for call in (task.delete, task.kill, task.state, task.wait):
        with pytest.raises(errors.NotFound):
            await call()


async def test_C4_created_task_can_be_killed(driver: Driver) -> None:
    task = await driver.run(["sleep", "100"])
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(task.wait)
            await task.kill(9)
        told = await task.wait()
        deleted = await task.delete()
    assert (told.exit_status, deleted.exit_status) == (137, 137)
    assert deleted.pid == task.pid
    assert not is_running(task.pid), "the runtime's waiting init is still there"


@pytest.mark.better_than_peer("the Go shim publishes no exit for a task that was never started")
async def test_C4_killed_created_task_has_one_exit_event(driver: Driver) -> None:
    task = await driver.run(["sleep", "100"])
    await task.kill(9)
    await task.wait()
    await task.delete()
    await driver.sink.wait_for_topic(task.id, "/tasks/delete")
    assert [(event.pid, event.exit_status) for event in exits(driver.sink.of(task.id))] == [(task.pid, 137)]
    assert driver.sink.topics(task.id) == ["/tasks/create", "/tasks/exit", "/tasks/delete"]


async def test_C4_created_task_can_be_deleted_at_once(driver: Driver) -> None:
    task = await driver.run(["sleep", "100"])
    await task.delete()
    assert not is_running(task.pid), "the runtime's waiting init is still there"
    with pytest.raises(errors.NotFound):
        await task.state()
