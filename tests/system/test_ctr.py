"""The life of a container under ctr of a real containerd, 1.6 and 2.4."""

from __future__ import annotations

import hashlib
import subprocess
from typing import TYPE_CHECKING

import pytest
import trio

from tests.system.harness.events import open_events

if TYPE_CHECKING:
    from tests.system.harness.daemons import Daemon

LIFE = ["/tasks/create", "/tasks/start", "/tasks/exit", "/tasks/delete"]


async def test_output_comes_whole(daemon: Daemon) -> None:
    done = await daemon.run("seq", ["seq", "1", "20000"], "--rm")
    assert done.status == 0, done.errors
    expected = "".join(f"{number}\n" for number in range(1, 20001)).encode()
    assert hashlib.sha256(done.output).hexdigest() == hashlib.sha256(expected).hexdigest()


async def test_both_outputs_are_kept_apart(daemon: Daemon) -> None:
    done = await daemon.run("two", ["sh", "-c", "echo out; echo err >&2"], "--rm")
    assert (done.status, done.output) == (0, b"out\n")
    assert b"err\n" in done.errors


async def test_input_reaches_the_container(daemon: Daemon) -> None:
    # Its end is given only once the output came: ctr forgets an end of input that it reads before the task is there.
    sent = b"hello\n" * 1000
    process = await trio.lowlevel.open_process(
        daemon.ctr_command(*daemon.run_arguments("cat", ["cat"], "--rm")),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=daemon.environment(),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with trio.fail_after(10):
            await process.stdin.send_all(sent)
            received = b""
            while len(received) < len(sent):
                chunk = await process.stdout.receive_some()
                assert chunk, "the output ended early"
                received += chunk
            await process.stdin.aclose()
            assert await process.stdout.receive_some() == b""
            assert await process.wait() == 0
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
            process.kill()
            await process.wait()
            await process.stdin.aclose()
            await process.stdout.aclose()
    assert received == sent


@pytest.mark.parametrize("status", [0, 1, 42, 255])
async def test_exit_code_comes_back(daemon: Daemon, status: int) -> None:
    assert (await daemon.run("code", ["sh", "-c", f"exit {status}"], "--rm")).status == status


@pytest.mark.parametrize(("name", "number"), [("SIGKILL", 9), ("SIGTERM", 15)])
async def test_signal_ends_the_container(daemon: Daemon, name: str, number: int) -> None:
    # With a handler, since init of a pid namespace is deaf to what it does not handle.
    script = f"trap 'exit {128 + number}' TERM; while :; do usleep 1000; done"
    async with open_events(daemon) as events:
        await daemon.ctr_ok(*daemon.run_arguments("sig", ["sh", "-c", script], "--detach"))
        await daemon.ctr_ok("tasks", "kill", "-s", name, "sig")
        await events.wait_for("sig", "/tasks/exit")
    await daemon.ctr("tasks", "delete", "sig")  # 1.6 exits with the status, 2.4 does not
    assert [event["exit_status"] for event in events.of("sig", "/tasks/exit")] == [128 + number]


async def test_task_is_listed_while_it_runs(daemon: Daemon) -> None:
    await daemon.ctr_ok(*daemon.run_arguments("listed", ["sleep", "1000"], "--detach"))
    (line,) = [line for line in (await daemon.ctr_ok("tasks", "list")).splitlines() if line.startswith("listed")]
    assert line.split()[2] == "RUNNING"
    pids = await daemon.ctr_ok("tasks", "ps", "listed")
    assert line.split()[1] in pids


@pytest.mark.slow
@pytest.mark.better_than_peer("the 2.4 Go shim loses its last events when it is shut down at once", only="go-2.4")
async def test_events_of_50_short_containers_are_in_order(daemon: Daemon) -> None:
    ids = [f"true{number}" for number in range(50)]
    async with open_events(daemon) as events:
        for identifier in ids:
            done = await daemon.run(identifier, ["true"], "--rm")
            assert done.status == 0, done.errors
        for identifier in ids:
            await events.wait_for(identifier, "/tasks/delete")
    lives = {identifier: [topic for topic in events.topics(identifier) if topic in LIFE] for identifier in ids}
    assert lives == dict.fromkeys(ids, LIFE)
