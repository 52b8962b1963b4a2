"""ctr of containerd 1.6 and 2.4 as people use it: at a terminal, in a pipe, detached and attached again."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Final

import pytest

from tests.system.harness.events import open_events
from tests.system.harness.terminals import HEIGHT, WIDTH, open_terminal

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from tests.system.harness.daemons import Daemon
    from tests.system.harness.terminals import Terminal

ROUNDS: Final = 5
WORDS: Final = b"hello\n" * 40_000
"""More than a fifo and a pipe hold together."""
ECHO: Final = "while read line; do echo got $line; done"


def until_size(width: int, height: int) -> str:
    """A script that goes on when its terminal has that size."""
    return f'until [ "$(stty size)" = "{height} {width}" ]; do usleep 10000; done; echo {width} wide'


def at_terminal(daemon: Daemon, *args: str | Path) -> AbstractAsyncContextManager[Terminal]:
    """ctr on a terminal of its own."""
    return open_terminal(daemon.ctr_command(*args), cwd=daemon.directory, env=daemon.environment())


def plain(shown: bytes) -> str:
    """What was shown, without carriage returns: ctr leaves a terminal that adds its own."""
    return shown.decode().replace("\r", "")


def showing(text: str) -> Callable[[bytes], bool]:
    """For `Terminal.wait_for`: until the text was shown."""
    return lambda shown: text in plain(shown)


async def test_run_on_a_terminal(daemon: Daemon) -> None:
    script = f"{until_size(WIDTH, HEIGHT)}; {until_size(99, 33)}; read line; echo got $line; seq 1 5000; exit 42"
    async with at_terminal(daemon, *daemon.run_arguments("t", ["sh", "-c", script], "--rm", "--tty")) as terminal:
        await terminal.wait_for(showing(f"{WIDTH} wide\n"))
        terminal.resize(99, 33)
        await terminal.wait_for(showing("99 wide\n"))
        await terminal.type(b"word\r")
        status, shown = await terminal.end()
    assert status == 42
    assert plain(shown).endswith("word\ngot word\n" + "".join(f"{number}\n" for number in range(1, 5001)))


async def test_a_key_at_the_terminal_interrupts(daemon: Daemon) -> None:
    script = "trap 'echo caught; exit 7' INT; echo ready; while :; do usleep 1000; done"
    async with at_terminal(daemon, *daemon.run_arguments("t", ["sh", "-c", script], "--rm", "--tty")) as terminal:
        await terminal.wait_for(showing("ready\n"))
        await terminal.type(b"\x03")
        status, shown = await terminal.end()
    assert status == 7
    assert plain(shown).endswith("^Ccaught\n")


async def test_exec_on_a_terminal(daemon: Daemon) -> None:
    await daemon.ctr_ok(*daemon.run_arguments("e", ["sleep", "1000"], "--detach"))
    script = f"tty; {until_size(WIDTH, HEIGHT)}; read line; echo got $line; exit 5"
    exec_ = ("tasks", "exec", "--tty", "--exec-id", "x", "e", "sh", "-c", script)
    async with at_terminal(daemon, *exec_) as terminal:
        await terminal.wait_for(showing(f"{WIDTH} wide\n"))
        await terminal.type(b"word\r")
        status, shown = await terminal.end()
    assert status == 5
    assert b"/dev/pts/" in shown
    assert plain(shown).endswith("word\ngot word\n")


async def test_a_detached_terminal_is_attached_twice(daemon: Daemon) -> None:
    # ctr wants a terminal for the mode of the container's, and leaves.
    async with at_terminal(daemon, *daemon.run_arguments("a", ["sh", "-c", ECHO], "--detach", "--tty")) as terminal:
        assert (await terminal.end())[0] == 0
    for word in ("first", "second"):
        async with at_terminal(daemon, "tasks", "attach", "a") as terminal:
            await terminal.type(word.encode() + b"\r")
            await terminal.wait_for(showing(f"got {word}\n"))
            if word == "second":
                await terminal.type(b"\x04")
                assert (await terminal.end())[0] == 0


async def test_I1_piped_input_ends_an_exec(daemon: Daemon) -> None:
    await daemon.ctr_ok(*daemon.run_arguments("i1", ["sleep", "1000"], "--detach"))
    for number in range(ROUNDS):
        done = await daemon.ctr("tasks", "exec", "--exec-id", f"e{number}", "i1", "cat", stdin=b"hi\n", timeout=10)
        assert (done.status, done.output) == (0, b"hi\n"), done.errors


@pytest.mark.better_than_peer("ctr tells of the end of its input only where it came after the Create")
@pytest.mark.parametrize("text", [b"hi\n", WORDS], ids=["little", "much"])
async def test_I1_piped_input_ends_a_run(daemon: Daemon, text: bytes) -> None:
    # Counted inside: ctr 1.6 may lose the end of long output when its container has ended, whoever serves it.
    for number in range(ROUNDS):
        arguments = daemon.run_arguments(f"run{number}", ["md5sum"], "--rm")
        done = await daemon.ctr(*arguments, stdin=text, timeout=20)
        assert (done.status, done.text) == (0, f"{hashlib.md5(text).hexdigest()}  -"), done.errors


async def test_exec_status_and_both_outputs(daemon: Daemon) -> None:
    await daemon.ctr_ok(*daemon.run_arguments("x", ["sleep", "1000"], "--detach"))
    done = await daemon.ctr("tasks", "exec", "--exec-id", "e", "x", "sh", "-c", "echo out; echo err >&2; exit 42")
    assert (done.status, done.output) == (42, b"out\n")
    assert b"err\n" in done.errors


@pytest.mark.better_than_peer("the 2.4 Go shim loses its last events when it is shut down at once", only="go-2.4")
async def test_pause_and_resume(daemon: Daemon) -> None:
    await daemon.ctr_ok(*daemon.run_arguments("p", ["sleep", "1000"], "--detach"))
    async with open_events(daemon) as events:
        await daemon.ctr_ok("tasks", "pause", "p")
        assert await status_of(daemon, "p") == "PAUSED"
        done = await daemon.ctr("tasks", "exec", "--exec-id", "e", "p", "true")
        assert done.status != 0
        assert b"paused" in done.errors
        await daemon.ctr_ok("tasks", "resume", "p")
        assert await status_of(daemon, "p") == "RUNNING"
        await daemon.ctr_ok("tasks", "exec", "--exec-id", "e", "p", "true")
        await daemon.ctr_ok("tasks", "delete", "--force", "p")
        await events.wait_for("p", "/tasks/delete")
    assert events.topics("p") == [
        "/tasks/paused",
        "/tasks/resumed",
        "/tasks/exec-added",
        "/tasks/exec-started",
        "/tasks/exit",
        "/tasks/exit",
        "/tasks/delete",
    ]


async def test_checkpoint_without_criu_says_so_and_the_task_goes_on(daemon: Daemon) -> None:
    await daemon.ctr_ok(*daemon.run_arguments("c", ["sleep", "1000"], "--detach"))
    done = await daemon.ctr("tasks", "checkpoint", "c")
    assert done.status != 0
    assert b"criu" in done.errors
    assert await status_of(daemon, "c") == "RUNNING"
    await daemon.ctr_ok("tasks", "exec", "--exec-id", "e", "c", "true")


async def test_metrics_are_those_of_the_container(daemon: Daemon) -> None:
    script = "head -c 50000000 /dev/zero | md5sum >&2; exec sleep 1000"
    await daemon.ctr_ok(*daemon.run_arguments("m", ["sh", "-c", script], "--detach"))
    text = await daemon.ctr_ok("tasks", "metrics", "--format", "json", "m")
    assert 0 < _figure(text, "memory", "usage", "usage") < 1 << 30
    assert _figure(text, "cpu", "usage", "total") > 0
    table = await daemon.ctr_ok("tasks", "metrics", "m")
    assert "memory.usage_in_bytes" in table
    assert "cpuacct.usage" in table


def _figure(text: str, *keys: str) -> float:
    """A number deep in a JSON document."""
    found: object = json.loads(text)
    for key in keys:
        assert isinstance(found, dict), text
        found = found[key]
    assert isinstance(found, int | float), text
    return found


async def status_of(daemon: Daemon, identifier: str) -> str:
    """What `ctr tasks list` says."""
    (line,) = [line for line in (await daemon.ctr_ok("tasks", "list")).splitlines() if line.split()[0] == identifier]
    return line.split()[2]
