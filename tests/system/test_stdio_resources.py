"""What streams must not cost: descriptors for good, or time while nothing happens (rows F5, H8, U1, U5)."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
import trio

from shim import errors
from tests.system.harness.fifos import make_fifo, open_reader, open_writer
from tests.system.harness.processes import open_files

if TYPE_CHECKING:
    from tests.system.harness.driver import Driver

EXECS: Final = 500
IDLE_TASKS: Final = 10
IDLE_SECONDS: Final = 30


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.better_than_peer("the Go shim leaves stdin and the terminal open")
async def test_F5_terminal_of_a_vanished_client_goes_with_its_exec(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    before = open_files(task.shim.pid)
    stdin, stdout = make_fifo(driver.directory / "in"), make_fifo(driver.directory / "out")
    other = await driver.connect(task.shim.answer.address)
    exec_ = await task.exec("e", ["sh"], stdin=str(stdin), stdout=str(stdout), terminal=True)
    async with open_reader(stdout) as output:
        await exec_.start()
        async with open_writer(stdin) as writer:
            await writer.send(b"echo $((6 * 7))\n")
            await output.wait_for(lambda data: b"42" in data)
    exec_.shim.client = other
    await exec_.kill()
    await exec_.wait()
    await exec_.delete()
    after = open_files(task.shim.pid)
    assert sorted(set(after.values()) - set(before.values())) == [
        name for name in sorted(set(after.values()) - set(before.values())) if name.startswith("socket:")
    ]
    assert len(after) <= len(before) + 1  # the second connection


async def test_H8_stderr_is_not_opened_beside_a_terminal(driver: Driver) -> None:
    bundle = driver.bundle(["sleep", "1000"], terminal=True)
    stdin, stdout, stderr = (make_fifo(bundle.file(name)) for name in ("stdin", "stdout", "stderr"))
    shim = await driver.start(bundle)
    async with open_reader(stdout):
        task = await shim.create(bundle, stdin=str(stdin), stdout=str(stdout), stderr=str(stderr), terminal=True)
        await task.start()
        assert str(stdin) in open_files(shim.pid).values()
        assert str(stderr) not in open_files(shim.pid).values()
        with pytest.raises(OSError, match="No such device or address"):
            os.open(stderr, os.O_WRONLY | os.O_NONBLOCK)
        await task.end()


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.better_than_peer("the Go shim leaves one or more descriptors an exec")
async def test_U1_execs_leave_no_descriptor(driver: Driver, terminal: bool) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    stdin, stdout, stderr = (make_fifo(driver.directory / name) for name in ("in", "out", "err"))
    # A client that is there all the time.
    held = [os.open(path, os.O_RDWR | os.O_NONBLOCK) for path in (stdin, stdout, stderr)]
    before = open_files(task.shim.pid)
    for number in range(EXECS):
        words = ["/nonexistent"] if number % 10 == 9 else ["true"]
        exec_ = await task.exec(
            f"e{number}", words, stdin=str(stdin), stdout=str(stdout), stderr=str(stderr), terminal=terminal
        )
        try:
            await exec_.start()
        except errors.ShimError:
            assert number % 10 == 9
        else:
            await exec_.wait()
        await exec_.delete()
    after = open_files(task.shim.pid)
    for fd in held:
        os.close(fd)
    assert len(after) == len(before), sorted(set(after.items()) - set(before.items()))


@pytest.mark.slow
async def test_U5_idle_tasks_cost_no_time(driver: Driver) -> None:
    tasks = []
    for number in range(IDLE_TASKS):
        terminal = number % 2 == 0
        bundle = driver.bundle(["sleep", "1000"], terminal=terminal)
        shim = await driver.start(bundle)
        stdin, stdout = make_fifo(bundle.file("stdin")), make_fifo(bundle.file("stdout"))
        async with open_reader(stdout):
            task = await shim.create(
                bundle, stdin=str(stdin), stdout=str(stdout), stderr=str(stdout), terminal=terminal
            )
            await task.start()
            async with open_writer(stdin):
                pass
        # The clients are gone, and one child has been reaped; an exec with a terminal stays behind.
        stdin, stdout = make_fifo(bundle.file("e.stdin")), make_fifo(bundle.file("e.stdout"))
        async with open_reader(stdout):
            exec_ = await task.exec("e", ["true"], stdin=str(stdin), stdout=str(stdout), terminal=True)
            await exec_.start()
            await exec_.wait()
        tasks.append(task)
    before = [_cpu_seconds(task.shim.pid) for task in tasks]
    until = time.monotonic() + IDLE_SECONDS
    await trio.sleep_until(trio.current_time() + until - time.monotonic())  # what is measured is the time that passes
    for task, spent in zip(tasks, before, strict=True):
        assert _cpu_seconds(task.shim.pid) - spent < IDLE_SECONDS * 0.01
    for task in tasks:
        await task.end()
