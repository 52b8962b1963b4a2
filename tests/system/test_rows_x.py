"""Fault rows X: shared pid namespaces, shared cgroups, groups."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
import trio

from shim.kernel.cgroup_files import CgroupPlaces
from shim.wire.proto import task_pb2
from tests.system.harness.bundles import Spec
from tests.system.harness.fifos import make_fifo, open_reader
from tests.system.harness.processes import is_running, wait_ended
from tests.system.harness.sink import exits
from tests.system.harness.task import RUNNING

if TYPE_CHECKING:
    from tests.system.harness.bundles import Json
    from tests.system.harness.daemons import Daemon
    from tests.system.harness.driver import Driver
    from tests.system.harness.task import Shim, Task

GROUP: Final = "io.containerd.runc.v2.group"
INIT_THAT_LEAVES: Final = "sleep 1000 & sleep 1000 & echo >/mnt/ready; read go </mnt/go; exit 3"


async def _leaving_init(driver: Driver) -> tuple[Task, list[int], Path]:
    """A task without a pid namespace of its own; its init ends when the fifo is written, its two sleeps do not."""
    go = driver.directory / "go"
    mount: Json = {"destination": "/mnt", "type": "bind", "source": str(driver.directory), "options": ["rbind"]}
    make_fifo(go)
    ready = make_fifo(driver.directory / "ready")
    task = await driver.run(["sh", "-c", INIT_THAT_LEAVES], own_pid_namespace=False, mounts=[mount])
    await task.start()
    async with open_reader(ready) as told:
        await told.read_all()
    sleeps = [pid for pid in await task.pids() if pid != task.pid]
    assert len(sleeps) == 2
    return task, sleeps, go


async def test_X1_what_init_of_a_shared_pid_namespace_leaves_is_killed(driver: Driver) -> None:
    task, sleeps, go = await _leaving_init(driver)
    directories = {Path(path) for path in CgroupPlaces.of(task.pid).directories.values()}
    assert all("/shim-test-" in str(directory) for directory in directories)
    go.write_bytes(b"\n")
    with trio.fail_after(10):
        assert (await task.wait()).exit_status == 3
    for pid in sleeps:
        await wait_ended(pid, timeout=2)
    assert (await task.state()).exit_status == 3
    assert (await task.delete()).exit_status == 3
    assert not [directory for directory in directories if directory.exists()]


@pytest.mark.better_than_peer("the 1.6 Go shim tells the exit of init first", only="go-1.6")
async def test_X1_execs_in_a_shared_pid_namespace_end_before_init(driver: Driver) -> None:
    task, sleeps, go = await _leaving_init(driver)
    exec_ = await task.exec("e", ["sleep", "1000"])
    await exec_.start()
    go.write_bytes(b"\n")
    with trio.fail_after(10):
        assert (await task.wait()).exit_status == 3
        assert (await exec_.wait()).exit_status == 137
    assert not [pid for pid in (*sleeps, exec_.pid) if is_running(pid)]
    await driver.sink.wait_until(lambda sink: len(exits(sink.of(task.id))) == 2)
    assert [(event.id, event.exit_status) for event in exits(driver.sink.of(task.id))] == [("e", 137), (task.id, 3)]
    await exec_.delete()
    await task.delete()


async def test_X3_end_of_one_leaves_another_in_the_same_cgroup_alone(driver: Driver) -> None:
    shim = await driver.start(driver.bundle(["true"], identifier="leader"))
    place = driver.places.cgroup_path(f"{driver.namespace}-shared")
    tasks = [
        await shim.create(driver.bundle(["sleep", "1000"], identifier=identifier, cgroups_path=place))
        for identifier in ("first", "second")
    ]
    for task in tasks:
        await task.start()
    first, second = tasks
    await first.kill()
    assert (await first.wait()).exit_status == 137
    assert is_running(second.pid)
    assert (await second.state()).status == RUNNING
    assert await second.run_exec("e", ["sh", "-c", "exit 3"]) == 3
    assert is_running(second.pid)
    await second.kill()
    assert (await second.wait()).exit_status == 137


async def _group(driver: Driver, *identifiers: str) -> tuple[Shim, list[Task]]:
    """Running tasks of one group, each started as the daemon starts them: by a start command in its own bundle."""
    leader = identifiers[0]
    tasks = []
    for identifier in identifiers:
        annotations = {GROUP: leader}
        bundle = driver.bundle(["sleep", "1000"], identifier=identifier, annotations=annotations)
        shim = await driver.start(bundle)
        task = await shim.create(bundle)
        await task.start()
        tasks.append(task)
    assert {task.shim.pid for task in tasks} == {tasks[0].shim.pid}
    assert {task.shim.answer.address for task in tasks} == {tasks[0].shim.answer.address}
    return tasks[0].shim, tasks


async def _end(task: Task) -> None:
    await task.kill()
    await task.wait()
    await task.delete()


async def _shut_down(shim: Shim, identifier: str) -> None:
    await shim.send("Shutdown", task_pb2.ShutdownRequest(id=identifier))


async def test_X4_shim_of_a_group_lives_till_its_last_member(driver: Driver) -> None:
    shim, tasks = await _group(driver, "leader", "second", "third")
    for number, task in enumerate(tasks):
        await _end(task)
        if number < 2:
            await _shut_down(shim, task.id)
            for other in tasks[number + 1 :]:
                assert (await other.state()).status == RUNNING
                assert await other.run_exec("e", ["true"]) == 0
            assert is_running(shim.pid)
            assert Path(shim.answer.address.removeprefix("unix://")).exists()
    await shim.shutdown()
    assert not Path(shim.answer.address.removeprefix("unix://")).exists()


async def test_X4_group_takes_members_after_its_leader_has_left(driver: Driver) -> None:
    shim, (leader, second) = await _group(driver, "leader", "second")
    await _end(leader)
    await _shut_down(shim, "leader")
    bundle = driver.bundle(["sleep", "1000"], identifier="late", annotations={GROUP: "leader"})
    again = await driver.start(bundle)
    assert again.pid == shim.pid
    late = await again.create(bundle)
    await late.start()
    await _end(second)
    await _shut_down(shim, "second")
    assert (await late.state()).status == RUNNING


async def _daemons_group(daemon: Daemon, *identifiers: str) -> list[int]:
    """Running containers of one group under a real daemon; the pids of the shims that serve them."""
    shims = []
    for identifier in identifiers:
        spec = _spec(daemon, identifier, identifiers[0])
        config = daemon.directory / f"{identifier}.json"
        config.write_text(json.dumps(spec))
        run: list[str | Path] = ["run", "--runtime", daemon.subject.runtime, "--detach", "--config", config, identifier]
        await daemon.ctr_ok(*run)
        shims.append(await daemon.shim_pid(identifier))
    return shims


def _spec(daemon: Daemon, identifier: str, leader: str) -> dict[str, Json]:
    """The spec of a member, as a client would hand it to the daemon."""
    spec = Spec(
        args=["sleep", "1000"],
        cgroups_path=f"/{daemon.namespace}/{identifier}",
        root=str(daemon.rootfs),
        annotations={GROUP: leader},
    )
    return spec.document()


@pytest.mark.slow
@pytest.mark.better_than_peer("a Go shim started with -debug leaves the debug sockets of later members", only="go-2.4")
async def test_X4_group_under_a_daemon_outlives_its_leader(daemon: Daemon) -> None:
    names = ("leader", "second", "third")
    shims = await _daemons_group(daemon, *names)
    assert len(set(shims)) == 1
    for number, name in enumerate(names):
        await daemon.ctr_ok("tasks", "delete", "--force", name)
        for other in names[number + 1 :]:
            listed = await daemon.ctr_ok("tasks", "list")
            assert [line.split()[2] for line in listed.splitlines()[1:] if line.split()[0] == other] == ["RUNNING"]
            await daemon.ctr_ok("tasks", "exec", "--exec-id", "e", other, "true")
    await wait_ended(shims[0], timeout=5)


@pytest.mark.parametrize("identifier", ["t", "no-such-task", ""])
async def test_X5_shutdown_with_tasks_left_ends_nothing(driver: Driver, identifier: str) -> None:
    bundle = driver.bundle(["sleep", "1000"], identifier="t")
    shim = await driver.start(bundle)
    task = await shim.create(bundle)
    for started in (False, True):
        if started:
            await task.start()
        for now in (False, True):
            await shim.send("Shutdown", task_pb2.ShutdownRequest(id=identifier, now=now))
            assert (await task.state()).pid == task.pid
    exec_ = await task.exec("e", ["sh", "-c", "exit 3"])
    await _shut_down(shim, identifier)
    await exec_.start()
    assert (await exec_.wait()).exit_status == 3
    await exec_.delete()
    await task.kill()
    await task.wait()
    await _shut_down(shim, identifier)  # a stopped task is a task
    assert (await task.state()).exit_status == 137
    await task.delete()
    await shim.shutdown()
