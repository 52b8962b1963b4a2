"""The warm template: starts come from it, nothing of it reaches a shim, and its death at any moment harms nobody."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from shim import errors
from shim.wire.proto.task_pb2 import ShutdownRequest
from shim.wire.services import TASK_V3
from tests.system.harness.census import templates
from tests.system.harness.driver import parse_start_answer
from tests.system.harness.places import TEMPLATE_RUN_DIR
from tests.system.harness.processes import command_line, is_running, kill_now, parent_of, run_program, wait_ended
from tests.system.harness.subject import Kind, Subject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.system.harness.driver import Driver
    from tests.system.harness.task import Shim

pytestmark = pytest.mark.better_than_peer("a Go shim has no template")


@pytest.fixture(autouse=True)
def _fresh(subject: Subject) -> Iterator[None]:
    """Each test begins and ends without a template of anybody."""
    if subject.kind is Kind.OURS and subject.path.resolve().read_bytes()[:4] != b"\x7fELF":
        pytest.skip("the program of our shim is not under test")
    forget_templates()
    yield
    forget_templates()


def forget_templates() -> None:
    """No template, and no file of one."""
    while found := templates():
        for pid in found:
            kill_now(pid)
    for path in TEMPLATE_RUN_DIR.iterdir():
        path.unlink()


def serving() -> int:
    """How many templates can be connected to."""
    count = 0
    for path in TEMPLATE_RUN_DIR.glob("*.sock"):
        with socket.socket(socket.AF_UNIX) as probe:
            count += probe.connect_ex(str(path)) == 0
    return count


async def warm(driver: Driver) -> int:
    """Have a template and wait until it serves; its pid."""
    with trio.fail_after(20):
        while not serving():
            await run_program([driver.subject.path, "-v"], env=driver.environment(driver.generation))
    (pid,) = templates()
    return pid


async def live(driver: Driver, shim: Shim, identifier: str) -> None:
    """A whole life in `shim`."""
    task = await shim.create(driver.bundle(["sh", "-c", "exit 5"], identifier=identifier))
    await task.start()
    assert (await task.wait()).exit_status == 5
    await task.delete()


def file_descriptors(pid: int) -> dict[str, str]:
    """What a process has open."""
    return {fd.name: os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()}


async def test_a_cold_start_leaves_a_template_that_serves_the_next(driver: Driver) -> None:
    first = await driver.start(driver.bundle(["true"], identifier="one"))
    template = await warm(driver)
    second = await driver.start(driver.bundle(["true"], identifier="two"))
    assert templates() == [template]
    for shim in (first, second):
        assert parent_of(shim.pid) != template, "a shim belongs to nobody"
        await live(driver, shim, f"life-{shim.pid}")
    assert Path(f"/proc/{template}/environ").read_bytes() == b""
    assert os.readlink(f"/proc/{template}/cwd") == "/"
    assert len(list(Path(f"/proc/{template}/task").iterdir())) == 1


async def test_a_shim_has_nothing_of_the_template_or_of_another_shim(driver: Driver) -> None:
    template = await warm(driver)
    first = await driver.start(driver.bundle(["true"], identifier="one"), env={"ONE": "1"})
    second = await driver.start(driver.bundle(["true"], identifier="two"), env={"TWO": "2"})
    held = set(file_descriptors(template).values())
    for shim in (first, second):
        fds = file_descriptors(shim.pid)
        assert [fds[number] for number in "012"] == ["/dev/null"] * 3
        sockets = {target for target in fds.values() if target.startswith("socket:")}
        assert not sockets & held
        assert os.getpgid(shim.pid) == os.getsid(shim.pid) == shim.pid
        assert "shim-template" not in command_line(shim.pid)
        ignored = next(
            line for line in Path(f"/proc/{shim.pid}/status").read_text().splitlines() if line.startswith("SigIgn")
        )
        assert not int(ignored.split()[1], 16) & (1 << (signal.SIGCHLD - 1))
    assert f"-id two -address {driver.grpc_address}" in command_line(second.pid)
    task = await second.create(driver.bundle(["sh", "-c", "env"], identifier="env"))
    await task.start()
    await task.wait()
    await task.delete()


async def test_template_off_starts_cold(driver: Driver) -> None:
    shim = await driver.start(driver.bundle(["true"], identifier="one"), env={"TRIO_SHIM_TEMPLATE": "off"})
    assert templates() == []
    assert not list(TEMPLATE_RUN_DIR.iterdir())
    await live(driver, shim, "life")


@pytest.mark.parametrize("variable", ["LD_BIND_NOW", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES"])
async def test_what_the_loader_reads_means_a_cold_start(driver: Driver, variable: str) -> None:
    await driver.start(driver.bundle(["true"], identifier="one"), env={variable: "1"})
    assert templates() == []


async def test_another_key_is_another_template(driver: Driver) -> None:
    template = await warm(driver)
    command = ["nice", "-n", "3", *driver.command("one", "start")]
    bundle = driver.bundle(["true"], identifier="one")
    done = await driver.run_start(bundle, command=command)
    assert done.status == 0
    with trio.fail_after(20):
        while serving() < 2:
            await run_program(["nice", "-n", "3", driver.subject.path, "-v"], env=driver.environment(driver.generation))
    (other,) = set(templates()) - {template}
    assert os.getpriority(os.PRIO_PROCESS, other) == os.getpriority(os.PRIO_PROCESS, template) + 3
    shim = await driver.start(bundle)  # the group's shim answers: it is the one that was niced
    assert os.getpriority(os.PRIO_PROCESS, shim.pid) == os.getpriority(os.PRIO_PROCESS, other)


async def test_a_killed_template_costs_the_next_start_its_warmth_only(driver: Driver) -> None:
    for round_ in range(3):
        template = await warm(driver)
        shim = await driver.start(driver.bundle(["true"], identifier=f"before{round_}"))
        kill_now(template)
        await wait_ended(template, timeout=5)
        assert is_running(shim.pid)
        after = await driver.start(driver.bundle(["true"], identifier=f"after{round_}"))
        await live(driver, shim, f"b{round_}")
        await live(driver, after, f"a{round_}")


async def test_a_template_that_does_not_answer_is_passed_by(driver: Driver) -> None:
    template = await warm(driver)
    os.kill(template, signal.SIGSTOP)
    try:
        with trio.fail_after(15):
            shim = await driver.start(driver.bundle(["true"], identifier="one"))
        await live(driver, shim, "life")
    finally:
        os.kill(template, signal.SIGCONT)


async def test_term_makes_a_template_leave_and_take_its_files_along(driver: Driver) -> None:
    template = await warm(driver)
    os.kill(template, signal.SIGTERM)
    await wait_ended(template, timeout=5)
    assert not list(TEMPLATE_RUN_DIR.iterdir())


async def test_a_launcher_that_is_killed_leaves_no_shim(driver: Driver) -> None:
    await warm(driver)
    for round_ in range(20):
        bundle = driver.bundle(["true"], identifier=f"k{round_}")
        request = driver.start_input(bundle.id, driver.generation, None)
        await kill_after(driver, bundle.id, request, bundle.path, round_ * 0.001)


async def kill_after(driver: Driver, identifier: str, request: bytes, cwd: Path, seconds: float) -> None:
    """Start the start command, kill it after a while; a shim whose answer was out may live, and is then ended."""
    process = await trio.lowlevel.open_process(
        driver.command(identifier, "start"),
        stdin=-1,
        stdout=-1,
        cwd=cwd,
        env=driver.environment(driver.generation),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    await process.stdin.send_all(request)
    await process.stdin.aclose()
    await trio.sleep(seconds)
    process.kill()
    await process.wait()
    answer = await process.stdout.receive_some()
    await process.stdout.aclose()
    if answer:  # it had been delivered: the shim is the caller's to end
        client = await driver.connect(parse_start_answer(bytes(answer), driver.generation).address)
        with contextlib.suppress(errors.ConnectionClosed):
            await client.call(TASK_V3, "Shutdown", ShutdownRequest(), timeout=5)
        await client.closed.wait()
