"""Fault rows H: stdio fifos whose other end is missing, late or gone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import pytest
import trio

from tests.system.harness.fifos import make_fifo, open_reader
from tests.system.harness.processes import is_running
from tests.system.harness.task import RUNNING

if TYPE_CHECKING:
    from tests.system.harness.bundles import Bundle, Json
    from tests.system.harness.driver import Driver
    from tests.system.harness.task import Shim, Task

LAST: Final = 170_000
NUMBERS: Final = "".join(f"{number}\n" for number in range(1, LAST + 1)).encode()
"""What `seq 1 LAST` prints: a little over 1 MB, every line its own."""


async def _create_with_fifos(shim: Shim, bundle: Bundle) -> Task:
    """All three fifos are there, and nobody has opened any of them."""
    stdin, stdout, stderr = (str(make_fifo(bundle.file(name))) for name in ("stdin", "stdout", "stderr"))
    return await shim.create(bundle, stdin=stdin, stdout=stdout, stderr=stderr)


@pytest.mark.better_than_peer("the Go shim's Create waits until a client has opened the output fifos")
async def test_H1_absent_client_does_not_block_create_and_start(driver: Driver) -> None:
    bundle = driver.bundle(["sh", "-c", "echo out; echo err >&2; exec sleep 1000"])
    shim = await driver.start(bundle)
    with trio.fail_after(2):
        task = await _create_with_fifos(shim, bundle)
    with trio.fail_after(2):
        await task.start()
    async with open_reader(bundle.file("stdout")) as output, open_reader(bundle.file("stderr")) as errors:
        await output.wait_for(lambda data: data == b"out\n")
        await errors.wait_for(lambda data: data == b"err\n")
        await task.end()
        assert (await output.read_all(), await errors.read_all()) == (b"out\n", b"err\n")


@pytest.mark.better_than_peer("the Go shim's Create waits until a client has opened the output fifos")
async def test_H1_output_of_an_ended_container_reaches_a_late_reader(driver: Driver) -> None:
    bundle = driver.bundle(["echo", "hello"])
    shim = await driver.start(bundle)
    task = await _create_with_fifos(shim, bundle)
    await task.start()
    await task.wait()
    async with open_reader(bundle.file("stdout")) as output, open_reader(bundle.file("stderr")) as errors:
        assert await output.read_all() == b"hello\n"
        assert await errors.read_all() == b""
    await task.delete()


@pytest.mark.slow
async def test_H2_container_survives_a_reader_that_goes_and_comes(driver: Driver) -> None:
    # The container tells each line on a fifo of its own as well: 500 of them at 10 ms are the five seconds.
    ticks = make_fifo(driver.directory / "ticks")
    script = 'i=0; while :; do i=$((i+1)); echo "line $i"; echo >&3; usleep 10000; done 3>/mnt/ticks'
    mount: Json = {"destination": "/mnt", "type": "bind", "source": str(driver.directory), "options": ["rbind"]}
    bundle = driver.bundle(["sh", "-c", script], mounts=[mount])
    shim = await driver.start(bundle)
    path = bundle.file("stdout")
    async with open_reader(ticks) as told:
        async with open_reader(path) as output:
            task = await shim.create(bundle, stdout=str(path), stderr=str(path))
            await task.start()
            await output.wait_for(lambda data: b"line 3\n" in data)
        seen = len(told.data)
        await told.wait_for(lambda data: len(data) >= seen + 500, timeout=30)
        assert is_running(task.pid)
        async with open_reader(path) as output:
            line = f"line {seen + 500}\n".encode()
            await output.wait_for(lambda data: line in data)
        await task.end()


@pytest.mark.parametrize("opened_before", [True, pytest.param(False, marks=pytest.mark.better_than_peer("as H1"))])
async def test_H3_unread_output_is_kept_whole(driver: Driver, opened_before: bool) -> None:
    bundle = driver.bundle(["sh", "-c", f"seq 1 {LAST}"])
    shim = await driver.start(bundle)
    path = make_fifo(bundle.file("stdout"))
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK) if opened_before else -1
    task = await shim.create(bundle, stdout=str(path), stderr=str(path))
    if opened_before:
        os.close(fd)
    await task.start()
    with trio.fail_after(2):
        assert (await task.state()).status >= RUNNING
    async with open_reader(path) as output:
        await output.wait_for(lambda data: len(data) >= len(NUMBERS), timeout=20)
        await task.wait()
        await task.delete()
        assert await output.read_all() == NUMBERS


async def test_H3_writer_without_reader_can_be_killed(driver: Driver) -> None:
    bundle = driver.bundle(["yes"])
    shim = await driver.start(bundle)
    path = make_fifo(bundle.file("stdout"))
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    task = await shim.create(bundle, stdout=str(path), stderr=str(path))
    os.close(fd)
    await task.start()
    with trio.fail_after(5):
        await task.kill(9)
        assert (await task.wait()).exit_status == 137
        assert (await task.state()).exit_status == 137
    async with open_reader(path) as output:
        await task.delete()
        assert set(await output.read_all()) == set(b"y\n")
