"""Fault rows T: unmounting, busy roots, loop devices; and nothing of the host is ever removed through a mount."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest
import trio

from shim import errors
from shim.wire.proto.mount_pb2 import Mount
from tests.system.harness.loops import copy_image, image_mount, loop_table, loops_below, make_root_image
from tests.system.harness.slowdisk import is_mounted
from tests.system.harness.subject import Kind
from tests.system.harness.task import STOPPED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.system.harness.bundles import Bundle
    from tests.system.harness.driver import Driver
    from tests.system.harness.task import Task

LOOP_TASKS: Final = 100
AT_ONCE: Final = 8


def overlay(driver: Driver, bundle: Bundle) -> Mount:
    """A writable root for the bundle."""
    upper, work = bundle.path / "upper", bundle.path / "overlay"
    upper.mkdir()
    work.mkdir()
    options = [f"lowerdir={driver.rootfs}", f"upperdir={upper}", f"workdir={work}"]
    return Mount(type="overlay", source="overlay", options=options)


async def ended_task(driver: Driver) -> tuple[Task, Path]:
    """A stopped task on a mounted root, and where that is."""
    bundle = driver.bundle(["sh", "-c", "exit 3"], root="rootfs", readonly=False)
    shim = await driver.start(bundle)
    task = await shim.create(bundle, rootfs=[overlay(driver, bundle)])
    await task.start()
    assert (await task.wait()).exit_status == 3
    return task, bundle.path / "rootfs"


@contextmanager
def holder(place: Path) -> Iterator[None]:
    """A process of the host whose working directory is `place`."""
    process = subprocess.Popen(["sleep", "1000"], cwd=place)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def mount(*words: str | Path) -> None:
    """mount(8), as an administrator would."""
    subprocess.run(["mount", *words], check=True, capture_output=True, timeout=20)


async def test_T1_busy_root_is_told_and_can_be_retried(driver: Driver) -> None:
    task, rootfs = await ended_task(driver)
    busy = errors.FailedPrecondition if driver.subject.kind is Kind.OURS else errors.ShimError
    with holder(rootfs):
        for _ in range(2):
            with pytest.raises(busy, match="device or resource busy"):
                await task.delete()
            state = await task.state()
            assert (state.status, state.exit_status) == (STOPPED, 3)
            assert is_mounted(rootfs)
    assert (await task.delete()).exit_status == 3
    assert not is_mounted(rootfs)
    with pytest.raises(errors.NotFound):
        await task.state()
    assert driver.sink.topics(task.id).count("/tasks/delete") <= 1


@pytest.mark.better_than_peer("the Go shim answers no State while it tries to unmount")
async def test_T1_a_root_that_is_let_go_in_time_is_no_failure(driver: Driver) -> None:
    task, rootfs = await ended_task(driver)
    answers: list[int] = []

    async def delete() -> None:
        answers.append((await task.delete()).exit_status)

    async with trio.open_nursery() as nursery:
        with holder(rootfs):
            nursery.start_soon(delete)
            with trio.move_on_after(1):  # within the 2.5 s that a busy mount is tried for
                while True:
                    assert (await task.state()).status == STOPPED
                    await trio.sleep(0.05)
            assert answers == []
    assert answers == [3]
    assert not is_mounted(rootfs)


@pytest.mark.better_than_peer("containerd 1.6's shim unmounts the root alone", only="go-1.6")
async def test_T4_nested_mounts_go_deepest_first(driver: Driver) -> None:
    task, rootfs = await ended_task(driver)
    mount("-t", "tmpfs", "tmpfs", rootfs / "mnt")
    (rootfs / "mnt" / "a" / "b").mkdir(parents=True)
    mount("-t", "tmpfs", "tmpfs", rootfs / "mnt" / "a" / "b")
    (rootfs / "mnt" / "a" / "b" / "file").write_text("on the deepest")
    mount("-t", "tmpfs", "tmpfs", rootfs / "run")
    mount("-t", "tmpfs", "tmpfs", rootfs / "run")
    assert (await task.delete()).exit_status == 3
    assert not is_mounted(rootfs)


async def run_on_image(driver: Driver, first: Task, image: Path, mine: Path) -> None:
    """A whole life of a task whose root is a copy of `image`."""
    copy = await trio.to_thread.run_sync(copy_image, image, mine)
    bundle = driver.bundle(["sh", "-c", "echo there > /written && exit 5"], root="rootfs", readonly=False)
    task = await first.shim.create(bundle, rootfs=[image_mount(copy)], timeout=60)
    assert str(copy) in loop_table().values()
    await task.start(timeout=60)
    assert (await task.wait(timeout=60)).exit_status == 5
    assert (await task.delete(timeout=60)).exit_status == 5
    # Its loop device may live a moment longer: a container that is just being made has a copy of the host's mounts.
    assert not is_mounted(bundle.path / "rootfs")
    copy.unlink()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_T5_loop_devices_of_a_hundred_tasks_all_come_back(driver: Driver) -> None:
    image = make_root_image(driver.directory / "root.img", driver.rootfs)
    foreign = copy_image(image, driver.directory / "foreign.img")
    found = subprocess.run(
        ["losetup", "--find", "--show", str(foreign)], check=True, capture_output=True, text=True, timeout=20
    )
    device = found.stdout.strip()
    try:
        first = await driver.run(["sleep", "1000"])
        room = trio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            async with room:
                await run_on_image(driver, first, image, driver.directory / f"{number}.img")

        async with trio.open_nursery() as nursery:
            for number in range(LOOP_TASKS):
                nursery.start_soon(one, number)
        with trio.fail_after(10):
            wanted = {os.path.basename(device): str(foreign)}
            while loops_below(driver.directory) != wanted:  # noqa: ASYNC110 - the kernel tells nobody
                await trio.sleep(0.05)
    finally:
        subprocess.run(["losetup", "--detach", device], check=True, timeout=20)


async def test_T6_an_image_that_is_no_file_system_costs_no_loop_device(driver: Driver) -> None:
    junk = driver.directory / "junk.img"
    junk.write_bytes(os.urandom(1 << 20))
    bundle = driver.bundle(["sh", "-c", "exit 5"], root="rootfs", readonly=False)
    shim = await driver.start(bundle)
    for _ in range(3):
        with pytest.raises(errors.ShimError, match="failed to mount rootfs component"):
            await shim.create(bundle, rootfs=[image_mount(junk)])
        assert loops_below(driver.directory) == {}
        assert not is_mounted(bundle.path / "rootfs")
    image = make_root_image(driver.directory / "root.img", driver.rootfs)
    task = await shim.create(bundle, rootfs=[image_mount(image)])
    await task.start()
    assert (await task.wait()).exit_status == 5
    assert (await task.delete()).exit_status == 5
    assert loops_below(driver.directory) == {}


def make_canary(directory: Path) -> Path:
    """A directory of the host with something in it that must outlive every container."""
    (directory / "canary" / "deep").mkdir(parents=True)
    (directory / "canary" / "deep" / "file").write_text("alive")
    return directory / "canary"


def is_alive(canary: Path) -> bool:
    """Whether all of it is there still."""
    return [path.name for path in canary.rglob("*")] == ["deep", "file"] and (
        canary / "deep" / "file"
    ).read_text() == "alive"


@pytest.mark.better_than_peer("containerd 1.6's shim unmounts the root alone", only="go-1.6")
async def test_canary_outlives_a_delete_that_fails_and_one_that_works(driver: Driver) -> None:
    canary = make_canary(driver.directory)
    task, rootfs = await ended_task(driver)
    mount("--bind", canary, rootfs / "mnt")
    with holder(rootfs / "mnt" / "deep"):
        with pytest.raises(errors.ShimError, match="busy"):
            await task.delete()
        assert is_alive(canary)
    assert (await task.delete()).exit_status == 3
    assert not is_mounted(rootfs)
    assert is_alive(canary)


@pytest.mark.better_than_peer("containerd 1.6's mounts have no target", only="go-1.6")
async def test_canary_outlives_a_create_that_fails(driver: Driver) -> None:
    canary = make_canary(driver.directory)
    bundle = driver.bundle(["/nonexistent/program"], root="rootfs", readonly=False)
    shim = await driver.start(bundle)
    mounts = [overlay(driver, bundle), Mount(type="bind", source=str(canary), target="/mnt", options=["rbind", "rw"])]
    with pytest.raises(errors.ShimError, match="/nonexistent/program"):
        await shim.create(bundle, rootfs=mounts)
    assert not is_mounted(bundle.path / "rootfs")
    assert is_alive(canary)


@pytest.mark.better_than_peer("the Go shim's delete command leaves nested mounts")
async def test_canary_outlives_the_delete_command(driver: Driver) -> None:
    canary = make_canary(driver.directory)
    task, rootfs = await ended_task(driver)
    mount("--bind", canary, rootfs / "mnt")
    await driver.kill_shim(task.shim)
    done, answer = await driver.delete_command(task.bundle)
    assert (done.status, answer.pid) == (0, task.pid), done.errors
    assert is_alive(canary)
    assert not is_mounted(rootfs)
