"""Fault rows L: sizes of terminals, and where their sockets are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import pytest
import trio

from shim import errors
from tests.system.harness.fifos import holds, make_fifo, open_reader, open_writer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.system.harness.driver import Driver

ROUNDS: Final = 20


def _fifos(directory: Path, name: str) -> tuple[Path, Path]:
    return make_fifo(directory / f"{name}.in"), make_fifo(directory / f"{name}.out")


@pytest.mark.better_than_peer("the Go shim forgets a size that comes before there is a terminal")
async def test_L1_size_given_before_the_start_is_the_first_seen(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    for number in range(ROUNDS):
        stdin, stdout = _fifos(driver.directory, f"e{number}")
        exec_ = await task.exec(f"e{number}", ["stty", "size"], stdin=str(stdin), stdout=str(stdout), terminal=True)
        await exec_.resize(120, 40)
        async with open_reader(stdout) as output:
            await exec_.start()
            await exec_.wait()
            await exec_.delete()
            assert await output.read_all() == b"40 120\r\n"


async def test_L1_size_given_to_a_created_task(driver: Driver) -> None:
    bundle = driver.bundle(["stty", "size"], terminal=True)
    stdin, stdout = _fifos(driver.directory, "init")
    shim = await driver.start(bundle)
    async with open_reader(stdout) as output:
        task = await shim.create(bundle, stdin=str(stdin), stdout=str(stdout), terminal=True)
        await task.resize(120, 40)
        await task.start()
        await task.wait()
        await task.delete()
        assert await output.read_all() == b"40 120\r\n"


async def test_L1_size_given_after_the_start_is_always_seen(driver: Driver) -> None:
    bundle = driver.bundle(["sh", "-c", "while read x; do stty size; done"], terminal=True)
    stdin, stdout = _fifos(driver.directory, "init")
    shim = await driver.start(bundle)
    async with open_reader(stdout) as output:
        task = await shim.create(bundle, stdin=str(stdin), stdout=str(stdout), terminal=True)
        await task.start()
        async with open_writer(stdin) as writer:
            for width in range(100, 120):
                await task.resize(width, 40)
                await writer.send(b"\n")
                await output.wait_for(holds(b"40 %d\r\n" % width))
        await task.end()


async def test_L3_resize_of_what_has_ended_or_has_no_terminal(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.resize(80, 25)
    await task.start()
    await task.resize(80, 25)
    stdin, stdout = _fifos(driver.directory, "e")
    exec_ = await task.exec("e", ["true"], stdin=str(stdin), stdout=str(stdout), terminal=True)
    async with open_reader(stdout):
        await exec_.start()
        await exec_.wait()
        with pytest.raises(errors.ShimError, match="cannot resize a stopped container"):
            await exec_.resize(80, 25)
        await exec_.delete()
    with pytest.raises(errors.NotFound):
        await exec_.resize(80, 25)
    await task.kill()
    await task.wait()
    await task.resize(80, 25)
    await task.delete()
    with pytest.raises(errors.NotFound):
        await task.resize(80, 25)
    await task.shim.connect("x")


@pytest.mark.better_than_peer("the Go shim's console socket is beside long temporary directories")
async def test_L5_paths_of_any_length(driver: Driver) -> None:
    long = driver.directory / ("s" * (150 - len(str(driver.directory)) - 1))
    (long / "tmp").mkdir(parents=True)
    deep = attrs.evolve(driver, state=long)
    bundle = deep.bundle(["sh", "-c", "echo hello; exec sleep 1000"], identifier="i" * 76, terminal=True)
    shim = await driver.start(bundle, env={"TMPDIR": str(long / "tmp"), "XDG_RUNTIME_DIR": str(long)})
    stdout = make_fifo(bundle.file("stdout"))
    with trio.fail_after(10):
        async with open_reader(stdout) as output:
            task = await shim.create(bundle, stdout=str(stdout), terminal=True)
            await task.start()
            exec_ = await task.exec("e" * 76, ["true"], terminal=True)
            await exec_.start()
            assert (await exec_.wait()).exit_status == 0
            await exec_.delete()
            await task.end()
            assert await output.read_all() == b"hello\r\n"
    assert not list((long / "tmp").iterdir())
