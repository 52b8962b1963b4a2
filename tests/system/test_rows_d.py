"""Fault rows D: exit status."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Final

import pytest
import trio

from shim import errors
from tests.system.harness.processes import is_running
from tests.system.harness.sink import deletes, exits
from tests.system.harness.task import CREATED

if TYPE_CHECKING:
    from shim.wire.proto.task_pb2 import WaitResponse
    from tests.system.harness.driver import Driver
    from tests.system.harness.task import Process

ENDINGS: Final = [
    ("exit 0", 0),
    ("exit 1", 1),
    ("exit 126", 126),
    ("exit 127", 127),
    ("exit 255", 255),
    ("kill -KILL $$", 128 + signal.SIGKILL),
    ("kill -SEGV $$", 128 + signal.SIGSEGV),
    ("kill -ABRT $$", 128 + signal.SIGABRT),
]


@pytest.mark.better_than_peer("the 1.6 Go shim keeps no record of the exit", only="go-1.6")
async def test_D1_exit_that_the_shim_saw_survives_the_shim(driver: Driver) -> None:
    task = await driver.run(["sh", "-c", "exit 7"])
    await task.start()
    told = await task.wait()
    await driver.sink.wait_for_topic(task.id, "/tasks/exit")
    await driver.kill_shim(task.shim)
    done, answer = await driver.delete_command(task.bundle)
    assert done.status == 0, done.errors
    assert (answer.exit_status, answer.pid) == (7, task.pid)
    assert answer.exited_at.ToNanoseconds() == told.exited_at.ToNanoseconds()


async def test_D1_living_init_of_a_dead_shim_is_killed(driver: Driver) -> None:
    task = await driver.run(["sh", "-c", "sleep 1000 & sleep 1000"])
    await task.start()
    pids = await task.pids()
    before = time.time_ns()
    await driver.kill_shim(task.shim)
    done, answer = await driver.delete_command(task.bundle)
    assert done.status == 0, done.errors
    assert (answer.exit_status, answer.pid) == (137, task.pid)
    assert before <= answer.exited_at.ToNanoseconds() <= time.time_ns()
    assert task.pid in pids
    assert not [pid for pid in pids if is_running(pid)]


async def test_D3_every_wait_gives_the_same_answer(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    answers: list[WaitResponse] = []

    async def wait() -> None:
        answers.append(await task.wait())

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(wait)
        await task.state()  # answered after the Waits were read: one connection is read in order
        assert answers == []
        await task.kill(signal.SIGKILL)
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(wait)
    assert len(answers) == 40
    assert {answer.exit_status for answer in answers} == {137}
    assert len({answer.exited_at.ToNanoseconds() for answer in answers}) == 1


@pytest.mark.parametrize(("ending", "status"), ENDINGS)
async def test_D4_status_is_the_same_everywhere(driver: Driver, ending: str, status: int) -> None:
    # In a pid namespace of its own init would be deaf to its own signals.
    task = await driver.run(["sh", "-c", ending], own_pid_namespace=False)
    await task.start()
    told = await task.wait()
    state = await task.state()
    deleted = await task.delete()
    await driver.sink.wait_for_topic(task.id, "/tasks/delete")
    await driver.sink.wait_for_topic(task.id, "/tasks/exit")  # the order is E1's matter
    (exit_event,) = exits(driver.sink.of(task.id))
    (delete_event,) = deletes(driver.sink.of(task.id))
    facts = {
        (answer.exit_status, answer.exited_at.ToNanoseconds())
        for answer in (told, state, deleted, exit_event, delete_event)
    }
    assert facts == {(status, told.exited_at.ToNanoseconds())}
    assert {answer.pid for answer in (state, deleted, exit_event, delete_event)} == {task.pid}


@pytest.mark.parametrize(("ending", "status"), ENDINGS)
async def test_D4_status_of_an_exec_is_the_same_everywhere(driver: Driver, ending: str, status: int) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    exec_ = await task.exec("e", ["sh", "-c", ending])
    pid = await exec_.start()
    told = await exec_.wait()
    state = await exec_.state()
    deleted = await exec_.delete()
    await driver.sink.wait_for_topic(task.id, "/tasks/exit")
    (exit_event,) = exits(driver.sink.of(task.id))
    facts = {(answer.exit_status, answer.exited_at.ToNanoseconds()) for answer in (told, state, deleted, exit_event)}
    assert facts == {(status, told.exited_at.ToNanoseconds())}
    assert {answer.pid for answer in (state, deleted, exit_event)} == {pid}
    assert (exit_event.container_id, exit_event.id) == (task.id, "e")


@pytest.mark.parametrize("args", [["/no/such/program"], ["no-such-program"], ["/etc/passwd"], ["/bin"]])
async def test_D2_exec_of_what_cannot_run_says_why_every_time(driver: Driver, args: list[str]) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    for _ in range(5):
        exec_ = await task.exec("e", args)
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_status_of_nothing, exec_)
                with pytest.raises(errors.Unknown, match=rf"^OCI runtime exec failed: exec failed: .*{args[0]}"):
                    await exec_.start()
            await _status_of_nothing(exec_)
        state = await exec_.state()
        assert (state.status, state.pid, state.exit_status) == (CREATED, 0, 0)
        await exec_.delete()
    assert await task.run_exec("e", ["sh", "-c", "exit 3"]) == 3
    await driver.sink.wait_for_topic(task.id, "/tasks/exit")
    assert driver.sink.topics(task.id)[2:] == [*["/tasks/exec-added"] * 6, "/tasks/exec-started", "/tasks/exit"]


async def _status_of_nothing(exec_: Process) -> None:
    """A Wait that ends, though the exec never ran."""
    assert (await exec_.wait()).exit_status == 0


@pytest.mark.better_than_peer("the Go shim does not survive a second Start after one that failed")
async def test_D2_exec_that_failed_can_be_started_again(driver: Driver) -> None:
    task = await driver.run(["sh", "-c", "until [ -e /tmp/made ]; do usleep 10000; done; exec sleep 1000"])
    await task.start()
    exec_ = await task.exec("e", ["/tmp/program"])
    with pytest.raises(errors.Unknown, match=r"/tmp/program"):
        await exec_.start()
    script = "echo '#!/bin/sh' >/tmp/program; echo exit 3 >>/tmp/program; chmod +x /tmp/program"
    assert await task.run_exec("maker", ["sh", "-c", script]) == 0
    await exec_.start()
    assert (await exec_.wait()).exit_status == 3
    await exec_.delete()
