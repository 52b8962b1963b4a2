"""Fault rows J: output to its last byte."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import pytest
import trio

from tests.fakes.loggers import make_logger
from tests.system.harness.fifos import make_fifo, open_reader

if TYPE_CHECKING:
    from pathlib import Path

    from tests.system.harness.bundles import Json
    from tests.system.harness.driver import Driver
    from tests.system.harness.task import Process, Task

ROUNDS: Final = 200
LAST: Final = 1_000_000


async def _end(process: Process) -> None:
    await process.start()
    assert (await process.wait()).exit_status == 0
    await process.delete()


async def _terminal_output(task: Task, directory: Path, name: str, script: str) -> bytes:
    stdout = make_fifo(directory / name)
    async with open_reader(stdout) as output:
        exec_ = await task.exec(name, ["sh", "-c", script], stdout=str(stdout), terminal=True)
        await _end(exec_)
        data = await output.read_all()
    stdout.unlink()
    return data


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_J1_large_terminal_output_is_whole(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    expected = hashlib.sha256(b"".join(b"%d\r\n" % number for number in range(1, LAST + 1))).hexdigest()
    for number in range(20):
        data = await _terminal_output(task, driver.directory, f"j{number}", f"seq 1 {LAST}")
        assert data.endswith(b"%d\r\n" % LAST)
        assert hashlib.sha256(data).hexdigest() == expected


@pytest.mark.slow
async def test_J2_megabytes_before_the_exit_are_whole_when_many_run(driver: Driver) -> None:
    block = bytes(range(256)) * 4096 * 3
    expected = hashlib.sha256(block).hexdigest()
    source = driver.directory / "block"
    source.write_bytes(block)
    mount: Json = {"destination": "/mnt", "type": "bind", "source": str(driver.directory), "options": ["rbind", "ro"]}
    sums: list[str] = []

    async def one() -> None:
        bundle = driver.bundle(["cat", "/mnt/block"], mounts=[mount])
        shim = await driver.start(bundle)
        stdout = make_fifo(bundle.file("stdout"))
        async with open_reader(stdout) as output:
            await _end(await shim.create(bundle, stdout=str(stdout), stderr=str(stdout)))
            sums.append(hashlib.sha256(await output.read_all()).hexdigest())

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(one)
    assert sums == [expected] * 10


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "sink",
    [
        "fifo",
        "file",
        pytest.param("binary", marks=pytest.mark.better_than_peer("the Go shim ends a logger before it has written")),
    ],
)
async def test_J4_last_chunk_without_newline_is_exact(driver: Driver, sink: str) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    logger = make_logger(driver.directory / "logger")
    for number in range(ROUNDS):
        name = f"x{number}"
        path = driver.directory / name
        words = ["printf", "x"]
        if sink == "fifo":
            async with open_reader(path) as output:
                await _end(await task.exec(name, words, stdout=str(path), stderr=str(path)))
                assert await output.read_all() == b"x"
        elif sink == "file":
            await _end(await task.exec(name, words, stdout=f"file://{path}", stderr=f"file://{path}"))
            assert path.read_bytes() == b"x"
        else:
            uri = logger.uri(out=path)
            await _end(await task.exec(name, words, stdout=uri, stderr=uri))
            assert path.read_bytes() == b"x"


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_J5_short_terminal_session_shows_its_output_every_time(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    for number in range(ROUNDS):
        assert await _terminal_output(task, driver.directory, f"j{number}", "echo foo; exit") == b"foo\r\n"
