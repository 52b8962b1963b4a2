"""A run ends with its command, whatever else holds its output."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from shim.kernel import procfs
from shim.kernel.children import Command
from shim.kernel.commands import run, run_uncaptured
from shim.kernel.pipes import open_pipe

if TYPE_CHECKING:
    from shim.kernel.children import SubreaperChildren


async def test_input_and_both_outputs(children: SubreaperChildren) -> None:
    completed = await run(children, Command(["/bin/sh", "-c", "cat; echo bad >&2; exit 5"]), stdin=b"hello")
    assert (completed.exit.status, completed.stdout, completed.stderr) == (5, b"hello", b"bad\n")


async def test_much_input_and_output_do_not_block_each_other(children: SubreaperChildren) -> None:
    data = os.urandom(1 << 20)
    with trio.fail_after(20):
        completed = await run(children, Command(["/bin/cat"]), stdin=data)
    assert completed.stdout == data


async def test_output_beyond_the_limit_is_thrown_away(children: SubreaperChildren) -> None:
    script = "head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2; exit 3"
    with trio.fail_after(20):
        completed = await run(children, Command(["/bin/sh", "-c", script]), stdout_limit=100, stderr_limit=0)
    assert (completed.exit.status, completed.stdout, completed.stderr) == (3, bytes(100), b"")


async def test_input_that_nobody_reads_is_no_error(children: SubreaperChildren) -> None:
    completed = await run(children, Command(["/bin/true"]), stdin=bytes(1 << 20))
    assert completed.exit.status == 0


async def test_a_grandchild_that_keeps_the_output_does_not_hold_the_run(children: SubreaperChildren) -> None:
    mark = children.mark()
    with trio.fail_after(10):
        completed = await run(children, Command(["/bin/sh", "-c", "sleep 1000 & echo $!"]))
    grandchild = children.adopt(int(completed.stdout), mark)
    grandchild.send_signal(signal.SIGKILL)
    await grandchild.wait()


async def test_a_grandchild_that_writes_for_ever_does_not_hold_the_run(children: SubreaperChildren) -> None:
    mark = children.mark()
    with trio.fail_after(10):
        completed = await run(children, Command(["/bin/sh", "-c", "echo $$; yes & echo $! >&2"]))
    grandchild = children.adopt(int(completed.stderr), mark)
    with trio.fail_after(10):
        assert (await grandchild.wait()).signal == signal.SIGPIPE


async def test_outputs_that_the_command_maps_are_left_alone(children: SubreaperChildren) -> None:
    with open_pipe() as pipe:
        command = Command(["/bin/sh", "-c", "echo out; echo err >&2"], fds={1: pipe.writer.fileno()})
        completed = await run(children, command)
        assert (completed.stdout, completed.stderr) == (b"", b"err\n")
        assert os.read(pipe.reader.fileno(), 100) == b"out\n"


async def test_a_cancelled_run_kills_and_reaps(children: SubreaperChildren) -> None:
    with trio.move_on_after(10) as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, children, Command(["/bin/sleep", "1000"]))
            await trio.testing.wait_all_tasks_blocked()
            (child,) = children.processes()
            nursery.cancel_scope.cancel()
    assert not scope.cancelled_caught
    assert child.exit is not None
    assert child.exit.signal == signal.SIGKILL
    assert procfs.children(os.getpid()) == []


async def test_a_run_cancelled_from_the_start_leaves_nothing(children: SubreaperChildren) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await run(children, Command(["/bin/sleep", "1000"]), stdin=b"x")
    assert scope.cancelled_caught
    assert children.processes() == ()


async def test_a_command_that_cannot_start_leaves_nothing(children: SubreaperChildren) -> None:
    with pytest.raises(FileNotFoundError):
        await run(children, Command(["/nowhere"]), stdin=b"x")


async def test_descriptors_are_let_go_as_soon_as_the_command_has_them(children: SubreaperChildren) -> None:
    with open_pipe() as pipe:
        end = await run_uncaptured(
            children,
            Command(["/bin/sh", "-c", "echo out; exit 2"], fds={1: pipe.writer.fileno()}),
            on_spawn=pipe.writer.close,
        )
        assert end.status == 2
        assert os.read(pipe.reader.fileno(), 100) == b"out\n"
        assert os.read(pipe.reader.fileno(), 100) == b""
