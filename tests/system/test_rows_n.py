"""Fault rows N: a Create or Start that fails, and what it must take back."""

from __future__ import annotations

import os
import re
import signal
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import pytest
import trio

from shim import errors
from shim.verify import faults
from shim.wire.proto import mount_pb2
from tests.system.harness.bundles import make_bundle
from tests.system.harness.events import open_events
from tests.system.harness.fifos import make_fifo, open_reader
from tests.system.harness.images import IMAGE, write_image
from tests.system.harness.runtimes import make_runtime

if TYPE_CHECKING:
    from pathlib import Path

    from shim.verify.faults import FaultRuntime
    from tests.system.harness.bundles import Bundle, Json
    from tests.system.harness.daemons import Daemon
    from tests.system.harness.driver import Driver
    from tests.system.harness.task import Task

UNMOUNTABLE: Final[Json] = {"destination": "/mnt", "type": "bind", "source": "/nonexistent/x", "options": ["rbind"]}


def _mounted(point: Path) -> bool:
    with open("/proc/self/mountinfo") as table:
        return any(line.split()[4] == str(point) for line in table)


def _rootfs_mounts(driver: Driver) -> list[mount_pb2.Mount]:
    return [mount_pb2.Mount(type="bind", source=str(driver.rootfs), options=["rbind", "ro"])]


def _renew(driver: Driver, bundle: Bundle, args: list[str]) -> Bundle:
    """As the daemon does after a failure: away with the bundle, and a new one of that id."""
    _remove(bundle)
    spec = driver.spec(args, bundle.id)
    return make_bundle(bundle.path, bundle.id, spec)


def _remove(bundle: Bundle) -> None:
    for path in bundle.path.iterdir():
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink()
    bundle.path.rmdir()


async def test_N1_failed_create_takes_its_mounts_back(driver: Driver) -> None:
    bundle = driver.bundle(["true"], root="rootfs", mounts=[UNMOUNTABLE])
    shim = await driver.start(bundle)
    with pytest.raises(errors.Unknown, match=r"OCI runtime create failed: .*/nonexistent/x"):
        await shim.create(bundle, rootfs=_rootfs_mounts(driver))
    assert not _mounted(bundle.file("rootfs"))
    assert not list(driver.runc_root.glob("*/*"))
    with pytest.raises(errors.NotFound):
        await shim.known(bundle.id).state()
    # The same id, with a spec that works.
    bundle = _renew(driver, bundle, ["true"])
    task = await shim.create(bundle, rootfs=_rootfs_mounts(driver))
    assert _mounted(bundle.file("rootfs"))
    await task.start()
    assert (await task.wait()).exit_status == 0
    await task.delete()
    assert not _mounted(bundle.file("rootfs"))


async def test_N1_failed_mount_is_named_and_undone(driver: Driver) -> None:
    bundle = driver.bundle(["true"], root="rootfs")
    shim = await driver.start(bundle)
    mounts = [*_rootfs_mounts(driver), mount_pb2.Mount(type="bind", source="/nonexistent/x", options=["bind"])]
    with pytest.raises(errors.ShimError, match="failed to mount rootfs component"):
        await shim.create(bundle, rootfs=mounts)
    assert not _mounted(bundle.file("rootfs"))
    task = await shim.create(bundle, rootfs=mounts[:1])
    await task.delete()


async def test_N1_failed_run_from_a_snapshot_leaves_nothing(daemon: Daemon) -> None:
    archive = write_image(daemon.rootfs, daemon.directory / "box.tar")
    await daemon.ctr_ok("images", "import", archive)
    run = ["run", "--runtime", daemon.subject.runtime]
    bad = ["--mount", "type=bind,src=/nonexistent/x,dst=/mnt,options=rbind"]
    done = await daemon.ctr(*run, *bad, IMAGE, "n1", "true")
    assert done.status != 0
    assert b"/nonexistent/x" in done.errors
    assert not list(daemon.bundles.iterdir())
    await daemon.ctr_ok("containers", "delete", "n1")
    assert (await daemon.ctr(*run, "--rm", IMAGE, "n1", "true")).status == 0


