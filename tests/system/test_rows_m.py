"""Fault rows M: kill, pause, and the order of calls."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
import trio

from shim import errors
from shim.kernel.cgroup_files import CgroupPlaces
from shim.kernel.cgroups import UNIFIED
from shim.verify import faults
from tests.system.harness.processes import is_running, process_state
from tests.system.harness.sink import exits
from tests.system.harness.task import CREATED, PAUSED, RUNNING, STOPPED, Process

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.system.harness.bundles import Bundle
    from tests.system.harness.daemons import Daemon
    from tests.system.harness.driver import Driver
    from tests.system.harness.task import Task

REFUSED: Final = (errors.FailedPrecondition, errors.Unknown, errors.NotFound)
"""Ours says FailedPrecondition or NotFound; the Go shim gives most refusals no class (protocol.md 3.5)."""


def _content(bundle: Bundle) -> dict[str, bytes]:
    """What a refused second Create must not touch; the runtime appends to its log whatever happens."""
    return {path.name: path.read_bytes() for path in bundle.path.iterdir() if path.is_file() and path.suffix != ".log"}


async def test_M5_second_create_of_an_id_leaves_the_first_alone(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    before = _content(task.bundle)
    before.pop("log.json", None)
    with pytest.raises((errors.AlreadyExists, errors.Unknown)):
        await task.shim.create(task.bundle)
    after = _content(task.bundle)
    after.pop("log.json", None)
    assert after == before
    assert (await task.state()).status == RUNNING
    assert is_running(task.pid)


async def test_M5_second_start_command_gives_the_same_shim(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    again = await driver.start(task.bundle)
    assert again.pid == task.shim.pid
    assert again.answer.address == task.shim.answer.address
    assert (await task.state()).status == RUNNING
    driver.shims.remove(again)


async def test_M5_daemon_refuses_a_second_run_of_an_id(daemon: Daemon) -> None:
    await daemon.ctr_ok(*daemon.run_arguments("m5", ["sleep", "1000"], "--detach"))
    (pid,) = [int(line.split()[0]) for line in (await daemon.ctr_ok("tasks", "ps", "m5")).splitlines()[1:]]
    done = await daemon.run("m5", ["true"])
    assert done.status != 0
    assert b"already exists" in done.errors
    assert "RUNNING" in await daemon.ctr_ok("tasks", "list")
    assert is_running(pid)
    assert (daemon.bundles / "m5" / "config.json").exists()


async def test_M1_kill_of_a_finished_process_is_not_found(driver: Driver) -> None:
    task = await driver.run(["true"])
    await task.start()
    await task.wait()
    with pytest.raises(errors.NotFound, match=r"^process already finished$"):
        await task.kill()
    await task.delete()
    with pytest.raises(errors.NotFound, match=r"^container not created$"):
        await task.kill()


@pytest.mark.better_than_peer("runc kills all of a container that has ended, and says OK")
async def test_M1_kill_of_everyone_in_a_finished_task_is_not_found(driver: Driver) -> None:
    task = await driver.run(["true"])
    await task.start()
    await task.wait()
    with pytest.raises(errors.NotFound, match=r"^process already finished$"):
        await task.kill(everyone=True)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        pytest.param("container not running", "process already finished", id="runc"),
        pytest.param("unable to signal init: os: process already finished", "process already finished", id="runc-race"),
        pytest.param("container does not exist", "no such container", id="runc-gone"),
        pytest.param("open pidfd: No such process", "process already finished", id="crun"),
        pytest.param("kill container: No such process", "process already finished", id="crun-race"),
        pytest.param(
            "error opening file `/run/crun/x/status`: No such file or directory",
            "no such container",
            id="crun-gone",
            marks=pytest.mark.better_than_peer("the Go shim does not know crun's words for it"),
        ),
    ],
)
@pytest.mark.parametrize("place", ["stderr", "log"])
async def test_M1_every_runtimes_words_for_gone_are_not_found(driver: Driver, said: str, told: str, place: str) -> None:
    refusal = faults.fail(message=said) if place == "stderr" else faults.fail(message=said, log_error=said)
    runtime = faults.make_fault_runtime(driver.directory, {"--version": faults.unlike_runc(), "kill": [refusal]})
    bundle = driver.bundle(["sleep", "1000"])
    shim = await driver.start(bundle)
    task = await shim.create(bundle, options=driver.options(binary_name=runtime.binary))
    await task.start()
    with pytest.raises(errors.NotFound, match=rf"^{told}$"):
        await task.kill()
    assert (await task.state()).status == RUNNING, "the shim believes its own eyes"
    runtime.plan({})
    await task.kill()
    assert (await task.wait()).exit_status == 137


@pytest.mark.better_than_peer("the Go shim's answer differs in its words only")
async def test_M1_other_failure_of_a_kill_is_told(driver: Driver) -> None:
    runtime = faults.make_fault_runtime(
        driver.directory, {"--version": faults.unlike_runc(), "kill": [faults.fail(3, message="no luck today")]}
    )
    bundle = driver.bundle(["sleep", "1000"])
    shim = await driver.start(bundle)
    task = await shim.create(bundle, options=driver.options(binary_name=runtime.binary))
    await task.start()
    with pytest.raises(errors.Unknown, match=r"^unknown error after kill: .*exit status 3: no luck today$"):
        await task.kill()
    runtime.plan({})


def _freezer(pid: int) -> Callable[[], bool]:
    """Tells, also after its end, whether the container of that init is frozen."""
    places = CgroupPlaces.of(pid)
    if places.unified:
        unified = Path(places.directories[UNIFIED], "cgroup.events")
        return lambda: "frozen 1" in unified.read_text()
    legacy = Path(places.directories["freezer"], "freezer.state")
    return lambda: legacy.read_text() == "FROZEN\n"


async def test_M2_kill_of_a_paused_task_ends_it(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    is_frozen = _freezer(task.pid)
    await task.pause()
    assert (await task.state()).status == PAUSED
    assert is_frozen()
    with trio.fail_after(2):
        await task.kill(signal.SIGKILL)
        assert (await task.wait()).exit_status == 137
    assert (await task.state()).status == STOPPED
    assert not is_frozen()
    await task.delete()
    await driver.sink.wait_for_topic(task.id, "/tasks/delete")
    await driver.sink.wait_for_topic(task.id, "/tasks/exit")  # the order is E1's matter
    assert [event.exit_status for event in exits(driver.sink.of(task.id))] == [137]


async def test_M2_exec_of_a_paused_task_can_be_killed_with_it(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    exec_ = await task.exec("e", ["sleep", "1000"])
    await exec_.start()
    await task.pause()
    assert (await exec_.state()).status == PAUSED
    with trio.fail_after(5):
        await task.kill(signal.SIGKILL)
        assert (await task.wait()).exit_status == 137
        assert (await exec_.wait()).exit_status == 137
    await exec_.delete()


async def _start(task: Task) -> None:
    await task.start()


async def _pause(task: Task) -> None:
    await task.pause()


async def _resume(task: Task) -> None:
    await task.resume()


async def _delete(task: Task) -> None:
    await task.delete()


async def _exec(task: Task) -> None:
    await task.exec("e", ["true"])


async def _checkpoint(task: Task) -> None:
    await task.checkpoint(str(task.bundle.path / "image"))


async def _update(task: Task) -> None:
    await task.update(b"{}")


async def _kill(task: Task) -> None:
    await task.kill()


ORDER: Final[dict[int, dict[Callable[[Task], Awaitable[None]], str]]] = {
    CREATED: {
        _pause: "cannot pause task in created state",
        _resume: "cannot resume task in created state",
        _checkpoint: "cannot checkpoint a task in created state",
    },
    RUNNING: {
        _start: "cannot start a running process",
        _resume: "cannot resume a running process",
        _delete: "cannot delete a running process",
    },
    PAUSED: {
        _start: "cannot start a paused process",
        _pause: "cannot pause a paused container",
        _delete: "cannot delete a paused process",
        _exec: "cannot exec in a paused state",
    },
    STOPPED: {
        _start: "cannot start a stopped process",
        _pause: "cannot pause a stopped container",
        _resume: "cannot resume a stopped container",
        _exec: "cannot exec in a stopped state",
        _update: "cannot update a stopped container",
        _checkpoint: "cannot checkpoint a stopped container",
        _kill: "process already finished",
    },
}
"""What is refused in each state, with the words that people know (protocol.md 3.5)."""


async def _bring_to(task: Task, status: int) -> None:
    if status != CREATED:
        await task.start()
    if status == PAUSED:
        await task.pause()
    if status == STOPPED:
        await task.kill()
        await task.wait()


@pytest.mark.better_than_peer("a second Start of a running task upsets the Go shim's books")
@pytest.mark.parametrize("status", list(ORDER))
async def test_M8_calls_out_of_order_are_refused_at_once_and_change_nothing(driver: Driver, status: int) -> None:
    task = await driver.run(["sleep", "1000"])
    await _bring_to(task, status)
    before = await task.state()
    assert before.status == status
    for call, words in ORDER[status].items():
        expected = errors.NotFound if call is _kill else errors.FailedPrecondition
        with trio.fail_after(2), pytest.raises(expected) as caught:
            await call(task)
        assert caught.value.message == words
        assert await task.state() == before
    assert not task.bundle.file("image").exists()


@pytest.mark.parametrize("status", list(ORDER))
async def test_M8_refusals_have_the_words_that_people_know(driver: Driver, status: int) -> None:
    task = await driver.run(["sleep", "1000"])
    await _bring_to(task, status)
    for call, words in ORDER[status].items():
        if call is _start:
            continue
        with trio.fail_after(2), pytest.raises(REFUSED) as caught:
            await call(task)
        assert caught.value.message == words


async def _of_exec(driver: Driver) -> tuple[Task, Process]:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    return task, await task.exec("e", ["sleep", "1000"])


@pytest.mark.better_than_peer("a second Start of a running exec ends the Go shim")
async def test_M8_execs_out_of_order_are_refused_at_once_and_change_nothing(driver: Driver) -> None:
    task, exec_ = await _of_exec(driver)
    with pytest.raises(errors.FailedPrecondition, match=r"^process not created$"):
        await exec_.kill()
    await exec_.start()
    before = await exec_.state()
    for _ in range(2):
        with trio.fail_after(2), pytest.raises(errors.FailedPrecondition, match=r"^cannot start a running process$"):
            await exec_.start()
    with trio.fail_after(2), pytest.raises(errors.FailedPrecondition, match=r"^cannot delete a running process$"):
        await exec_.delete()
    assert await exec_.state() == before
    await exec_.kill()
    await exec_.wait()
    with pytest.raises(errors.FailedPrecondition, match=r"^cannot start a stopped process$"):
        await exec_.start()
    await exec_.delete()
    await driver.sink.wait_for_topic(task.id, "/tasks/exit")
    assert [event.id for event in exits(driver.sink.of(task.id))] == ["e"]


async def test_M8_start_of_an_exec_is_refused_when_init_has_ended(driver: Driver) -> None:
    task, exec_ = await _of_exec(driver)
    await task.kill()
    await task.wait()
    with (
        trio.fail_after(2),
        pytest.raises(errors.FailedPrecondition, match=rf"^container {task.id} init process is not running$"),
    ):
        await exec_.start()
    await exec_.delete()
    with pytest.raises(errors.NotFound):
        await exec_.state()


async def test_M8_start_of_an_exec_is_refused_while_its_task_is_paused(driver: Driver) -> None:
    task, exec_ = await _of_exec(driver)
    await task.pause()
    with trio.fail_after(2), pytest.raises(REFUSED):
        await exec_.start()
    await task.resume()
    assert (await exec_.state()).status == CREATED
    await exec_.start()
    assert (await exec_.state()).status == RUNNING


@pytest.mark.better_than_peer("the Go shim asks the runtime or the kernel, whose errors have no class")
@pytest.mark.parametrize("number", [65, 99999, 2**32 - 1])
async def test_M8_signal_that_does_not_exist_is_an_invalid_argument(driver: Driver, number: int) -> None:
    task, exec_ = await _of_exec(driver)
    await exec_.start()
    for process in (task, exec_):
        before = await process.state()
        with trio.fail_after(2), pytest.raises(errors.InvalidArgument, match=str(number)):
            await process.kill(number)
        assert await process.state() == before
    assert is_running(task.pid)
    assert is_running(exec_.pid)


@pytest.mark.better_than_peer("runc knows no signal 0")
async def test_M8_signal_0_asks_whether_a_process_is_there_and_sends_nothing(driver: Driver) -> None:
    runtime = faults.make_fault_runtime(driver.directory, {"kill": [faults.record()]})
    bundle = driver.bundle(["sh", "-c", "trap 'exit 9' TERM HUP INT; while :; do sleep 1; done"])
    shim = await driver.start(bundle)
    task = await shim.create(bundle, options=driver.options(binary_name=runtime.binary))
    await task.start()
    exec_ = await task.exec("e", ["sleep", "1000"])
    with pytest.raises(errors.FailedPrecondition):
        await exec_.kill(0)
    await exec_.start()
    for process in (task, exec_):
        before = await process.state()
        await process.kill(0)
        assert await process.state() == before
    assert runtime.recorded() == []
    assert process_state(task.pid) in "SR"
    await exec_.kill()
    await exec_.wait()
    await task.kill()
    await task.wait()
    for process in (task, exec_):
        with pytest.raises(errors.NotFound, match=r"^process already finished$"):
            await process.kill(0)
