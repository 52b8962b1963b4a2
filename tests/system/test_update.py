"""Update: limits that reach the container's own cgroup, and what is refused before the runtime is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shim import errors
from shim.kernel import cgroups
from shim.wire.proto.task_pb2 import UpdateTaskRequest
from tests.system.harness.task import RUNNING

if TYPE_CHECKING:
    from tests.system.harness.driver import Driver
    from tests.system.harness.task import Task

LIMIT = 64 << 20


async def update(task: Task, resources: bytes, *, url: str = "whatever") -> None:
    request = UpdateTaskRequest(id=task.id)
    request.resources.type_url = url
    request.resources.value = resources
    await task.shim.send("Update", request)


def memory_limit(pid: int) -> int:
    """The limit of the process's own memory cgroup, whichever hierarchy has it."""
    places = cgroups.directories(pid)
    if "memory" in places:
        return int((Path(places["memory"]) / "memory.limit_in_bytes").read_text())
    return int((Path(places[""]) / "memory.max").read_text())


async def test_a_limit_reaches_the_containers_cgroup(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await update(task, json.dumps({"memory": {"limit": LIMIT}}).encode())
    assert memory_limit(task.pid) == LIMIT
    await task.start()
    await update(task, json.dumps({"memory": {"limit": 2 * LIMIT}}).encode())
    assert memory_limit(task.pid) == 2 * LIMIT


@pytest.mark.better_than_peer("the Go shim answers Unknown")
@pytest.mark.parametrize("resources", [b"", b"{", b"[]", b"\xff"])
async def test_resources_that_are_no_json_object_are_refused(driver: Driver, resources: bytes) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    with pytest.raises(errors.InvalidArgument, match="resources"):
        await update(task, resources)
    assert (await task.state()).status == RUNNING


async def test_what_the_runtime_refuses_is_told(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    with pytest.raises(errors.ShimError, match="did not terminate successfully"):
        await update(task, json.dumps({"memory": {"limit": "much"}}).encode())
    assert (await task.state()).status == RUNNING
