"""dockerd 20.10 on a containerd 1.6 whose shim is ours: what `docker run` and its like promise to people.

The machine's own daemon is never asked.  Each test starts a dockerd, so each asks many things.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
import trio

from tests.system.harness.daemons import open_daemon
from tests.system.harness.dockerd import Docker, find_docker, open_docker
from tests.system.harness.processes import command_line, is_running, parent_of, wait_ended
from tests.system.harness.subject import Generation, Kind, containerd_of, ctr_of
from tests.system.harness.terminals import HEIGHT, WIDTH

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.system.harness.places import Places
    from tests.system.harness.subject import Subject

pytestmark = pytest.mark.slow

LINES: Final = 20_000
NUMBERS: Final = "".join(f"{number}\n" for number in range(1, LINES + 1)).encode()


@pytest.fixture(params=[Generation.V1_6], ids=lambda generation: generation.value)
def generation(request: pytest.FixtureRequest) -> Generation:
    """Of the containerd that dockerd is given; skips, and says so, where something is not here."""
    find_docker()
    wanted: Generation = request.param
    containerd_of(wanted)
    ctr_of(wanted)
    return wanted


@pytest.fixture
async def docker(
    generation: Generation, subject: Subject, places: Places, directory: Path, rootfs: Path
) -> AsyncIterator[Docker]:
    """A dockerd of the test's own."""
    async with open_daemon(generation, subject, directory, rootfs) as daemon, open_docker(daemon, places) as up:
        yield up


async def _pid(docker: Docker, name: str) -> int:
    pid = (await docker.state(name))["Pid"]
    assert isinstance(pid, int)
    return pid


async def test_run_gives_back_status_and_both_outputs(docker: Docker, subject: Subject) -> None:
    for status in (0, 1, 42, 137):
        name = f"c{status}"
        done = await docker.run(name, "", "sh", "-c", f"echo out; echo err >&2; exit {status}")
        assert (done.status, done.output, done.errors) == (status, b"out\n", b"err\n")
        state = await docker.state(name)
        assert (state["Status"], state["ExitCode"], state["OOMKilled"], state["Error"]) == ("exited", status, False, "")
    for words, status in ((["nothing-like-it"], 127), (["/etc"], 126)):
        done = await docker.run(f"e{status}", "", *words)
        assert done.status == status
        assert b"OCI runtime create failed" in done.errors
    await docker.start("who", "sleep", "1000")
    shim = command_line(parent_of(await _pid(docker, "who")))
    assert subject.kind is not Kind.OURS or "containerd-shim-trio-v2" in shim or "shim.boot" in shim


async def test_input_that_is_piped_ends(docker: Docker) -> None:
    done = await docker.run("cat", "--rm --interactive", "cat", stdin=b"hi\n")
    assert (done.status, done.output) == (0, b"hi\n")
    done = await docker.run("sum", "--rm --interactive", "wc", "-c", stdin=NUMBERS)
    assert (done.status, done.text) == (0, str(len(NUMBERS)))
    await docker.start("box", "sleep", "1000")
    done = await docker.docker("exec", "--interactive", "box", "cat", stdin=b"hi\n")
    assert (done.status, done.output) == (0, b"hi\n")
    done = await docker.docker("exec", "box", "sh", "-c", "echo out; echo err >&2; exit 42")
    assert (done.status, done.output, done.errors) == (42, b"out\n", b"err\n")
    assert (await docker.docker("exec", "box", "nothing-like-it")).status in {126, 127}


async def test_terminals_of_run_and_exec(docker: Docker) -> None:
    script = (
        f'until [ "$(stty size)" = "{HEIGHT} {WIDTH}" ]; do usleep 10000; done; tty; read line; echo got $line; exit 5'
    )
    await docker.start("box", "sleep", "1000")
    for command in (
        docker.run_command("tty", "--interactive --tty", "sh", "-c", script),
        docker.command("exec", "--interactive", "--tty", "box", "sh", "-c", script),
    ):
        async with docker.terminal(command) as terminal:
            await terminal.wait_for(lambda shown: b"/dev/pts/" in shown)
            await terminal.type(b"word\r")
            status, shown = await terminal.end()
        assert status == 5
        assert shown.replace(b"\r", b"").endswith(b"word\ngot word\n")
    assert (await docker.ok("logs", "tty")).replace("\r", "").endswith("word\ngot word")


