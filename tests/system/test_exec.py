"""Execs beyond the fault rows: many at once, in order, with reasons, and an id that is free after any failure."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Final

import pytest
import trio

from shim import errors
from shim.verify import faults
from shim.wire.proto import task_pb2
from tests.system.harness.bundles import make_process
from tests.system.harness.fifos import make_fifo, open_reader
from tests.system.harness.processes import is_running
from tests.system.harness.raw import open_raw, request_body
from tests.system.harness.sink import exits
from tests.system.harness.task import CREATED, RUNNING, STOPPED

if TYPE_CHECKING:
    from pathlib import Path

    from shim.verify.faultplan import Step
    from shim.verify.faults import FaultRuntime
    from tests.system.harness.driver import Driver
    from tests.system.harness.task import Process, Task

AT_ONCE: Final = 70
QUICK: Final = 100
EXEC_LIFE: Final = ["/tasks/exec-added", "/tasks/exec-started", "/tasks/exit"]


async def _running(driver: Driver) -> Task:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    return task


async def _with_runtime(driver: Driver, runtime: FaultRuntime) -> Task:
    bundle = driver.bundle(["sleep", "1000"])
    shim = await driver.start(bundle)
    task = await shim.create(bundle, options=driver.options(binary_name=runtime.binary))
    await task.start()
    return task


@pytest.mark.slow
async def test_many_starts_are_in_flight_at_once(driver: Driver) -> None:
    # Each runtime tells that it came and waits: all of them wait only if none waits for another.
    runtime = faults.make_fault_runtime(driver.directory, {"exec": [faults.record("came"), faults.wait_for("go")]})
    came = runtime.fifo("came")
    task = await _with_runtime(driver, runtime)
    execs = [await task.exec(f"e{number}", ["sh", "-c", f"exit {number}"]) for number in range(AT_ONCE)]
    keeper = os.open(came, os.O_RDWR | os.O_NONBLOCK)
    try:
        async with open_reader(came) as told, trio.open_nursery() as nursery:
            for exec_ in execs:
                nursery.start_soon(_start_slowly, exec_)
            await told.wait_for(lambda data: data.count(b"\n") == AT_ONCE, timeout=60)
            with trio.fail_after(1):
                assert (await task.state()).status == RUNNING
            runtime.file("go").touch()
    finally:
        os.close(keeper)
    assert len({exec_.pid for exec_ in execs}) == AT_ONCE
    for number, exec_ in enumerate(execs):
        assert (await exec_.wait()).exit_status == number
        await exec_.delete()


async def _start_slowly(exec_: Process) -> None:
    await exec_.start(timeout=90)


@pytest.mark.slow
async def test_quick_exits_are_told_in_order(driver: Driver) -> None:
    task = await _running(driver)
    waiting = list(range(QUICK))
    pids = {}

    async def worker() -> None:
        while waiting:
            number = waiting.pop()
            exec_ = await task.exec(f"e{number}", ["sh", "-c", f"exit {number}"])
            pids[exec_.exec_id] = await exec_.start()
            assert (await exec_.wait()).exit_status == number
            await exec_.delete()

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(worker)
    await driver.sink.wait_for_topic(task.id, "/tasks/exit", count=QUICK)
    stories: dict[str, list[str]] = {}
    for recorded in driver.sink.of(task.id)[2:]:
        event = recorded.event
        name = event.id if recorded.topic == "/tasks/exit" else event.exec_id  # type: ignore[union-attr]
        stories.setdefault(name, []).append(recorded.topic)
    assert stories == {f"e{number}": EXEC_LIFE for number in range(QUICK)}
    told = {event.id: (event.pid, event.exit_status) for event in exits(driver.sink.of(task.id))}
    assert told == {f"e{number}": (pids[f"e{number}"], number) for number in range(QUICK)}


async def test_exec_can_run_before_init_does(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    assert await task.run_exec("e", ["sh", "-c", "exit 3"]) == 3
    assert (await task.state()).status == CREATED
    await task.start()
    assert await task.run_exec("e", ["sh", "-c", "exit 4"]) == 4


async def test_state_of_an_exec_tells_all_of_it(driver: Driver) -> None:
    task = await _running(driver)
    stdin, stdout, stderr = (str(make_fifo(driver.directory / name)) for name in ("in", "out", "err"))
    exec_ = await task.exec("e", ["sleep", "1000"], stdin=stdin, stdout=stdout, stderr=stderr)
    async with open_reader(driver.directory / "out"), open_reader(driver.directory / "err"):
        state = await exec_.state()
        assert (state.id, state.exec_id, state.pid, state.status) == ("e", "", 0, CREATED)
        pid = await exec_.start()
        state = await exec_.state()
        assert (state.id, state.pid, state.status) == ("e", pid, RUNNING)
        assert (state.stdin, state.stdout, state.stderr, state.terminal) == (stdin, stdout, stderr, False)
        assert state.bundle == str(task.bundle.path)
        await exec_.kill()
        told = await exec_.wait()
        state = await exec_.state()
        assert (state.pid, state.status, state.exit_status) == (pid, STOPPED, 137)
        assert state.exited_at == told.exited_at
        await exec_.delete()


async def test_pids_say_which_process_is_which_exec(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    assert list((await task.processes()).values()) == [""], "the runtime's waiting init"
    await task.start()
    first = await task.exec("first", ["sh", "-c", "sleep 1000 & wait"])
    second = await task.exec("second", ["sleep", "1000"])
    await first.start()
    await second.start()
    processes = await task.processes()
    assert processes[task.pid] == ""
    assert processes[first.pid] == "first"
    assert processes[second.pid] == "second"
    assert set(processes.values()) <= {"", "first", "second"}
    await second.kill()
    await second.wait()
    assert second.pid not in await task.processes()
    await task.kill()
    await task.wait()
    assert await task.processes() == {}
    await first.wait()


@pytest.mark.parametrize("umask", [0o000, 0o077])
@pytest.mark.better_than_peer("an exec of the Go shim has the umask that the shim was started with")
async def test_umask_of_an_exec_is_not_the_shims(driver: Driver, umask: int) -> None:
    path = driver.directory / "stdout"
    bundle = driver.bundle(["sleep", "1000"])
    shim = await driver.start(bundle, umask=umask)
    task = await shim.create(bundle)
    await task.start()
    async with open_reader(path) as output:
        exec_ = await task.exec("e", ["sh", "-c", "umask"], stdout=str(path), stderr=str(path))
        await exec_.start()
        await exec_.wait()
        await exec_.delete()
        assert await output.read_all() == b"0022\n"


@pytest.mark.parametrize("asked", [False, True])
async def test_terminal_is_what_the_request_says(driver: Driver, asked: bool) -> None:
    # The process document says the opposite; runc refuses a console socket that the document does not agree with.
    task = await _running(driver)
    path = driver.directory / "stdout"
    spec = json.dumps(make_process(["sh", "-c", "tty || true"], terminal=not asked)).encode()
    async with open_reader(path) as output:
        exec_ = await task.exec_spec("e", spec, stdout=str(path), stderr="" if asked else str(path), terminal=asked)
        await exec_.start()
        assert (await exec_.wait()).exit_status == 0
        await exec_.delete()
        assert await output.read_all() == (b"/dev/pts/0\r\n" if asked else b"not a tty\n")


def _changed(**fields: object) -> bytes:
    return json.dumps({**make_process(["true"]), **fields}).encode()


TYPED: Final = pytest.mark.better_than_peer("the Go shim reads the document itself, at Exec, and has its own words")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        pytest.param(_changed(args=[]), "args", id="no-args"),
        pytest.param(_changed(args="true"), "args", id="args-no-list", marks=TYPED),
        pytest.param(_changed(cwd="/no/such/place"), "/no/such/place", id="cwd"),
        pytest.param(_changed(cwd="relative"), "cwd|Cwd|chdir", id="cwd-relative"),
        pytest.param(_changed(capabilities={"bounding": "all"}), "capabilities", id="capabilities", marks=TYPED),
        pytest.param(_changed(user={"uid": -1}), "uid", id="uid", marks=TYPED),
    ],
)
async def test_what_the_runtime_refuses_is_told_in_its_words(driver: Driver, spec: bytes, reason: str) -> None:
    task = await _running(driver)
    exec_ = await task.exec_spec("e", spec)
    with pytest.raises(errors.Unknown, match=rf"^OCI runtime exec failed: .*({reason})"):
        await exec_.start()
    assert (await exec_.state()).status == CREATED
    await exec_.delete()
    assert await task.run_exec("e", ["sh", "-c", "exit 3"]) == 3


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        pytest.param([faults.fail(log_error="no luck")], "OCI runtime exec failed: no luck", id="fails"),
        pytest.param([faults.fail(0)], "failed to retrieve OCI runtime exec pid", id="does-nothing"),
        pytest.param([faults.after(faults.fail(3, log_error="too late"))], "too late", id="fails-afterwards"),
    ],
)
@pytest.mark.better_than_peer("the Go shim forgets a process that a failing runtime has started")
async def test_id_is_free_and_nothing_runs_after_a_start_that_failed(
    driver: Driver, steps: list[Step], reason: str
) -> None:
    runtime = faults.make_fault_runtime(driver.directory, {})
    task = await _with_runtime(driver, runtime)
    runtime.plan({"exec": steps})
    exec_ = await task.exec("e", ["sleep", "1000"])
    with pytest.raises(errors.Unknown, match=reason):
        await exec_.start()
    assert (await exec_.state()).status == CREATED
    await exec_.delete()
    assert list(await task.processes()) == [task.pid]
    assert not task.bundle.file("e.pid").exists()
    runtime.plan({})
    assert await task.run_exec("e", ["sh", "-c", "exit 3"]) == 3


async def test_id_is_free_after_an_unusable_stdio_path(driver: Driver) -> None:
    task = await _running(driver)
    missing = str(driver.directory / "missing" / "fifo")
    for stdin in ("", missing):
        exec_ = await task.exec("e", ["true"], stdin=stdin, stdout=missing, stderr=missing)
        with pytest.raises(errors.ShimError, match="missing/fifo"):
            await exec_.start()
        await exec_.delete()
    assert await task.run_exec("e", ["sh", "-c", "exit 3"]) == 3


@pytest.fixture
async def slow_start(driver: Driver) -> tuple[Task, Process, FaultRuntime, Path]:
    """An exec whose runtime tells on a fifo that it came, and goes on when told to."""
    runtime = faults.make_fault_runtime(driver.directory, {"exec": [faults.touch("came"), faults.wait_for("go")]})
    came = runtime.fifo("came")
    task = await _with_runtime(driver, runtime)
    return task, await task.exec("e", ["sleep", "1000"]), runtime, came


async def _goes_on(slow_start: tuple[Task, Process, FaultRuntime, Path]) -> None:
    """The start that nobody waits for ends well, and the exec is like any other."""
    task, exec_, runtime, _ = slow_start
    runtime.file("go").touch()
    state = await exec_.state()  # waits for the start in flight
    assert state.status == RUNNING
    assert is_running(state.pid)
    assert (await task.processes())[state.pid] == "e"
    await exec_.kill()
    assert (await exec_.wait()).exit_status == 137
    await exec_.delete()


@pytest.mark.better_than_peer("the Go shim kills the runtime of a caller that goes away")
async def test_start_goes_on_without_its_caller(
    driver: Driver, slow_start: tuple[Task, Process, FaultRuntime, Path]
) -> None:
    task, exec_, _, came = slow_start
    shim = task.shim
    async with open_reader(came) as told, open_raw(shim.answer.address) as raw:
        await raw.send(1, request_body(shim.service, "Start", task_pb2.StartRequest(id=task.id, exec_id="e")))
        await told.read_all()
    await _goes_on(slow_start)
    await driver.sink.wait_for_topic(task.id, "/tasks/exit")
    assert driver.sink.topics(task.id)[2:] == EXEC_LIFE
    del exec_


@pytest.mark.better_than_peer("the Go shim kills the runtime of a caller whose time has passed")
async def test_start_goes_on_past_its_callers_deadline(slow_start: tuple[Task, Process, FaultRuntime, Path]) -> None:
    task, exec_, _, came = slow_start
    shim = task.shim
    async with open_reader(came) as told, open_raw(shim.answer.address) as raw:
        request = task_pb2.StartRequest(id=task.id, exec_id="e")
        await raw.send(1, request_body(shim.service, "Start", request, timeout=1))
        await told.read_all()
        assert (await raw.receive()).code == errors.DeadlineExceeded.code
        with trio.fail_after(1):
            assert (await task.state()).status == RUNNING
    await _goes_on(slow_start)
    del exec_


async def test_deleted_task_takes_its_execs_with_it(driver: Driver) -> None:
    task = await _running(driver)
    other = await driver.run(["sleep", "1000"])
    await other.start()
    execs = [await task.exec(name, ["sleep", "1000"]) for name in ("never", "killed", "deleted")]
    for exec_ in execs[1:]:
        await exec_.start()
    await task.kill()
    await task.wait()
    await execs[2].delete()
    await task.delete()
    for exec_ in execs:
        for call in (exec_.state, exec_.wait, exec_.delete, exec_.kill, exec_.start):
            with pytest.raises(errors.NotFound):
                await call()
    assert await other.run_exec("never", ["true"]) == 0


async def test_calls_for_an_unknown_exec(driver: Driver) -> None:
    task = await _running(driver)
    nobody = task.known_exec("nobody")
    for call in (nobody.start, nobody.state, nobody.wait, nobody.kill, nobody.delete):
        with pytest.raises(errors.NotFound, match=r"^process does not exist nobody$"):
            await call()
    with pytest.raises(errors.NotFound):
        await nobody.resize(80, 24)
    with pytest.raises((errors.NotFound, errors.Unknown), match=r"^process does not exist nobody"):
        await nobody.close_io()
    assert (await task.state()).status == RUNNING
