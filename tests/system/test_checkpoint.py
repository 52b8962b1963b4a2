"""Checkpoint and restore as far as they can be proven without CRIU: command lines, texts and states (row Z3)."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from shim import errors
from shim.verify import faults
from shim.wire.proto.runc_options_pb2 import CheckpointOptions, Options
from shim.wire.proto.task_pb2 import CheckpointTaskRequest, CreateTaskRequest, CreateTaskResponse
from shim.wire.typeurl import pack
from tests.system.harness.task import CREATED, RUNNING, STOPPED, Task

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from google.protobuf.message import Message

    from shim.verify.faultplan import Step
    from shim.verify.faults import FaultRuntime
    from tests.system.harness.driver import Driver

DONE = faults.lie([])
"""Ends well and runs nothing: CRIU is not here."""


async def running(driver: Driver, steps: Sequence[Step]) -> tuple[Task, FaultRuntime]:
    """A running task whose runtime does `steps` for a checkpoint."""
    runtime = faults.make_fault_runtime(driver.directory, {"checkpoint": [faults.record(), *steps]})
    bundle = driver.bundle(["sleep", "1000"])
    shim = await driver.start(bundle)
    task = await shim.create(bundle, options=driver.options(binary_name=runtime.binary))
    await task.start()
    return task, runtime


async def checkpoint(task: Task, path: str, options: Message | None = None) -> None:
    request = CheckpointTaskRequest(id=task.id, path=path)
    if options is not None:
        request.options.CopyFrom(pack(options))
    await task.shim.send("Checkpoint", request)


def words_of(runtime: FaultRuntime) -> list[str]:
    """What came after the verb, the last time."""
    argv = list(runtime.recorded()[-1].argv)
    return argv[argv.index("checkpoint") + 1 :]


async def test_Z3_without_options_the_task_goes_on(driver: Driver) -> None:
    task, runtime = await running(driver, [DONE])
    await checkpoint(task, "/image")
    work = task.bundle.path / "work" / "criu-work"
    assert words_of(runtime) == ["--image-path", "/image", "--work-path", str(work), "--leave-running", task.id]
    assert (await task.state()).status == RUNNING


async def test_Z3_every_option_is_passed_on(driver: Driver) -> None:
    task, runtime = await running(driver, [DONE])
    options = CheckpointOptions(
        exit=True,
        open_tcp=True,
        external_unix_sockets=True,
        terminal=True,
        file_locks=True,
        empty_namespaces=["network", "uts"],
        work_path="/work-dir",
        parent_path="../before",
    )
    await checkpoint(task, "/image", options)
    assert words_of(runtime) == [
        *("--image-path", "/image", "--work-path", "/work-dir", "--parent-path", "../before"),
        *("--tcp-established", "--ext-unix-sk", "--shell-job", "--file-locks"),
        *("--empty-ns", "network", "--empty-ns", "uts"),
        task.id,
    ]
    assert (await task.state()).status == RUNNING, "it runs until its end is seen"
    os.kill(task.pid, signal.SIGKILL)  # which an exiting checkpoint does
    assert (await task.wait()).exit_status == 137
    assert (await task.state()).status == STOPPED
    await task.delete()


@pytest.mark.better_than_peer("the Go shim answers Unknown for options of another type")
async def test_Z3_options_of_another_type_are_refused(driver: Driver) -> None:
    task, runtime = await running(driver, [DONE])
    with pytest.raises(errors.InvalidArgument, match=r"containerd\.runc\.v1\.Options"):
        await checkpoint(task, "/image", Options())
    assert runtime.calls("checkpoint") == 0
    assert (await task.state()).status == RUNNING


@pytest.mark.better_than_peer("the Go shim hands an empty path on")
async def test_Z3_no_path_is_refused(driver: Driver) -> None:
    task, runtime = await running(driver, [DONE])
    with pytest.raises(errors.InvalidArgument, match="path"):
        await checkpoint(task, "")
    assert runtime.calls("checkpoint") == 0


async def test_Z3_a_failure_tells_the_first_line_and_where_the_log_is_kept(driver: Driver, tmp_path: Path) -> None:
    message = "criu failed: type NOTIFY errno 0"
    task, _ = await running(driver, [faults.fail(1, log_error=f"{message}\nlog file: dump.log")])
    work = tmp_path / "work"
    work.mkdir()
    (work / "dump.log").write_text("Error (criu/x.c:1): why\n")
    with pytest.raises(errors.ShimError) as failed:
        await checkpoint(task, "/image", CheckpointOptions(work_path=str(work)))
    kept = task.bundle.file("criu-dump.log")
    assert message in failed.value.message
    assert failed.value.message.endswith(f"path= {kept}")
    assert kept.read_text() == "Error (criu/x.c:1): why\n"
    assert (await task.state()).status == RUNNING


async def test_Z3_our_own_work_directory_is_removed(driver: Driver) -> None:
    task, _ = await running(driver, [faults.fail(1, log_error="no")])
    work = task.bundle.path / "work" / "criu-work"
    work.mkdir(parents=True)
    with pytest.raises(errors.ShimError):
        await checkpoint(task, "/image")
    assert not work.exists()


async def test_a_task_from_a_checkpoint_is_restored_by_its_start(driver: Driver) -> None:
    runtime = faults.make_fault_runtime(
        driver.directory, {"restore": [faults.record(), faults.fail(1, log_error="criu is not here")]}
    )
    bundle = driver.bundle(["sleep", "1000"])
    shim = await driver.start(bundle)
    request = CreateTaskRequest(
        id=bundle.id,
        bundle=str(bundle.path),
        checkpoint="/image",
        options=driver.options(binary_name=runtime.binary, criu_work_path="/work-dir"),
    )
    assert (await shim.call("Create", request, CreateTaskResponse)).pid == 0
    task = Task(shim, bundle.id, "", bundle=bundle)
    shim.tasks[bundle.id] = task
    assert (await task.state()).status == CREATED
    with pytest.raises(errors.ShimError, match=r"OCI runtime restore failed: criu is not here"):
        await task.start()
    argv = list(runtime.recorded()[-1].argv)
    assert argv[argv.index("restore") :] == [
        *("restore", "--image-path", "/image", "--work-path", "/work-dir", "--detach"),
        *("--pid-file", str(bundle.file("init.pid")), "-no-subreaper", "--bundle", str(bundle.path), bundle.id),
    ]
    assert (await task.state()).status == CREATED
    answer = await task.delete()
    assert (answer.pid, answer.exit_status) == (0, 0)
