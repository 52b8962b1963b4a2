"""Groups: several tasks in one shim share the process and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
import trio

from shim import errors
from shim.verify import faults
from shim.wire.proto import task_pb2
from tests.system.harness.fifos import open_reader
from tests.system.harness.processes import is_running
from tests.system.harness.task import RUNNING, STOPPED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shim.verify.faults import FaultRuntime
    from tests.system.harness.driver import Driver
    from tests.system.harness.task import Shim, Task

GROUP: Final = "io.containerd.runc.v2.group"
SANDBOX: Final = "io.kubernetes.cri.sandbox-id"
MEMBER: Final = {GROUP: "leader"}


def _runtime(driver: Driver, name: str, verbs: faults.Verbs) -> FaultRuntime:
    directory = driver.directory / f"runtime-{name}"
    directory.mkdir()
    return faults.make_fault_runtime(directory, verbs)


async def _member(
    driver: Driver, identifier: str, *, args: tuple[str, ...] = ("sleep", "1000"), **options: str | int
) -> Task:
    """A created task of the group, as the daemon makes one: a start command in its own bundle, then Create."""
    bundle = driver.bundle(args, identifier=identifier, annotations=MEMBER)
    shim = await driver.start(bundle)
    return await shim.create(bundle, options=driver.options(**options))


async def _live(task: Task) -> None:
    """The whole life of a task that has been created."""
    await task.start()
    assert await task.run_exec("e", ["sh", "-c", "exit 3"]) == 3
    assert task.pid in await task.pids()
    await task.pause()
    await task.resume()
    await task.kill()
    assert (await task.wait()).exit_status == 137
    await task.delete()


def _value(argv: list[str], option: str) -> str:
    return argv[argv.index(option) + 1]


@pytest.mark.better_than_peer("the Go shim runs every runtime command in the bundle of its first task")
async def test_each_member_has_its_own_runtime_root_log_and_directory(driver: Driver) -> None:
    names = ("leader", "second", "third")
    runtimes = {
        name: _runtime(driver, name, {"*": [faults.record()], "--version": faults.unlike_runc()}) for name in names
    }
    tasks = []
    for name in names:
        root = driver.directory / f"root-{name}"
        tasks.append(await _member(driver, name, binary_name=runtimes[name].binary, root=str(root)))
    assert len({task.shim.pid for task in tasks}) == 1
    async with trio.open_nursery() as nursery:
        for task in tasks:
            nursery.start_soon(_live, task)
    for task in tasks:
        recorded = [call for call in runtimes[task.id].recorded() if "--root" in call.argv]
        verbs = [list(call.argv)[6] for call in recorded]
        assert set(verbs) == {"create", "start", "exec", "ps", "pause", "resume", "kill", "delete"}
        for call in recorded:
            argv = list(call.argv)
            assert _value(argv, "--root") == str(driver.directory / f"root-{task.id}" / driver.namespace)
            assert _value(argv, "--log") == str(task.bundle.file("log.json"))
            assert task.id in argv
            assert call.cwd == str(task.bundle.path)
        assert task.bundle.read_json("options.json")["binary_name"] == runtimes[task.id].binary
        assert task.bundle.file("runtime").read_text() == runtimes[task.id].binary
        exit_record = task.bundle.read_json("exit.json")
        assert exit_record["Pid"] == task.pid


async def test_reason_of_a_failure_is_the_members_own(driver: Driver) -> None:
    runtime = _runtime(driver, "leader", {})
    leader = await _member(driver, "leader", binary_name=runtime.binary)
    await leader.start()
    runtime.plan({"pause": [faults.fail(log_error="the leader's reason")]})
    with pytest.raises(errors.Unknown, match="the leader's reason"):
        await leader.pause()
    other = _runtime(driver, "second", {"create": [faults.fail(4)]})
    with pytest.raises(errors.Unknown) as caught:
        await _member(driver, "second", binary_name=other.binary)
    assert "leader" not in caught.value.message.removeprefix("OCI runtime create failed").replace(other.binary, "")
    assert "exit status 4" in caught.value.message
    assert (await leader.state()).status == RUNNING
    with pytest.raises(errors.NotFound):
        await leader.shim.known("second").state()
    # The id is free again, and the group takes it.
    other.plan({})
    bundle = leader.shim.tasks["leader"].bundle
    assert bundle.path.exists()
    shutil.rmtree(driver.bundles_dir / "second")
    await _live(await _member(driver, "second", binary_name=other.binary))
    runtime.plan({})


@pytest.mark.better_than_peer("the Go shim may write into a bundle after its Delete was answered")
async def test_group_does_without_its_leaders_bundle(driver: Driver) -> None:
    leader = await _member(driver, "leader")
    second = await _member(driver, "second")
    shim = leader.shim
    await second.start()
    await leader.delete()
    shutil.rmtree(leader.bundle.path)  # as the daemon does
    assert await second.run_exec("e", ["sh", "-c", "exit 3"]) == 3
    late = await _member(driver, "late")
    assert late.shim.pid == shim.pid
    await _live(late)
    path = driver.directory / "stdout"
    async with open_reader(path) as output:
        exec_ = await second.exec("talking", ["echo", "hello"], stdout=str(path), stderr=str(path))
        await exec_.start()
        await exec_.wait()
        await exec_.delete()
        assert await output.read_all() == b"hello\n"
    await second.kill()
    assert (await second.wait()).exit_status == 137
    await second.delete()
    await shim.shutdown()
    assert not Path(shim.answer.address.removeprefix("unix://")).exists()


async def test_execs_of_one_id_in_two_members_are_two(driver: Driver) -> None:
    first, second = await _member(driver, "leader"), await _member(driver, "second")
    execs = []
    for task in (first, second):
        await task.start()
        exec_ = await task.exec("same", ["sleep", "1000"])
        await exec_.start()
        execs.append(exec_)
    assert execs[0].pid != execs[1].pid
    assert (await first.processes())[execs[0].pid] == "same"
    assert execs[1].pid not in await first.processes()
    await execs[0].kill()
    assert (await execs[0].wait()).exit_status == 137
    await execs[0].delete()
    assert (await execs[1].state()).status == RUNNING
    assert second.bundle.file("same.pid").exists()
    with pytest.raises(errors.NotFound):
        await execs[0].state()
    await first.kill()
    await first.wait()
    assert is_running(execs[1].pid)
    assert (await execs[1].state()).status == RUNNING


@pytest.mark.parametrize(
    "verb",
    [
        pytest.param("create", marks=pytest.mark.better_than_peer("a Create of the Go shim locks all its tasks")),
        "start",
        "kill",
        pytest.param("delete", marks=pytest.mark.better_than_peer("a Delete of the Go shim may hold up another")),
        "ps",
    ],
)
async def test_member_whose_runtime_hangs_delays_nobody(driver: Driver, verb: str) -> None:
    neighbour = await _member(driver, "leader")
    runtime = _runtime(
        driver,
        "stuck",
        {verb: [faults.touch("came"), faults.wait_for("go")], "--version": faults.unlike_runc()},
    )
    came = runtime.fifo("came")

    async def live_slowly() -> None:
        await _live(await _member(driver, "stuck", binary_name=runtime.binary))

    async with trio.open_nursery() as nursery:
        try:
            async with open_reader(came) as told:
                nursery.start_soon(live_slowly)
                await told.read_all()
            with trio.fail_after(10):
                await _live(neighbour)
            await neighbour.shim.send("Shutdown", task_pb2.ShutdownRequest(id="leader"))
            assert (await neighbour.shim.connect("leader")).shim_pid == neighbour.shim.pid
        finally:
            came.unlink()
            runtime.file("go").touch()


@pytest.mark.better_than_peer("the Go shim obeys, and its runtime is killed")
async def test_shutdown_while_a_task_is_being_made_ends_nothing(driver: Driver) -> None:
    runtime = _runtime(driver, "leader", {"create": [faults.touch("came"), faults.wait_for("go")]})
    came = runtime.fifo("came")
    bundle = driver.bundle(["sleep", "1000"], identifier="leader", annotations=MEMBER)
    shim = await driver.start(bundle)

    async def make() -> None:
        await _live(await shim.create(bundle, options=driver.options(binary_name=runtime.binary)))

    async with trio.open_nursery() as nursery:
        async with open_reader(came) as told:
            nursery.start_soon(make)
            await told.read_all()
        await _ignored_shutdown(shim)
        runtime.file("go").touch()
    await shim.shutdown()


async def _ignored_shutdown(shim: Shim) -> None:
    await shim.send("Shutdown", task_pb2.ShutdownRequest(id="x", now=True))
    assert (await shim.connect("x")).shim_pid == shim.pid
    assert is_running(shim.pid)


@pytest.mark.better_than_peer("the 1.6 Go shim keeps no record of the exit", only="go-1.6")
async def test_each_member_of_a_killed_shim_gets_its_own_ending(driver: Driver) -> None:
    ended = await _member(driver, "leader", args=("sh", "-c", "exit 7"))
    living, created = await _member(driver, "living"), await _member(driver, "created")
    for task in (ended, living):
        await task.start()
    assert (await ended.wait()).exit_status == 7
    await driver.sink.wait_for_topic("leader", "/tasks/exit")
    await driver.kill_shim(ended.shim)
    statuses = {}
    for task in (created, ended, living):
        done, answer = await driver.delete_command(task.bundle)
        assert done.status == 0, done.errors
        assert answer.pid == task.pid
        statuses[task.id] = answer.exit_status
        assert task.bundle.path.is_dir()
    assert statuses == {"leader": 7, "living": 137, "created": 137}
    assert not [task for task in (ended, living, created) if is_running(task.pid)]


async def test_sandbox_annotation_groups_too_and_the_other_one_goes_first(driver: Driver) -> None:
    async def started(identifier: str, **annotations: str) -> Shim:
        named = {GROUP if key == "group" else SANDBOX: value for key, value in annotations.items()}
        bundle = driver.bundle(["sleep", "1000"], identifier=identifier, annotations=named)
        return await driver.start(bundle)

    pod = await started("pod", sandbox="pod")
    member = await started("member", sandbox="pod")
    both = await started("both", sandbox="elsewhere", group="pod")
    alone = await started("alone")
    assert pod.pid == member.pid == both.pid
    assert alone.pid != pod.pid


async def test_members_end_in_any_order(driver: Driver) -> None:
    tasks = [await _member(driver, name) for name in ("leader", "b", "c", "d")]
    for task in tasks:
        await task.start()
    calls: list[Callable[[], Awaitable[object]]] = []
    for task in (tasks[2], tasks[0], tasks[3], tasks[1]):
        await task.kill()
        assert (await task.wait()).exit_status == 137
        calls.append(task.delete)
        alive = [other for other in tasks if other.id in other.shim.tasks and other is not task]
        for other in alive:
            assert (await other.state()).status in {RUNNING, STOPPED}
        await _ignored_shutdown(task.shim)
    for delete in calls:
        await delete()
    await tasks[0].shim.shutdown()
