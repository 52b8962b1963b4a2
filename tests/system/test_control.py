"""Pause, Resume, signals, checkpoint and restore: states while the runtime is at it, after it, and after it failed."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Final

import pytest
import trio

from shim import errors
from shim.verify import faults
from shim.wire.proto.runc_options_pb2 import CheckpointOptions
from shim.wire.typeurl import pack
from tests.system.harness.fifos import holds, open_reader
from tests.system.harness.processes import is_running, open_files
from tests.system.harness.sink import exits
from tests.system.harness.subject import REPOSITORY
from tests.system.harness.task import CREATED, PAUSED, PAUSING, RUNNING, STOPPED

if TYPE_CHECKING:
    from pathlib import Path

    from shim.verify.faults import FaultRuntime
    from tests.system.harness.driver import Driver
    from tests.system.harness.task import Process, Task

RESTORER: Final = str(REPOSITORY / "tests" / "fakes" / "restorer.sh")
TRAPPING: Final = "trap 'echo term; exit 7' TERM; echo ready; while :; do sleep 1000 & wait $!; done"


async def _with_runtime(driver: Driver, runtime: FaultRuntime, args: list[str] | None = None) -> Task:
    bundle = driver.bundle(args or ["sleep", "1000"])
    shim = await driver.start(bundle)
    task = await shim.create(bundle, options=driver.options(binary_name=runtime.binary))
    await task.start()
    return task


async def test_pause_and_resume_are_told_and_seen(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    exec_ = await task.exec("e", ["sleep", "1000"])
    await exec_.start()
    for _ in range(3):
        await task.pause()
        assert [(await process.state()).status for process in (task, exec_)] == [PAUSED, PAUSED]
        assert set(await task.pids()) == {task.pid, exec_.pid}
        await task.resume()
        assert [(await process.state()).status for process in (task, exec_)] == [RUNNING, RUNNING]
    await driver.sink.wait_for_topic(task.id, "/tasks/resumed", count=3)
    assert driver.sink.topics(task.id)[4:] == ["/tasks/paused", "/tasks/resumed"] * 3
    assert await task.run_exec("later", ["sh", "-c", "exit 3"]) == 3


async def _trapping(task: Task, name: str, path: Path) -> Process:
    """An exec that tells on `path` what it has trapped."""
    exec_ = await task.exec(name, ["sh", "-c", TRAPPING], stdout=str(path), stderr=str(path))
    await exec_.start()
    return exec_


async def test_signals_to_a_paused_task_wait_for_its_resume(driver: Driver) -> None:
    path, exec_path = driver.directory / "stdout", driver.directory / "stdout-e"
    bundle = driver.bundle(["sh", "-c", TRAPPING])
    shim = await driver.start(bundle)
    async with open_reader(path) as output, open_reader(exec_path) as exec_output:
        task = await shim.create(bundle, stdout=str(path), stderr=str(path))
        await task.start()
        exec_ = await _trapping(task, "e", exec_path)
        await output.wait_for(holds(b"ready\n"))
        await exec_output.wait_for(holds(b"ready\n"))
        await task.pause()
        for process in (exec_, task):
            await process.kill(signal.SIGTERM)
            with pytest.raises(errors.DeadlineExceeded):
                await process.wait(timeout=0.3)
            assert (await process.state()).status == PAUSED
        await task.resume()
        with trio.fail_after(5):
            assert (await task.wait()).exit_status == 7
            assert (await exec_.wait()).exit_status in {7, 137}, "or init was the quicker one"
        await output.wait_for(holds(b"term\n"))
        await exec_.delete()
        await task.delete()


@pytest.mark.parametrize("everyone", [False, True])
async def test_kill_of_everyone_reaches_the_execs(driver: Driver, everyone: bool) -> None:
    # In a pid namespace of its own init would be deaf to what it does not trap, and its end would end the exec.
    task = await driver.run(["sh", "-c", TRAPPING], own_pid_namespace=False)
    path = driver.directory / "stdout"
    await task.start()
    async with open_reader(path) as output:
        exec_ = await _trapping(task, "e", path)
        await output.wait_for(holds(b"ready\n"))
        await task.kill(signal.SIGTERM, everyone=everyone)
        with trio.fail_after(5):
            # Without `all` only init gets it; what it leaves behind is killed, as nobody else would.
            assert (await exec_.wait()).exit_status == (7 if everyone else 137)
        await task.wait()
        await exec_.delete()


VERBS: Final = ["pause", "resume", "update", "checkpoint"]


async def _call(task: Task, verb: str) -> None:
    if verb == "pause":
        await task.pause()
    elif verb == "resume":
        await task.resume()
    elif verb == "update":
        await task.update(b"{}")
    else:
        await task.checkpoint(str(task.bundle.path / "image"))


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.better_than_peer("the Go shim keeps the process locked while the runtime works")
async def test_state_is_told_while_the_runtime_is_at_it(driver: Driver, verb: str) -> None:
    runtime = faults.make_fault_runtime(driver.directory, {})
    task = await _with_runtime(driver, runtime)
    before, seen = RUNNING, RUNNING
    if verb == "resume":
        await task.pause()
        before = seen = PAUSED
    elif verb == "pause":
        seen = PAUSING
    runtime.plan(
        {verb: [faults.touch("came"), faults.wait_for("go"), faults.fail(message="no luck", log_error="no luck")]}
    )
    came = runtime.fifo("came")

    async def fail() -> None:
        with pytest.raises(errors.Unknown, match="no luck"):
            await _call(task, verb)

    async with trio.open_nursery() as nursery:
        async with open_reader(came) as told:
            nursery.start_soon(fail)
            await told.read_all()
        with trio.fail_after(1):
            assert (await task.state()).status == seen
        with trio.fail_after(1):
            assert await task.pids()
        with pytest.raises(errors.DeadlineExceeded):
            await task.wait(timeout=0.2)
        runtime.file("go").touch()
    assert (await task.state()).status == before
    assert "/tasks/paused" not in driver.sink.topics(task.id)[2 + (verb == "resume") :]
    runtime.plan({})


@pytest.mark.better_than_peer("the Go shim keeps the process locked while the runtime works")
async def test_task_that_ends_while_it_is_being_paused_is_stopped(driver: Driver) -> None:
    runtime = faults.make_fault_runtime(driver.directory, {})
    task = await _with_runtime(driver, runtime)
    runtime.plan({"pause": [faults.touch("came"), faults.wait_for("go")]})
    came = runtime.fifo("came")

    async def pause() -> None:
        with pytest.raises(errors.ShimError):
            await task.pause()

    async with trio.open_nursery() as nursery:
        async with open_reader(came) as told:
            nursery.start_soon(pause)
            await told.read_all()
        os.kill(task.pid, signal.SIGKILL)
        with trio.fail_after(5):
            assert (await task.wait()).exit_status == 137
        runtime.file("go").touch()
    assert (await task.state()).status == STOPPED
    assert (await task.delete()).exit_status == 137


async def test_checkpoint_that_ends_the_task_leaves_it_stopped_and_deletable(driver: Driver) -> None:
    runtime = faults.make_fault_runtime(driver.directory, {}, runtime=RESTORER)
    task = await _with_runtime(driver, runtime)
    image = task.bundle.path / "image"
    await task.checkpoint(str(image))
    assert (await task.state()).status == RUNNING
    assert is_running(task.pid)
    await task.checkpoint(str(image), pack(CheckpointOptions(exit=True)))
    with trio.fail_after(5):
        assert (await task.wait()).exit_status == 137
    assert (await task.state()).status == STOPPED
    # The runtime has forgotten it already, which is no reason to fail.
    assert (await task.delete()).exit_status == 137
    await driver.sink.wait_for_topic(task.id, "/tasks/delete")
    await driver.sink.wait_for_topic(task.id, "/tasks/exit")
    assert len(exits(driver.sink.of(task.id))) == 1
    assert "/tasks/checkpointed" not in driver.sink.topics(task.id)


async def _from_checkpoint(driver: Driver, runtime: FaultRuntime, image: Path, stdout: str = "") -> Task:
    """A task created from the image; `true` would be its program, `sleep` is what the image holds."""
    bundle = driver.bundle(["sh", "-c", "echo restored; exec sleep 1000"])
    shim = await driver.start(bundle)
    return await shim.create(
        bundle,
        checkpoint=str(image),
        stdout=stdout,
        stderr=stdout,
        options=driver.options(binary_name=runtime.binary),
    )


@pytest.mark.better_than_peer("the Go shim asks the runtime for the pids of a task that it has not made")
async def test_restored_task_is_like_any_other(driver: Driver) -> None:
    image, path = driver.directory / "image", driver.directory / "stdout"
    image.mkdir()
    (image / "pages").touch()
    runtime = faults.make_fault_runtime(driver.directory, {}, runtime=RESTORER)
    async with open_reader(path) as output:
        task = await _from_checkpoint(driver, runtime, image, str(path))
        assert task.pid == 0
        assert await task.processes() == {}
        for call in (task.pause, task.resume):
            with pytest.raises((errors.FailedPrecondition, errors.Unknown)):
                await call()
        with pytest.raises((errors.FailedPrecondition, errors.Unknown), match="cannot exec in a created state"):
            await task.exec("e", ["true"])
        pid = await task.start()
        await output.wait_for(holds(b"restored\n"))
        assert (await task.state()).status == RUNNING
        assert (await task.state()).pid == pid
        assert await task.run_exec("e", ["sh", "-c", "exit 3"]) == 3
        assert task.bundle.file("init.pid").read_text() == str(pid)
        await task.kill()
        assert (await task.wait()).exit_status == 137
        assert (await task.delete()).pid == pid
    await driver.sink.wait_for_topic(task.id, "/tasks/delete")
    created = driver.sink.of(task.id)[0].event
    assert (created.pid, created.checkpoint) == (0, str(image))  # type: ignore[union-attr]


@pytest.mark.better_than_peer("the Go shim keeps the streams of a restore that failed")
async def test_restore_that_failed_can_be_tried_again(driver: Driver) -> None:
    image, path = driver.directory / "image", driver.directory / "stdout"
    runtime = faults.make_fault_runtime(driver.directory, {}, runtime=RESTORER)
    async with open_reader(path):
        task = await _from_checkpoint(driver, runtime, image, str(path))
        await driver.sink.wait_for_topic(task.id, "/tasks/create")
        before = open_files(task.shim.pid)
        for _ in range(3):
            with pytest.raises(errors.Unknown, match=r"^OCI runtime restore failed: "):
                await task.start()
            assert (await task.state()).status == CREATED
        after = open_files(task.shim.pid)
        assert len(after) == len(before), (before, after)
        image.mkdir()
        (image / "pages").touch()
        await task.start()
        assert (await task.state()).status == RUNNING
        await task.kill()
        assert (await task.wait()).exit_status == 137
        await task.delete()


@pytest.mark.better_than_peer("the Go shim lets a Wait for it hang")
async def test_task_from_a_checkpoint_that_never_started_can_be_deleted(driver: Driver) -> None:
    runtime = faults.make_fault_runtime(driver.directory, {}, runtime=RESTORER)
    task = await _from_checkpoint(driver, runtime, driver.directory / "image")
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(task.wait)
            await task.state()  # answered after the Wait was read: one connection is read in order
            deleted = await task.delete()
    assert (deleted.pid, deleted.exit_status) == (0, 0)
    with pytest.raises(errors.NotFound):
        await task.state()


async def test_work_directory_of_a_checkpoint_is_ours_to_remove_only_if_we_chose_it(driver: Driver) -> None:
    runtime = faults.make_fault_runtime(driver.directory, {"checkpoint": [faults.fail(message="no luck")]})
    task = await _with_runtime(driver, runtime)
    work = driver.directory / "work"
    work.mkdir()
    (work / "mine").touch()
    with pytest.raises(errors.Unknown, match="no luck"):
        await task.checkpoint("/image", pack(CheckpointOptions(work_path=str(work))))
    assert (work / "mine").exists()
    runtime.plan({})