async def test_logs_are_whole(docker: Docker) -> None:
    await docker.run("log", "", "sh", "-c", f"seq 1 {LINES}; seq 1 {LINES} >&2")
    done = await docker.docker("logs", "log")
    assert (done.output, done.errors) == (NUMBERS, NUMBERS)
    await docker.start("long", "sh", "-c", "echo begun; exec sleep 1000")
    followed = docker.command("logs", "--follow", "long")
    async with docker.terminal(followed) as terminal:
        await terminal.wait_for(lambda shown: b"begun\r\n" in shown)
        await docker.ok("kill", "long")
        assert (await terminal.end())[0] == 0


async def test_restart_policy(docker: Docker) -> None:
    await docker.start("again", "sh", "-c", "echo run; exit 3", flags="--restart on-failure:2")
    assert await docker.ok("wait", "again") == "3"
    with trio.fail_after(30):
        while (await docker.state("again"))["Status"] != "exited":
            await docker.ok("wait", "again")
    found = await docker.inspect("again")
    assert found["RestartCount"] == 2
    assert (await docker.state("again"))["ExitCode"] == 3
    assert (await docker.ok("logs", "again")).split() == ["run"] * 3


async def test_stop_kill_pause_and_remove(docker: Docker) -> None:
    listens = "trap 'exit 7' TERM; echo ready; while :; do usleep 1000; done"
    deaf = "trap '' TERM; echo ready; while :; do usleep 1000; done"
    for name, script, expected in (("good", listens, 7), ("deaf", deaf, 137)):
        await docker.start(name, "sh", "-c", script)
        async with docker.terminal(docker.command("logs", "--follow", name)) as terminal:
            await terminal.wait_for(lambda shown: b"ready" in shown)
            await docker.ok("stop", "--time", "1", name)
        assert (await docker.state(name))["ExitCode"] == expected
    await docker.ok("start", "good")
    assert await docker.ok("ps", "--quiet", "--filter", "name=good", "--filter", "status=running")
    await docker.ok("pause", "good")
    assert (await docker.state("good"))["Status"] == "paused"
    assert (await docker.docker("exec", "good", "true")).status != 0
    await docker.ok("unpause", "good")
    await docker.ok("exec", "good", "true")
    await docker.ok("kill", "--signal", "KILL", "good")
    assert await docker.ok("wait", "good") == "137"
    await docker.start("gone", "sleep", "1000")
    pid = await _pid(docker, "gone")
    assert str(pid) in (await docker.ok("top", "gone", "-o", "pid"))
    await docker.ok("rm", "--force", "gone")
    assert not is_running(pid)
    assert await docker.ok("ps", "--quiet") == ""


async def test_out_of_memory_is_told(docker: Docker) -> None:
    script = "x=$(cat /dev/zero | tr '\\0' x | head -c 200000000); echo ${#x}"
    done = await docker.run("oom", "--memory 16m --memory-swap 16m", "sh", "-c", script)
    assert done.status == 137
    state = await docker.state("oom")
    assert (state["ExitCode"], state["OOMKilled"]) == (137, True)


async def test_a_dockerd_that_is_killed_finds_its_container_again(docker: Docker) -> None:
    await docker.start("live", "sh", "-c", "while read line; do echo got $line; done", flags="--interactive")
    pid = await _pid(docker, "live")
    shim = parent_of(pid)
    await docker.restart()
    # Without live restore dockerd ends what it finds running; what matters is that it can, and that nothing stays.
    await wait_ended(pid, timeout=30)
    await wait_ended(shim, timeout=30)
    assert (await docker.state("live"))["Status"] == "exited"
    await docker.ok("start", "live")
    assert is_running(await _pid(docker, "live"))
