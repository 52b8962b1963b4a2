"""Fault rows F: the life of an exec."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Final

import pytest
import trio

from shim import errors
from tests.system.harness.processes import children_of, is_running, open_files
from tests.system.harness.task import RUNNING

if TYPE_CHECKING:
    from tests.system.harness.driver import Driver

KILLS: Final = 200
PROBES: Final = 50
PROBES_AT_ONCE: Final = 10


async def test_F1_exec_id_is_taken_until_its_delete(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    first = await task.exec("e", ["sh", "-c", "exit 3"])
    with pytest.raises(errors.AlreadyExists, match=r"^id e$"):
        await task.exec("e", ["true"])
    await first.start()
    with pytest.raises(errors.AlreadyExists):
        await task.exec("e", ["true"])
    assert (await first.wait()).exit_status == 3, "the refused Exec changed the one that was there"
    with pytest.raises(errors.AlreadyExists):
        await task.exec("e", ["true"])
    await first.delete()
    assert await task.run_exec("e", ["true"]) == 0


async def test_F1_exec_id_is_free_after_a_bad_spec(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    for spec in (b"{ not json", b"", b"[]", b'"text"', b"\xff\xfe"):
        with pytest.raises((errors.InvalidArgument, errors.Unknown)):
            await task.exec_spec("e", spec)
        with pytest.raises(errors.NotFound):
            await task.known_exec("e").state()
    assert await task.run_exec("e", ["true"]) == 0


@pytest.mark.slow
async def test_F2_kill_of_what_may_have_ended_is_ok_or_not_found(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    for number in range(KILLS):
        exec_ = await task.exec(f"e{number}", ["true"])
        if number % 10 == 0:
            with pytest.raises(errors.FailedPrecondition, match=r"^process not created$"):
                await exec_.kill()
        await exec_.start()
        with contextlib.suppress(errors.NotFound):
            await exec_.kill()
        assert (await exec_.wait()).exit_status in {0, 128 + signal.SIGKILL}
        with pytest.raises(errors.NotFound, match=r"^process already finished$"):
            await exec_.kill()
        await exec_.delete()


@pytest.mark.slow
@pytest.mark.better_than_peer("the 2.4 Go shim loses a descriptor now and then", only="go-2.4")
async def test_F4_probes_that_time_out_leave_nothing(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    assert await task.run_exec("warm", ["true"]) == 0
    files, children = len(open_files(task.shim.pid)), children_of(task.shim.pid)
    waiting = list(range(PROBES))

    async def probe(number: int) -> None:
        exec_ = await task.exec(f"e{number}", ["sleep", "1000"])
        pid = await exec_.start()
        with pytest.raises(errors.DeadlineExceeded):
            await exec_.wait(timeout=1)
        assert (await exec_.state()).status == RUNNING
        assert is_running(pid)
        await exec_.kill()
        assert (await exec_.wait()).exit_status == 137
        await exec_.delete()
        assert not is_running(pid)

    async def worker() -> None:
        while waiting:
            await probe(waiting.pop())

    async with trio.open_nursery() as nursery:
        for _ in range(PROBES_AT_ONCE):
            nursery.start_soon(worker)
    assert list(await task.processes()) == [task.pid]
    assert len(open_files(task.shim.pid)) == files
    assert children_of(task.shim.pid) == children