@pytest.mark.parametrize(
    "tail",
    [
        pytest.param(b"", id="whole"),
        pytest.param(
            b'\xff\xfe\x00junk\n{"level":"error","msg":"half a li',
            id="damaged",
            marks=pytest.mark.better_than_peer("the Go shim gives up reading a log with anything else in it"),
        ),
    ],
)
async def test_N3_reason_comes_from_the_end_of_the_runtime_log(driver: Driver, tail: bytes) -> None:
    lines = (
        b'{"level":"error","msg":"the first reason","time":"2026-01-01T00:00:00Z"}\n'
        b'{"level":"error","msg":"the real reason","time":"2026-01-01T00:00:01Z"}\n'
        b'{"level":"warning","msg":"something after it","time":"2026-01-01T00:00:02Z"}\n'
    )
    runtime = make_runtime(driver.directory / "runtime")
    runtime.fail_create(lines + tail)
    bundle = driver.bundle(["true"])
    shim = await driver.start(bundle)
    with pytest.raises(errors.Unknown) as caught:
        await shim.create(bundle, options=driver.options(binary_name=runtime.binary))
    assert caught.value.message == "OCI runtime create failed: the real reason"
    runtime.work()
    task = await shim.create(bundle, options=driver.options(binary_name=runtime.binary))
    await task.delete()


