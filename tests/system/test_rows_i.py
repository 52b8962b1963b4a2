"""Fault rows I: input and its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
import trio
import trio.testing

from tests.system.harness.fifos import holds, make_fifo, open_reader, open_writer
from tests.system.harness.processes import is_running
from tests.system.harness.runtimes import make_runtime

if TYPE_CHECKING:
    from pathlib import Path

    from tests.system.harness.driver import Driver
    from tests.system.harness.runtimes import Runtime
    from tests.system.harness.task import Process

ROUNDS: Final = 200


def _fifos(directory: Path, name: str) -> tuple[Path, Path]:
    return make_fifo(directory / f"{name}.in"), make_fifo(directory / f"{name}.out")


def _delay(runtime: Runtime, verb: str) -> None:
    """From now on the runtime waits before that command until the fifo `gate` beside it is written."""
    gate = make_fifo(runtime.directory / "gate")
    path = runtime.directory / "runtime"
    path.write_text(
        path.read_text().replace(
            'exec runc "$@"', f'[ "$verb" != {verb} ] || {{ echo >"$here/came"; read x <"{gate}"; }}\nexec runc "$@"'
        )
    )
    make_fifo(runtime.directory / "came")


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_I1_piped_input_ends_the_exec_every_time(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    for number in range(ROUNDS):
        stdin, stdout = _fifos(driver.directory, f"e{number}")
        exec_ = await task.exec(f"e{number}", ["cat"], stdin=str(stdin), stdout=str(stdout), stderr=str(stdout))
        async with open_reader(stdout) as output:
            await exec_.start()
            async with open_writer(stdin) as writer:
                await writer.send(b"hi")
            await exec_.close_io()
            assert (await exec_.wait()).exit_status == 0
            await exec_.delete()
            assert await output.read_all() == b"hi"
        stdin.unlink()
        stdout.unlink()


@pytest.mark.parametrize("writer_first", [True, False])
@pytest.mark.better_than_peer("the Go shim forgets a CloseIO that comes before there is a stdin to close")
async def test_I2_close_before_start_is_remembered(driver: Driver, writer_first: bool) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    stdin, stdout = _fifos(driver.directory, "e")
    exec_ = await task.exec("e", ["cat"], stdin=str(stdin), stdout=str(stdout), stderr=str(stdout))

    async def write() -> None:
        async with open_writer(stdin) as writer:
            await writer.send(b"data")

    async with open_reader(stdout) as output, trio.open_nursery() as nursery:
        await exec_.close_io()
        if writer_first:
            nursery.start_soon(write)
            await trio.testing.wait_all_tasks_blocked(0.05)
        await exec_.start()
        if not writer_first:
            nursery.start_soon(write)
        assert (await exec_.wait()).exit_status == 0
        await exec_.delete()
        assert await output.read_all() == b"data"


@pytest.mark.better_than_peer("as above")
@pytest.mark.parametrize("init", [True, False])
async def test_I2_close_during_a_delayed_start_is_remembered(driver: Driver, init: bool) -> None:
    runtime = make_runtime(driver.directory / "runtime")
    _delay(runtime, "start" if init else "exec")
    stdin, stdout = _fifos(driver.directory, "e")
    bundle = driver.bundle(["cat"] if init else ["sleep", "1000"])
    shim = await driver.start(bundle)
    options = driver.options(binary_name=runtime.binary)
    async with open_reader(stdout) as output, trio.open_nursery() as nursery:
        if init:
            process: Process = await shim.create(
                bundle, stdin=str(stdin), stdout=str(stdout), stderr=str(stdout), options=options
            )
        else:
            task = await shim.create(bundle, options=options)
            await task.start()
            process = await task.exec("e", ["cat"], stdin=str(stdin), stdout=str(stdout), stderr=str(stdout))
        started = trio.Event()

        async def start() -> None:
            await process.start()
            started.set()

        nursery.start_soon(start)
        async with open_reader(runtime.directory / "came") as came, open_writer(stdin) as writer:
            await came.read_all()
            assert not started.is_set()
            await process.close_io()
            await writer.send(b"data")
        async with open_writer(runtime.directory / "gate") as gate:
            await gate.send(b"\n")
        assert (await process.wait()).exit_status == 0
        await process.delete()
        assert await output.read_all() == b"data"


async def test_I2_close_before_init_starts(driver: Driver) -> None:
    bundle = driver.bundle(["cat"])
    stdin, stdout = _fifos(driver.directory, "init")
    shim = await driver.start(bundle)
    async with open_reader(stdout) as output:
        task = await shim.create(bundle, stdin=str(stdin), stdout=str(stdout), stderr=str(stdout))
        async with open_writer(stdin) as writer:
            await writer.send(b"data")
        await task.close_io()
        await task.start()
        assert (await task.wait()).exit_status == 0
        await task.delete()
        assert await output.read_all() == b"data"


async def test_I6_no_stdin_is_at_its_end(driver: Driver) -> None:
    task = await driver.run(["sh"])
    await task.start()
    assert (await task.wait()).exit_status == 0
    await task.delete()


async def test_I6_stdin_outlives_its_writers_until_it_is_closed(driver: Driver) -> None:
    bundle = driver.bundle(["sh", "-c", "while read line; do echo got $line; done; echo end"])
    stdin, stdout = _fifos(driver.directory, "init")
    shim = await driver.start(bundle)
    async with open_reader(stdout) as output:
        task = await shim.create(bundle, stdin=str(stdin), stdout=str(stdout), stderr=str(stdout))
        await task.start()
        for word in (b"one", b"two"):
            async with open_writer(stdin) as writer:
                await writer.send(word + b"\n")
            await output.wait_for(holds(b"got " + word))
        assert is_running(task.pid)
        await task.close_io()
        assert (await task.wait()).exit_status == 0
        await task.delete()
        assert await output.read_all() == b"got one\ngot two\nend\n"


async def test_I6_close_without_any_writer_ends_stdin(driver: Driver) -> None:
    bundle = driver.bundle(["cat"])
    stdin, stdout = _fifos(driver.directory, "init")
    shim = await driver.start(bundle)
    async with open_reader(stdout):
        task = await shim.create(bundle, stdin=str(stdin), stdout=str(stdout), stderr=str(stdout))
        await task.start()
        await task.close_io()
        with trio.fail_after(5):
            assert (await task.wait()).exit_status == 0
        await task.delete()
