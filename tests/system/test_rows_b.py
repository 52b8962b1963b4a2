"""Fault rows B: one slow call must not block the rest."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import pytest
import trio

from shim import errors
from shim.verify import faults
from tests.system.harness.fifos import holds, open_reader
from tests.system.harness.task import RUNNING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.system.harness.driver import Driver
    from tests.system.harness.task import Task

EXECS: Final = 30
PROMPT: Final = 1.0
"""Seconds within which what has nothing to do with the slow call must be answered (the row)."""


@pytest.mark.slow
async def test_B1_output_held_by_a_child_delays_that_delete_only(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    path = driver.directory / "stdout"
    deleted = trio.Event()

    async with open_reader(path) as output, trio.open_nursery() as nursery:
        holder = await task.exec("holder", ["sh", "-c", "sleep 60 & echo ok"], stdout=str(path), stderr=str(path))
        await holder.start()
        assert (await holder.wait()).exit_status == 0
        await output.wait_for(holds(b"ok\n"))

        async def delete() -> None:
            with trio.fail_after(12):
                await holder.delete()
            deleted.set()

        nursery.start_soon(delete)
        rounds = 0
        while not deleted.is_set():
            rounds += 1
            with trio.fail_after(PROMPT):
                assert (await task.state()).status == RUNNING
            with trio.fail_after(PROMPT):
                assert task.pid in await task.pids()
            other = await task.exec(f"other{rounds}", ["true"])
            with trio.fail_after(PROMPT):
                await other.start()
            with trio.fail_after(PROMPT):
                assert (await other.wait()).exit_status == 0
            with trio.fail_after(PROMPT):
                await other.delete()
    assert rounds > 1, "the Delete did not wait for the output"
    assert await task.run_exec("holder", ["true"]) == 0


@pytest.fixture
async def stuck_kill(driver: Driver) -> AsyncIterator[Task]:
    """A running task with a Kill that has come to the runtime and hangs there until the test is over."""
    runtime = faults.make_fault_runtime(
        driver.directory, {"--version": faults.unlike_runc(), "kill": [faults.touch("came"), faults.wait_for("go")]}
    )
    came = runtime.fifo("came")
    bundle = driver.bundle(["sleep", "1000"])
    shim = await driver.start(bundle)
    task = await shim.create(bundle, options=driver.options(binary_name=runtime.binary))
    await task.start()
    async with trio.open_nursery() as nursery:
        async with open_reader(came) as told:
            nursery.start_soon(task.kill)
            await told.read_all()
        yield task
        came.unlink()
        runtime.file("go").touch()
        with trio.fail_after(10):
            assert (await task.wait()).exit_status == 137


async def _kill_that_does_not_hold(task: Task) -> None:
    with trio.fail_after(PROMPT):
        assert (await task.state()).status == RUNNING
    with trio.fail_after(PROMPT + 1), pytest.raises(errors.DeadlineExceeded):
        await task.wait(timeout=PROMPT)
    with trio.fail_after(PROMPT):
        assert (await task.state()).status == RUNNING


@pytest.mark.slow
@pytest.mark.better_than_peer("the Go shim keeps the process locked while the runtime kills")
async def test_B2_stuck_kill_leaves_state_and_wait_alone(stuck_kill: Task) -> None:
    await _kill_that_does_not_hold(stuck_kill)


@pytest.mark.slow
@pytest.mark.better_than_peer("as above")
async def test_B2_stuck_kill_leaves_execs_alone(stuck_kill: Task) -> None:
    with trio.fail_after(5):
        assert await stuck_kill.run_exec("e", ["sh", "-c", "exit 3"]) == 3
    with trio.fail_after(5):
        assert stuck_kill.pid in await stuck_kill.pids()


@pytest.mark.slow
async def test_B5_parallel_execs_are_not_slower_than_serial_ones(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()

    async def round_of(name: str) -> None:
        assert await task.run_exec(name, ["true"]) == 0

    await round_of("warm")
    began = time.monotonic()
    for number in range(EXECS):
        await round_of(f"s{number}")
    serial = time.monotonic() - began
    began = time.monotonic()
    async with trio.open_nursery() as nursery:
        for number in range(EXECS):
            nursery.start_soon(round_of, f"p{number}")
    assert time.monotonic() - began <= serial
