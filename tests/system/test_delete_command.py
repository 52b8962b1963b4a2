"""The `delete` command: what a daemon runs when a shim is lost (protocol.md 2.9), and what it must answer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.system.harness.processes import is_running

if TYPE_CHECKING:
    from tests.system.harness.driver import Driver


async def test_living_container_is_ended_with_137(driver: Driver) -> None:
    task = await driver.run(["sh", "-c", "sleep 1000 & sleep 1001"])
    await task.start()
    pids = await task.pids()
    await driver.kill_shim(task.shim)
    before = time.time_ns()
    done, answer = await driver.delete_command(task.bundle)
    assert done.status == 0, done.errors
    assert (answer.pid, answer.exit_status) == (task.pid, 137)
    assert before <= answer.exited_at.ToNanoseconds() <= time.time_ns()
    assert not [pid for pid in pids if is_running(pid)]
    assert not list(driver.runc_root.glob("*/*"))


async def test_created_container_is_ended_with_137(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await driver.kill_shim(task.shim)
    done, answer = await driver.delete_command(task.bundle)
    assert done.status == 0, done.errors
    assert (answer.pid, answer.exit_status) == (task.pid, 137)
    assert not is_running(task.pid)


async def test_second_run_succeeds_as_well(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    await driver.kill_shim(task.shim)
    for _ in range(2):
        done, answer = await driver.delete_command(task.bundle)
        assert done.status == 0, done.errors
        assert answer.exit_status == 137
    assert task.bundle.path.is_dir(), "the bundle is the daemon's to remove"


async def test_nothing_but_the_answer_is_printed(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    await driver.kill_shim(task.shim)
    done, answer = await driver.delete_command(task.bundle)
    assert answer.SerializeToString() == done.output


async def test_it_may_be_run_from_a_sibling_bundle(driver: Driver) -> None:
    sibling = driver.bundle(["true"])
    task = await driver.run(["sleep", "1000"])
    await task.start()
    await driver.kill_shim(task.shim)
    done, answer = await driver.delete_command(task.bundle, cwd=sibling.path)
    assert done.status == 0, done.errors
    assert (answer.pid, answer.exit_status) == (task.pid, 137)
    assert not is_running(task.pid)


@pytest.mark.better_than_peer("the Go shim records an exit only after Wait was answered")
async def test_told_exit_is_the_answer_20_times_of_20(driver: Driver) -> None:
    for number in range(20):
        task = await driver.run(["sh", "-c", f"exit {number + 1}"])
        await task.start()
        told = await task.wait()
        await driver.kill_shim(task.shim)
        done, answer = await driver.delete_command(task.bundle)
        assert done.status == 0, done.errors
        assert (answer.exit_status, answer.pid) == (number + 1, task.pid)
        assert answer.exited_at.ToNanoseconds() == told.exited_at.ToNanoseconds()


@pytest.mark.better_than_peer("the Go shim records an exit only after the event was sent")
async def test_exit_told_by_an_event_is_the_answer(driver: Driver) -> None:
    for _ in range(5):
        task = await driver.run(["sh", "-c", "exit 9"])
        await task.start()
        await driver.sink.wait_for_topic(task.id, "/tasks/exit")
        await driver.kill_shim(task.shim)
        done, answer = await driver.delete_command(task.bundle)
        assert done.status == 0, done.errors
        assert (answer.exit_status, answer.pid) == (9, task.pid)


@pytest.mark.better_than_peer("the Go shim's record is without these")
async def test_record_of_an_exit_is_private_and_complete(driver: Driver) -> None:
    task = await driver.run(["sh", "-c", "exit 4"])
    await task.start()
    await task.wait()
    record = task.bundle.file("exit.json")
    assert record.stat().st_mode & 0o777 == 0o600
    fields = task.bundle.read_json("exit.json")
    assert (fields["Pid"], fields["Status"]) == (task.pid, 4)
    assert isinstance(fields["Timestamp"], str)
    assert len(fields) > 3, "namespace, id, start time of the pid and whether the kernel ended it for memory"
