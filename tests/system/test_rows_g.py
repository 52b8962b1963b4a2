"""Fault rows G: who reaps what."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

import pytest
import trio

from shim import errors
from tests.system.harness.fifos import open_reader
from tests.system.harness.processes import children_of, is_running, parent_of, process_state, wait_ended
from tests.system.harness.task import RUNNING

if TYPE_CHECKING:
    from tests.system.harness.driver import Driver
    from tests.system.harness.task import Shim, Task

MIXED: Final = 200
AT_ONCE: Final = 20

ORPHANING = 'sh -c "sleep 1000 & echo made"; exec sleep 2000'


async def test_G5_orphans_belong_to_their_own_init(driver: Driver) -> None:
    bundle = driver.bundle(["sh", "-c", ORPHANING])
    shim = await driver.start(bundle)
    async with open_reader(bundle.file("stdout")) as output:
        task = await shim.create(bundle, stdout=str(bundle.file("stdout")), stderr=str(bundle.file("stdout")))
        await task.start()
        await output.wait_for(lambda data: data == b"made\n")
        (orphan,) = [pid for pid in await task.pids() if pid != task.pid and parent_of(pid) == task.pid]
        assert is_running(orphan)
        await driver.kill_shim(shim)
        done, _ = await driver.delete_command(bundle)
        assert done.status == 0, done.errors
    assert not is_running(task.pid)
    assert not is_running(orphan)


async def test_G1_orphans_of_an_exec_are_reaped_while_a_sibling_holds_its_output(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"], own_pid_namespace=False)
    await task.start()
    shim, path = task.shim, driver.directory / "stdout"
    async with open_reader(path) as output:
        script = "sleep 100 & echo $!; sleep 1 & echo $!; exit"
        exec_ = await task.exec("e", ["sh", "-c", script], stdout=str(path), stderr=str(path))
        await exec_.start()
        assert (await exec_.wait()).exit_status == 0
        words = (await output.wait_for(lambda data: data.count(b"\n") == 2)).split()
        holder, short = int(words[0]), int(words[1])  # the container shares the host's pids
        assert parent_of(holder) == shim.pid, "orphans come to the shim"
        await wait_ended(short, timeout=5)
        # An exec's end is seen by the same look that sees every other end.
        assert await task.run_exec("later", ["true"]) == 0
        assert [child for child in children_of(shim.pid) if process_state(child) == "Z"] == []
        assert is_running(holder)
        await task.end()
    assert not is_running(holder)


async def _mixed(driver: Driver, shim: Shim, shared: Task, number: int) -> None:
    """One of a few short lives, whose status is known."""
    if number % 4 == 0:
        task = await shim.create(driver.bundle(["sh", "-c", f"exit {number}"], identifier=f"g{number}"))
        await task.start()
        assert (await task.wait()).exit_status == number
        assert (await task.delete()).exit_status == number
    elif number % 4 == 1:
        assert await shared.run_exec(f"e{number}", ["sh", "-c", f"exit {number}"]) == number
    elif number % 4 == 2:
        exec_ = await shared.exec(f"e{number}", ["sleep", "1000"])
        await exec_.start()
        assert (await exec_.state()).status == RUNNING
        await exec_.kill(signal.SIGTERM)
        assert (await exec_.wait()).exit_status == 128 + signal.SIGTERM
        with pytest.raises(errors.NotFound):
            await exec_.kill()
        await exec_.delete()
    else:
        assert (await shared.state()).status == RUNNING
        assert shared.pid in await shared.pids()


@pytest.mark.slow
async def test_G3_mixed_calls_in_parallel_get_their_own_statuses(driver: Driver) -> None:
    shim = await driver.start(driver.bundle(["true"], identifier="leader"))
    shared = await shim.create(driver.bundle(["sleep", "1000"], identifier="shared"))
    await shared.start()
    waiting = list(range(MIXED))

    async def worker() -> None:
        while waiting:
            await _mixed(driver, shim, shared, waiting.pop())

    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(worker)
    assert children_of(shim.pid) == [shared.pid]
