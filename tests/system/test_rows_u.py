"""Fault rows U: resources."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING, Final

import pytest
import trio

from shim import errors
from shim.verify import faults
from tests.system.harness.fifos import make_fifo, open_reader
from tests.system.harness.loops import image_mount, make_root_image
from tests.system.harness.processes import children_of, command_line, open_files
from tests.system.harness.runtimes import make_runtime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.system.harness.driver import Driver
    from tests.system.harness.task import Process

TASKS: Final = 25


@pytest.mark.better_than_peer("the Go shim passes on whatever descriptors its caller left open")
async def test_U6_descriptors_of_the_caller_go_nowhere(driver: Driver) -> None:
    runtime = make_runtime(driver.directory / "runtime")
    with ExitStack() as stack:
        odd = [os.open(driver.directory / f"odd-{number}", os.O_RDWR | os.O_CREAT) for number in range(20)]
        for fd in odd:
            stack.callback(os.close, fd)
        bundle = driver.bundle(["sleep", "1000"])
        shim = await driver.start(bundle, pass_fds=odd)
        task = await shim.create(bundle, options=driver.options(binary_name=runtime.binary))
        await task.start()
    for pid in (shim.pid, task.pid):
        assert not [path for path in open_files(pid).values() if "/odd-" in path]
    assert "/odd-" not in runtime.recorded("fds")
    assert "create" in runtime.recorded("argv")


@pytest.mark.better_than_peer("the Go shims leave the cgroups of a create that failed in the runtime")
async def test_U1_tasks_that_come_and_go_leave_no_descriptor(driver: Driver) -> None:
    first = await driver.run(["sleep", "1000"])
    image = make_root_image(driver.directory / "root.img", driver.rootfs)

    async def live(*, fails: bool) -> None:
        program = "/nonexistent" if fails else "true"
        bundle = driver.bundle([program], root="rootfs", readonly=False)
        try:
            task = await first.shim.create(bundle, rootfs=[image_mount(image)])
        except errors.ShimError:
            assert fails
            return
        await task.start()
        await task.wait()
        await task.delete()

    async def live_with_output(*, fails: bool) -> None:
        identifier = driver.new_id()
        async with open_reader(driver.directory / identifier) as reader:
            bundle = driver.bundle(["/nonexistent" if fails else "hostname"], identifier=identifier)
            try:
                task = await first.shim.create(bundle, stdout=str(reader.path))
            except errors.ShimError:
                assert fails
                return
            await task.start()
            await task.wait()
            await task.delete()

    await live_with_output(fails=False)
    await live(fails=False)
    before = open_files(first.shim.pid)
    for number in range(TASKS):
        await live(fails=number % 5 == 0)
        await live_with_output(fails=number % 5 == 1)
    with trio.fail_after(10):
        while len(open_files(first.shim.pid)) > len(before):  # noqa: ASYNC110 - nobody tells of a closed descriptor
            await trio.sleep(0.05)


EXECS: Final = 500


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.better_than_peer("the Go shim leaves one or more descriptors an exec")
async def test_U1_execs_with_every_fate_leave_no_descriptor(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    shim = task.shim
    path = make_fifo(driver.directory / "stdout")
    waiting = list(range(EXECS))

    async def one(number: int) -> None:
        kind = number % 5
        args = ["/no/such/program"] if kind == 1 else ["sleep", "1000"] if kind == 2 else ["echo", "hello"]
        out = str(path) if kind in {0, 1, 4} else ""
        exec_ = await task.exec(f"e{number}", args, stdout=out, stderr=out)
        if kind == 1:
            with pytest.raises(errors.Unknown):
                await exec_.start()
        elif kind != 3:  # of which nothing is started
            await exec_.start()
            if kind == 2:
                await exec_.kill()
            assert (await exec_.wait()).exit_status == (137 if kind == 2 else 0)
        await exec_.delete()

    async def worker() -> None:
        while waiting:
            await one(waiting.pop())

    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # a client that stays: each exec writes into the same fifo
    try:
        async with open_reader(path):
            for number in range(EXECS, EXECS + 5):
                await one(number)
            before = open_files(shim.pid)
            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    nursery.start_soon(worker)
            assert (await task.state()).pid == task.pid
            assert len(open_files(shim.pid)) == len(before), (before, open_files(shim.pid))
    finally:
        os.close(fd)
    assert children_of(shim.pid) == [task.pid]


@pytest.fixture
def odd_descriptors(driver: Driver) -> Iterator[list[int]]:
    with ExitStack() as stack:
        odd = [os.open(driver.directory / f"odd-{number}", os.O_RDWR | os.O_CREAT) for number in range(20)]
        for fd in odd:
            stack.callback(os.close, fd)
        yield odd


@pytest.mark.better_than_peer("the Go shim passes on whatever descriptors its caller left open")
async def test_U6_descriptors_of_the_caller_reach_no_exec(driver: Driver, odd_descriptors: list[int]) -> None:
    runtime = faults.make_fault_runtime(driver.directory, {"exec": [faults.record()]})
    bundle = driver.bundle(["sleep", "1000"])
    shim = await driver.start(bundle, pass_fds=odd_descriptors)
    task = await shim.create(bundle, options=driver.options(binary_name=runtime.binary))
    await task.start()
    exec_ = await task.exec("e", ["sleep", "1000"])
    pid = await exec_.start()
    (recorded,) = runtime.recorded()
    assert recorded.fds.keys() == {"0", "1", "2"}
    assert open_files(pid).keys() == {0, 1, 2}
    assert set(open_files(pid).values()) == {"/dev/null"}


async def test_U6_exec_has_its_own_streams_and_nothing_of_its_neighbours(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    execs: list[Process] = []
    async with AsyncExitStack() as stack:
        for number in range(5):
            stdin, stdout, stderr = (driver.directory / f"{name}{number}" for name in ("in", "out", "err"))
            make_fifo(stdin)
            for path in (stdout, stderr):
                await stack.enter_async_context(open_reader(path))
            exec_ = await task.exec(
                f"e{number}", ["sleep", "1000"], stdin=str(stdin), stdout=str(stdout), stderr=str(stderr)
            )
            execs.append(exec_)
        async with trio.open_nursery() as nursery:
            for exec_ in execs:
                nursery.start_soon(exec_.start)
    with trio.fail_after(10):  # the runtime has let go of a process a moment before that becomes its program
        while not all(command_line(exec_.pid).startswith("sleep") for exec_ in execs):
            await trio.lowlevel.checkpoint()
    files = [open_files(exec_.pid) for exec_ in execs]
    assert all(opened.keys() == {0, 1, 2} for opened in files)
    assert len({pipe for opened in files for pipe in opened.values()}) == 15, "somebody shares a stream"
    for exec_ in execs:
        await exec_.kill()
        await exec_.wait()
        await exec_.delete()
