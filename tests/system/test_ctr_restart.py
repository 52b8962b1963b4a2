"""A containerd that is killed and comes back, of both generations: what ran goes on, what ended meanwhile is told."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.system.harness.fifos import make_fifo, open_reader
from tests.system.harness.processes import is_running, parent_of, wait_ended
from tests.system.harness.terminals import open_terminal

if TYPE_CHECKING:
    from tests.system.harness.daemons import Daemon

BOTH_ENDS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])


async def _tasks(daemon: Daemon) -> dict[str, tuple[int, str]]:
    """id -> pid and status, as listed."""
    lines = (await daemon.ctr_ok("tasks", "list")).splitlines()[1:]
    return {name: (int(pid), status) for name, pid, status in (line.split() for line in lines)}


@BOTH_ENDS
async def test_a_running_task_is_found_again(daemon: Daemon, number: int) -> None:
    await daemon.ctr_ok(*daemon.run_arguments("r", ["sleep", "1000"], "--detach"))
    before = await _tasks(daemon)
    shim = await daemon.shim_pid("r")
    await daemon.stop(number)
    assert is_running(shim)
    await daemon.start()
    assert await _tasks(daemon) == before
    assert await daemon.shim_pid("r") == shim
    done = await daemon.ctr("tasks", "exec", "--exec-id", "e", "r", "sh", "-c", "echo here; exit 3")
    assert (done.status, done.output) == (3, b"here\n"), done.errors
    await daemon.ctr_ok("tasks", "kill", "--signal", "SIGKILL", "r")
    await wait_ended(before["r"][0], timeout=10)
    await daemon.ctr("tasks", "delete", "r")
    assert await _tasks(daemon) == {}
    await wait_ended(shim, timeout=10)


async def test_H2_output_goes_on_after_a_restart(daemon: Daemon) -> None:
    # Each line is told on a fifo of its own as well, so that the test knows that the container got past it.
    ticks = make_fifo(daemon.directory / "ticks")
    script = 'i=0; while :; do i=$((i+1)); echo "line $i"; echo >&3; usleep 10000; done 3>/mnt/ticks'
    mount = ("--mount", f"type=bind,src={daemon.directory},dst=/mnt,options=rbind")
    async with open_reader(ticks) as told:
        await daemon.ctr_ok(*daemon.run_arguments("h2", ["sh", "-c", script], "--detach", *mount))
        (pid, _), *_ = (await _tasks(daemon)).values()
        await daemon.stop(signal.SIGKILL)
        seen = len(told.data)
        await told.wait_for(lambda data: len(data) >= seen + 100)
        await daemon.start()
        assert (await _tasks(daemon))["h2"] == (pid, "RUNNING")
        attach = daemon.ctr_command("tasks", "attach", "h2")
        async with open_terminal(attach, cwd=daemon.directory, env=daemon.environment()) as terminal:
            await terminal.wait_for(lambda shown: f"line {seen + 100}\r\n".encode() in shown)
        assert is_running(pid)


async def test_A1_a_task_that_ended_while_the_daemon_was_away(daemon: Daemon) -> None:
    await daemon.ctr_ok(*daemon.run_arguments("a1", ["sleep", "1000"], "--detach"))
    (pid, _) = (await _tasks(daemon))["a1"]
    shim = parent_of(pid)
    await daemon.stop(signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    await wait_ended(pid, timeout=10)
    await daemon.start()
    found = await _tasks(daemon)
    if found:  # 1.6 keeps it; 2.4 has cleaned it up as it loaded
        assert found == {"a1": (pid, "STOPPED")}
        await daemon.ctr("tasks", "delete", "a1")
        assert await _tasks(daemon) == {}
    await wait_ended(shim, timeout=10)
    assert not list(daemon.bundles.iterdir())


async def test_M5_a_second_run_of_an_id_after_a_restart(daemon: Daemon) -> None:
    await daemon.ctr_ok(*daemon.run_arguments("m5", ["sleep", "1000"], "--detach"))
    before = await _tasks(daemon)
    await daemon.stop(signal.SIGKILL)
    await daemon.start()
    for arguments in (daemon.run_arguments("m5", ["true"]), ["tasks", "start", "--detach", "m5"]):
        done = await daemon.ctr(*arguments)
        assert done.status != 0
        assert b"already exists" in done.errors
    assert await _tasks(daemon) == before
    assert (daemon.bundles / "m5" / "config.json").exists()
    await daemon.ctr_ok("tasks", "exec", "--exec-id", "e", "m5", "true")


@pytest.mark.better_than_peer("the 2.4 Go shim of a group leaves its sockets behind", only="go-2.4")
async def test_X4_a_group_outlives_its_leader_and_a_restart(daemon: Daemon) -> None:
    names = ["lead", "two", "three"]
    for name in names:
        flags = ("--detach", "--annotation", "io.containerd.runc.v2.group=lead")
        await daemon.ctr_ok(*daemon.run_arguments(name, ["sleep", "1000"], *flags))
    tasks = await _tasks(daemon)
    (shim,) = {parent_of(pid) for pid, _ in tasks.values()}
    for name in names:
        await daemon.ctr_ok("tasks", "kill", "--signal", "SIGKILL", name)
        await wait_ended(tasks[name][0], timeout=10)
        await daemon.ctr("tasks", "delete", name)
        left = await _tasks(daemon)
        assert name not in left
        assert {status for _, status in left.values()} <= {"RUNNING"}
        if left:
            assert is_running(shim)
        if name == "lead":
            await daemon.stop(signal.SIGKILL)
            await daemon.start()
            assert await _tasks(daemon) == left
    await wait_ended(shim, timeout=10)
