"""Fault rows P: the start and delete commands, and callers of another generation."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
import trio

from shim.wire.proto import task_pb2
from shim.wire.services import TASK_V2, TASK_V3
from tests.system.harness.places import RUN_CONTAINERD
from tests.system.harness.processes import is_running, wait_ended
from tests.system.harness.subject import Generation
from tests.system.harness.task import RUNNING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.system.harness.driver import Driver
    from tests.system.harness.task import Task


@pytest.mark.parametrize("generation", list(Generation), ids=lambda generation: generation.value)
async def test_P1_every_generation_can_read_the_start_answer(driver: Driver, generation: Generation) -> None:
    bundle = driver.bundle(["true"])
    shim = await driver.start(bundle, generation=generation)
    assert shim.answer.protocol == "ttrpc"
    assert shim.answer.version == (3 if generation is Generation.V2 else 2)
    task = await shim.create(bundle)
    await task.start()
    assert (await task.wait()).exit_status == 0
    await task.delete()
    await driver.sink.wait_for_topic(task.id, "/tasks/delete")
    if generation is not Generation.V2:
        assert bundle.file("address").read_text() == shim.answer.address, "1.x needs it to find the shim again"


@pytest.mark.better_than_peer("a Go shim serves the task service of its own generation only")
async def test_P1_both_task_services_are_served(driver: Driver) -> None:
    task = await driver.run(["true"])
    for service in (TASK_V2, TASK_V3):
        request = task_pb2.StateRequest(id=task.id)
        answer = await task.shim.client.call(service, "State", request, timeout=5, namespace=driver.namespace)
        assert isinstance(answer, task_pb2.StateResponse)
        assert answer.pid == task.pid


def _sockets(driver: Driver) -> list[Path]:
    return [
        path
        for directory in (driver.socket_dir, RUN_CONTAINERD / "s")
        if directory.is_dir()
        for path in directory.iterdir()
    ]


@pytest.mark.slow
async def test_P2_no_socket_is_left_by_200_runs(driver: Driver) -> None:
    waiting = list(range(200))

    async def worker() -> None:
        while waiting:
            waiting.pop()
            task = await driver.run(["true"])
            await task.start()
            assert (await task.wait()).exit_status == 0
            await task.delete()
            await task.shim.shutdown()

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(worker)
    assert _sockets(driver) == []


@pytest.mark.better_than_peer("the Go shim's delete command leaves the socket of a killed shim")
async def test_P2_no_socket_is_left_by_killed_shims(driver: Driver) -> None:
    for _ in range(20):
        task = await driver.run(["sleep", "1000"])
        await task.start()
        await driver.kill_shim(task.shim)
        done, _ = await driver.delete_command(task.bundle)
        assert done.status == 0, done.errors
    assert _sockets(driver) == []


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("runtime", marks=pytest.mark.better_than_peer("the 1.6 Go shim fails", only="go-1.6")),
        "options.json",
        "address",
        "config.json",
        "init.pid",
        "log",
        "exit.json",
    ],
)
async def test_P4_delete_works_without_a_file(driver: Driver, name: str) -> None:
    task = await _orphaned(driver)
    task.bundle.file(name).unlink(missing_ok=True)
    await _delete_cleans(driver, task)


async def test_P4_delete_works_with_an_empty_pid_file(driver: Driver) -> None:
    task = await _orphaned(driver)
    task.bundle.file("init.pid").write_bytes(b"")
    await _delete_cleans(driver, task)


async def _orphaned(driver: Driver) -> Task:
    """A running task whose shim was killed; its runtime root is the default one, known without options.json."""
    bundle = driver.bundle(["sleep", "1000"])
    shim = await driver.start(bundle)
    task = await shim.create(bundle, options=driver.default_options())
    await task.start()
    os.kill(shim.pid, signal.SIGKILL)
    await wait_ended(shim.pid, timeout=5)
    return task


async def _delete_cleans(driver: Driver, task: Task) -> None:
    done, answer = await driver.delete_command(task.bundle)
    assert done.status == 0, done.errors
    assert answer.exit_status == 137
    assert answer.HasField("exited_at")
    assert not is_running(task.pid)
    assert not list((RUN_CONTAINERD / "runc").glob("*/*"))


async def test_P6_delete_of_one_member_leaves_the_rest(driver: Driver) -> None:
    shim = await driver.start(driver.bundle(["true"], identifier="leader"))
    group = {"io.containerd.runc.v2.group": "leader"}
    tasks = [
        await shim.create(driver.bundle(["sleep", "1000"], identifier=identifier, annotations=group))
        for identifier in ("first", "second")
    ]
    for task in tasks:
        await task.start()
    first, second = tasks
    done, answer = await driver.delete_command(first.bundle)
    assert done.status == 0, done.errors
    assert (answer.exit_status, answer.pid) == (137, first.pid)
    assert first.bundle.path.is_dir(), "the bundle is the daemon's to remove"
    assert first.bundle.file("config.json").exists()
    assert not is_running(first.pid)
    assert is_running(second.pid)
    assert (await second.state()).status == RUNNING
    assert await second.run_exec("e", ["sh", "-c", "exit 3"]) == 3
    # The shim saw the end of the first as any other.
    assert (await first.wait()).exit_status == 137
    await first.delete()
    await second.kill()
    assert (await second.wait()).exit_status == 137