async def test_N6_id_of_a_killed_shim_is_free_after_delete(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    await driver.kill_shim(task.shim)
    done, _ = await driver.delete_command(task.bundle)
    assert done.status == 0, done.errors
    bundle = _renew(driver, task.bundle, ["true"])
    shim = await driver.start(bundle)
    assert shim.pid != task.shim.pid
    again = await shim.create(bundle)
    await again.start()
    assert (await again.wait()).exit_status == 0
    await again.delete()


async def test_N6_daemon_can_run_the_id_of_a_killed_shim_again(daemon: Daemon) -> None:
    async with open_events(daemon) as events:
        await daemon.ctr_ok(*daemon.run_arguments("n6", ["sleep", "1000"], "--detach"))
        os.kill(await daemon.shim_pid("n6"), signal.SIGKILL)
        await events.wait_for("n6", "/tasks/delete")
    assert await daemon.ctr_ok("tasks", "list", "-q") == ""
    await daemon.ctr_ok("containers", "delete", "n6")
    assert (await daemon.run("n6", ["true"], "--rm")).status == 0


MEGABYTE: Final = 1_000_000
LOG: Final = (
    b'{"level":"error","msg":"the first reason"}\n'
    b'\xff\xfe\x00 junk {"level": "error", "msg": \n'
    b'{"level":"error","msg":"the real reason"}\n'
    b'{"level":"warning","msg":"something after it"}\n'
    b'{"level":"error","msg":"half a li'
)
"""Several errors, binary junk and a half line: what a runtime that crashes may leave."""


@pytest.mark.slow
@pytest.mark.parametrize("stdio", ["none", "read", "unread"])
@pytest.mark.better_than_peer("the Go shim's error holds all that the runtime printed")
async def test_N2_flood_of_a_failing_create_is_bounded(driver: Driver, stdio: str) -> None:
    steps = [faults.output(MEGABYTE), faults.fail(message="the end of it")]
    runtime = faults.make_fault_runtime(driver.directory, {"create": steps})
    bundle = driver.bundle(["true"])
    shim = await driver.start(bundle)
    path = "" if stdio == "none" else str(make_fifo(bundle.file("stdout")))
    async with AsyncExitStack() as stack:
        if stdio == "read":
            await stack.enter_async_context(open_reader(bundle.file("stdout")))
        with trio.fail_after(5), pytest.raises(errors.Unknown) as caught:
            await shim.create(bundle, stdout=path, stderr=path, options=driver.options(binary_name=runtime.binary))
    assert re.match(r"OCI runtime create failed: .*exit status 1", caught.value.message)
    assert len(caught.value.message) < BOUNDED
    runtime.plan({})
    task = await shim.create(bundle, options=driver.options(binary_name=runtime.binary))
    await task.delete()


BOUNDED: Final = 64 << 10
"""More than any error text may have."""


async def _faulty_task(driver: Driver) -> tuple[FaultRuntime, Task]:
    """A running task whose runtime does what it is told to from then on."""
    runtime = faults.make_fault_runtime(driver.directory, {"--version": faults.unlike_runc()})
    bundle = driver.bundle(["sleep", "1000"])
    shim = await driver.start(bundle)
    task = await shim.create(bundle, options=driver.options(binary_name=runtime.binary))
    return runtime, task


PREFIXES: Final = {
    "start": "OCI runtime start failed",
    "pause": "OCI runtime pause failed",
    "resume": "OCI runtime resume failed",
    "exec": "OCI runtime exec failed",
    "kill": "unknown error after kill",
    "update": "",
    "ps": "",
    "delete": "failed to delete task",
}


async def _provoke(task: Task, verb: str) -> None:
    """The call that makes the shim run `verb`, from a state in which it may."""
    if verb == "start":
        await task.start()
    elif verb == "pause":
        await task.pause()
    elif verb == "resume":
        await task.resume()
    elif verb == "exec":
        await task.known_exec("e").start()
    elif verb == "kill":
        await task.kill()
    elif verb == "update":
        await task.update(b"{}")
    elif verb == "ps":
        await task.processes()
    else:
        await task.delete()


async def _prepare(task: Task, verb: str) -> None:
    if verb != "start":
        await task.start()
    if verb == "resume":
        await task.pause()
    if verb == "exec":
        await task.exec("e", ["sleep", "1000"])
    if verb == "delete":
        await task.kill()
        await task.wait()


@pytest.mark.slow
@pytest.mark.parametrize("verb", list(PREFIXES))
@pytest.mark.better_than_peer("the Go shim's error holds all that the runtime printed")
async def test_N2_flood_of_a_failing_command_is_bounded(driver: Driver, verb: str) -> None:
    runtime, task = await _faulty_task(driver)
    await _prepare(task, verb)
    before = await task.state()
    steps = [faults.output(MEGABYTE), faults.output(MEGABYTE, to="stdout"), faults.fail(3, message="the end of it")]
    runtime.plan({"--version": faults.unlike_runc(), verb: steps})
    with trio.fail_after(5), pytest.raises(errors.Unknown) as caught:
        await _provoke(task, verb)
    assert caught.value.message.startswith(PREFIXES[verb])
    assert "exit status 3" in caught.value.message
    assert len(caught.value.message) < BOUNDED
    assert await task.state() == before
    runtime.plan({"--version": faults.unlike_runc()})
    await _provoke(task, verb)


@pytest.mark.parametrize("verb", [verb for verb, prefix in PREFIXES.items() if prefix.startswith("OCI")])
@pytest.mark.better_than_peer("the Go shim gives up reading a log with anything else in it")
async def test_N3_last_reason_of_a_damaged_log_is_told(driver: Driver, verb: str) -> None:
    runtime, task = await _faulty_task(driver)
    await _prepare(task, verb)
    runtime.plan({"--version": faults.unlike_runc(), verb: [faults.fail(log=LOG, message="and no reason")]})
    with pytest.raises(errors.Unknown) as caught:
        await _provoke(task, verb)
    assert caught.value.message == f"{PREFIXES[verb]}: the real reason"
    runtime.plan({"--version": faults.unlike_runc()})
    await _provoke(task, verb)


@pytest.mark.better_than_peer("the Go shim tells the last reason in the log, whoever left it")
async def test_N3_reason_of_an_earlier_command_is_not_told_again(driver: Driver) -> None:
    runtime, task = await _faulty_task(driver)
    await task.start()
    runtime.plan({"pause": [faults.fail(log_error="an old reason", times=1), faults.fail(7, message="a new one")]})
    with pytest.raises(errors.Unknown, match=r"^OCI runtime pause failed: an old reason$"):
        await task.pause()
    with pytest.raises(errors.Unknown) as caught:
        await task.pause()
    assert "exit status 7: a new one" in caught.value.message
    runtime.plan({})


@pytest.mark.better_than_peer("the Go shim's text is the same but for the system's own words")
async def test_N3_log_that_cannot_be_read_is_told(driver: Driver) -> None:
    runtime, task = await _faulty_task(driver)
    await task.start()
    task.bundle.file("log.json").unlink()
    task.bundle.file("log.json").mkdir()
    runtime.plan({"pause": [faults.fail(7, message="the only reason")]})
    with pytest.raises(
        errors.Unknown, match=r"^OCI runtime pause failed: unable to retrieve OCI runtime error \(.*\): "
    ) as told:
        await task.pause()
    assert told.value.message.endswith("exit status 7: the only reason")
    task.bundle.file("log.json").rmdir()
    runtime.plan({})


@pytest.mark.parametrize("verb", ["pause", "exec", "kill", "delete"])
async def test_N3_runtime_killed_by_a_signal_is_an_error(driver: Driver, verb: str) -> None:
    runtime, task = await _faulty_task(driver)
    await _prepare(task, verb)
    before = await task.state()
    runtime.plan({"--version": faults.unlike_runc(), verb: [faults.die(signal.SIGSEGV)]})
    with trio.fail_after(5), pytest.raises(errors.Unknown) as caught:
        await _provoke(task, verb)
    assert caught.value.message.startswith(PREFIXES[verb])
    assert await task.state() == before
    runtime.plan({"--version": faults.unlike_runc()})
    await _provoke(task, verb)
