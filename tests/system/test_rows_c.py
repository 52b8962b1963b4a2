"""Fault rows C: Delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
import trio

from shim import errors
from tests.system.harness.processes import is_running
from tests.system.harness.sink import exits
from tests.system.harness.task import CREATED, RUNNING

if TYPE_CHECKING:
    from tests.system.harness.driver import Driver
    from tests.system.harness.task import Process

GO_ZERO_SECONDS: Final = -62135596800
"""The time of what never happened (protocol.md 3.2)."""


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


async def test_C3_exec_that_never_started_can_be_deleted(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    for _ in range(3):
        exec_ = await task.exec("e", ["true"])
        assert (await exec_.state()).status == CREATED
        with trio.fail_after(1):
            deleted = await exec_.delete()
        assert (deleted.pid, deleted.exit_status, deleted.exited_at.seconds) == (0, 0, GO_ZERO_SECONDS)
        for call in (exec_.state, exec_.start, exec_.delete):
            with pytest.raises(errors.NotFound, match="process does not exist e"):
                await call()
    assert (await task.state()).status == RUNNING
    assert is_running(task.pid)
    assert await task.run_exec("e", ["sh", "-c", "exit 3"]) == 3
    # Of those that never ran nobody hears but that they were there.
    await driver.sink.wait_for_topic(task.id, "/tasks/exit")
    added, started, ended = "/tasks/exec-added", "/tasks/exec-started", "/tasks/exit"
    assert driver.sink.topics(task.id)[2:] == [added, added, added, added, started, ended]


@pytest.mark.better_than_peer("the Go shim lets a Wait for an exec that was deleted unstarted hang")
async def test_C3_waiters_of_a_deleted_exec_are_let_go(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    exec_ = await task.exec("e", ["true"])
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_wait_for_nothing, exec_)
            await task.state()  # answered after the Wait was read: one connection is read in order
            await exec_.delete()


async def _wait_for_nothing(exec_: Process) -> None:
    answer = await exec_.wait()
    assert (answer.exit_status, answer.exited_at.seconds) == (0, GO_ZERO_SECONDS)
