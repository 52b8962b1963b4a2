"""Fault rows N: a Create or Start that fails, and what it must take back."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Final

import pytest

from shim import errors
from shim.wire.proto import mount_pb2
from tests.system.harness.bundles import make_bundle
from tests.system.harness.events import open_events
from tests.system.harness.images import IMAGE, write_image
from tests.system.harness.runtimes import make_runtime

if TYPE_CHECKING:
    from pathlib import Path

    from tests.system.harness.bundles import Bundle, Json
    from tests.system.harness.daemons import Daemon
    from tests.system.harness.driver import Driver


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
