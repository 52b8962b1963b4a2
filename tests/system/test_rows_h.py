"""Fault rows H: stdio fifos whose other end is missing, late or gone."""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Final

import pytest
import trio

from shim import errors
from shim.wire.proto import runtime_options_pb2
from shim.wire.typeurl import pack
from tests.system.harness.bundles import Bundle
from tests.system.harness.fifos import make_fifo, open_reader
from tests.system.harness.processes import is_running
from tests.system.harness.task import RUNNING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.system.harness.bundles import Json
    from tests.system.harness.driver import Driver
    from tests.system.harness.task import Process, Shim, Task

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


async def _write_until_stuck(driver: Driver, args: list[str]) -> tuple[Task, Process, Path]:
    """A task and an exec in it that writes to a fifo which was opened once and is not read any more."""
    task = await driver.run(["sleep", "1000"])
    await task.start()
    path = make_fifo(driver.directory / "stdout")
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    exec_ = await task.exec("writer", args, stdout=str(path), stderr=str(path))
    await exec_.start()
    os.close(fd)
    return task, exec_, path


async def test_H3_unread_output_of_an_exec_is_kept_whole(driver: Driver) -> None:
    task, exec_, path = await _write_until_stuck(driver, ["seq", "1", str(LAST)])
    with trio.fail_after(5):
        assert (await exec_.state()).status >= RUNNING
        assert await task.run_exec("other", ["sh", "-c", "exit 3"]) == 3
    async with open_reader(path) as output:
        await output.wait_for(lambda data: len(data) >= len(NUMBERS), timeout=20)
        assert (await exec_.wait()).exit_status == 0
        await exec_.delete()
        assert await output.read_all() == NUMBERS


async def test_H3_exec_that_writes_without_a_reader_can_be_killed(driver: Driver) -> None:
    task, exec_, path = await _write_until_stuck(driver, ["yes"])
    with trio.fail_after(5):
        assert (await exec_.state()).status == RUNNING
        assert await task.run_exec("other", ["true"]) == 0
        await exec_.kill()
        assert (await exec_.wait()).exit_status == 137
    async with open_reader(path) as output:
        await exec_.delete()
        assert set(await output.read_all()) == set(b"y\n")


async def _cause_a_log_line(driver: Driver, shim: Shim) -> None:
    """A Create that fails, though not before the shim has complained of its options."""
    body = b'binary_name = ""\nNoSuchKey = true\n'
    options = pack(runtime_options_pb2.Options(config_body=body))
    with pytest.raises(errors.NotFound):
        await shim.create(Bundle("none", driver.directory / "none"), options=options)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.better_than_peer("the Go shim waits for room in its log")
async def test_H5_unread_log_costs_lines_and_no_time(driver: Driver) -> None:
    bundle = driver.bundle(["sleep", "1000"])
    shim = await driver.start(bundle, debug=True, read_log=False)
    filler = b"x" * 4095 + b"\n"
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(shim.log.fd, filler)
    task = await shim.create(bundle)
    await task.start()
    await _cause_a_log_line(driver, shim)
    waiting = list(range(3000))

    async def worker() -> None:
        while waiting:
            assert await task.run_exec(f"e{waiting.pop()}", ["true"]) == 0

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(worker)
    lost = 5
    for _ in range(lost):
        await _cause_a_log_line(driver, shim)
    assert (await task.state()).status == RUNNING
    read = shim.log.drain()
    assert set(read) == {"x", "\n"}, "a line came although there was no room"
    await _cause_a_log_line(driver, shim)
    lines = shim.log.drain().removeprefix(read).splitlines()
    assert [line for line in lines if "NoSuchKey" in line], "the log is silent for good"
    (said,) = [int(found[1]) for line in lines if (found := re.search(r"\bdropped=(\d+)", line))]
    assert said > lost
