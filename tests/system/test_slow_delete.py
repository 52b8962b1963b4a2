"""The fault this project was started for: State and everything else while a Delete hangs in the kernel."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import trio

from shim import errors
from tests.system.harness.slowdisk import frozen, open_slow_disk, wait_unmounted
from tests.system.harness.task import STOPPED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from shim.verify.slowdisk import SlowDisk
    from tests.system.harness.driver import Driver
    from tests.system.harness.task import Task

pytestmark = pytest.mark.better_than_peer("the Go shim holds the process's lock while it unmounts")

PROMPT = 1.0
"""Seconds in which every answer must come: liveness, not speed."""


@pytest.fixture
async def disk(directory: Path) -> AsyncIterator[SlowDisk]:
    """A disk that can be stopped."""
    async with open_slow_disk(directory / "one") as opened:
        yield opened


@pytest.fixture
async def second_disk(directory: Path) -> AsyncIterator[SlowDisk]:
    """Another one."""
    async with open_slow_disk(directory / "two") as opened:
        yield opened


async def stopped_task(driver: Driver, disk: SlowDisk) -> Task:
    """A task that exited with 3, its root full of dirty pages."""
    bundle = driver.bundle(["sh", "-c", "exit 3"], root="rootfs", readonly=False)
    shim = await driver.start(bundle)
    task = await shim.create(bundle, rootfs=[disk.overlay(driver.rootfs, "one")])
    await task.start()
    assert (await task.wait()).exit_status == 3
    disk.make_dirty(bundle.path / "rootfs")
    return task


async def stopped_beside(driver: Driver, disk: SlowDisk, other: Task) -> Task:
    """One more such task in the shim of `other`."""
    bundle = driver.bundle(["sh", "-c", "exit 4"], root="rootfs", readonly=False)
    task = await other.shim.create(bundle, rootfs=[disk.overlay(driver.rootfs, bundle.id)])
    await task.start()
    await task.wait()
    disk.make_dirty(bundle.path / "rootfs")
    return task


@pytest.fixture
async def deleting(driver: Driver, disk: SlowDisk) -> AsyncIterator[Task]:
    """A stopped task whose Delete hangs in the kernel for as long as the test runs."""
    task = await stopped_task(driver, disk)
    done: list[object] = []

    async def delete() -> None:
        done.append(await task.delete())

    async with trio.open_nursery() as nursery:
        with frozen(disk):
            nursery.start_soon(delete)
            yield task
            assert done == [], "the disk was frozen: the Delete cannot have ended"
    assert len(done) == 1


async def test_state_answers_as_before_while_delete_hangs(deleting: Task) -> None:
    with trio.move_on_after(2):  # long enough for the Delete to be past the runtime and in the kernel
        while True:
            with trio.fail_after(PROMPT):
                state = await deleting.state()
            assert (state.status, state.exit_status) == (STOPPED, 3)
            await trio.sleep(0.01)
    with trio.fail_after(PROMPT):
        assert (await deleting.wait()).exit_status == 3


async def test_another_container_of_the_shim_lives_its_whole_life_meanwhile(driver: Driver, deleting: Task) -> None:
    bundle = driver.bundle(["sleep", "100"])
    with trio.fail_after(10):
        other = await deleting.shim.create(bundle)
        await other.start()
        further = await other.exec("e", ["true"])
        await further.start()
        assert (await further.wait()).exit_status == 0
        await further.delete()
        await other.kill(9)
        assert (await other.wait()).exit_status == 137
        assert (await other.delete()).exit_status == 137
    with trio.fail_after(PROMPT):
        assert (await deleting.state()).status == STOPPED


async def test_a_stuck_thread_delays_no_call_of_a_running_neighbour(driver: Driver, deleting: Task) -> None:
    bundle = driver.bundle(["sleep", "1000"])
    with trio.fail_after(10):
        other = await deleting.shim.create(bundle)
        await other.start()
    for number in range(5):
        further = await other.exec(f"e{number}", ["sleep", "1000"])
        with trio.fail_after(PROMPT):
            await further.start()
        with trio.fail_after(PROMPT):
            await further.kill(9)
            assert (await further.wait()).exit_status == 137
        with trio.fail_after(PROMPT):
            await further.delete()
        with trio.fail_after(PROMPT):
            assert other.pid in await other.pids()
    with trio.fail_after(PROMPT):
        await other.kill(9)
        assert (await other.wait()).exit_status == 137


async def test_deletions_on_two_stopped_disks_each_wait_for_their_own(
    driver: Driver, disk: SlowDisk, second_disk: SlowDisk
) -> None:
    one = await stopped_task(driver, disk)
    two = await stopped_beside(driver, second_disk, one)
    ended: list[str] = []
    second_ended = trio.Event()

    async def delete(task: Task) -> None:
        await task.delete()
        ended.append(task.id)
        if task is two:
            second_ended.set()

    async with trio.open_nursery() as nursery:
        with frozen(disk):
            with frozen(second_disk):
                nursery.start_soon(delete, one)
                nursery.start_soon(delete, two)
                with trio.move_on_after(1):
                    while True:
                        for task in (one, two):
                            with trio.fail_after(PROMPT):
                                assert (await task.state()).status == STOPPED
                        await trio.sleep(0.01)
                assert ended == []
            with trio.fail_after(10):
                await second_ended.wait()
            assert ended == [two.id], "the first disk was frozen still"
            with trio.fail_after(PROMPT):
                assert (await one.state()).status == STOPPED
    assert ended == [two.id, one.id]


async def test_the_log_says_what_a_slow_unmount_waited_for(driver: Driver, disk: SlowDisk) -> None:
    task = await stopped_task(driver, disk)
    async with trio.open_nursery() as nursery:
        with frozen(disk):
            nursery.start_soon(task.delete)
            with trio.move_on_after(1.5):  # longer than what is called slow, from when the runtime is done
                while True:
                    assert (await task.state()).status == STOPPED
                    await trio.sleep(0.05)
    rootfs = task.bundle.path / "rootfs"
    lines = [line for line in task.shim.log.drain().splitlines() if "slow unmount" in line]
    assert len(lines) == 1, lines
    said = re.search(
        rf"slow unmount of {re.escape(str(rootfs))} \(overlay\): sync (\d+\.\d{{3}}) s, unmount \d+\.\d{{3}} s; "
        r"dirty \d+ -> \d+ bytes, writeback \d+ -> \d+ bytes",
        lines[0],
    )
    assert said is not None, lines[0]
    assert 1 < float(said[1]) < 20


async def test_a_second_delete_waits_and_gets_not_found(driver: Driver, disk: SlowDisk) -> None:
    task = await stopped_task(driver, disk)
    outcomes: list[str] = []

    async def delete() -> None:
        try:
            answer = await task.delete()
        except errors.NotFound:
            outcomes.append("not found")
        else:
            outcomes.append(f"deleted {answer.exit_status}")

    async with trio.open_nursery() as nursery:
        with frozen(disk):
            nursery.start_soon(delete)
            nursery.start_soon(delete)
            with trio.move_on_after(1):
                while True:
                    assert (await task.state()).status == STOPPED
                    await trio.sleep(0.01)
            assert outcomes == []
    assert sorted(outcomes) == ["deleted 3", "not found"]


async def test_the_caller_of_a_hanging_delete_may_leave(driver: Driver, disk: SlowDisk) -> None:
    task = await stopped_task(driver, disk)
    with frozen(disk):
        with pytest.raises(errors.DeadlineExceeded):
            await task.delete(timeout=1)
        with trio.fail_after(PROMPT):
            assert (await task.state()).status == STOPPED
    with trio.fail_after(10):
        await driver.sink.wait_for_topic(task.id, "/tasks/delete")
        with pytest.raises(errors.NotFound):
            await task.state()


async def test_the_delete_command_answers_in_time_whatever_the_unmount_does(driver: Driver, disk: SlowDisk) -> None:
    task = await stopped_task(driver, disk)
    await driver.kill_shim(task.shim)
    with frozen(disk):
        with trio.fail_after(5):
            done, answer = await driver.delete_command(task.bundle)
        assert (done.status, answer.exit_status, answer.pid) == (0, 3, task.pid)
        assert b"still being unmounted" in done.errors
        assert (task.bundle.path / "rootfs").is_mount()
    assert await trio.to_thread.run_sync(wait_unmounted, task.bundle.path / "rootfs", 20.0)
    again, answer = await driver.delete_command(task.bundle)
    assert (again.status, answer.exit_status, again.errors) == (0, 3, b"")
