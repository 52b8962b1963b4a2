"""Real mounts: what they look like in the table, that nothing is left, and that no link leads out (rows N1, T1, T4)."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest
import trio

from shim.errors import FailedPrecondition, InvalidArgument, ShimError, Unknown
from shim.kernel import mounts as kernel
from shim.kernel import native
from shim.kernel.fds import OwnedFd
from shim.kernel.mountinfo import read_mountinfo
from shim.kernel.threads import Threads
from shim.model.mounts import Mount
from shim.mounts import unwind
from shim.mounts.apply import mount_all
from shim.mounts.unwind import unmount_all
from tests.system.harness.mounting import loop_images, make_ext4, mounted, open_root, points

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def root(directory: Path) -> AsyncIterator[Path]:
    async with open_root(directory) as made:
        yield made


async def test_an_overlay_and_what_is_inside_it(directory: Path, root: Path) -> None:
    for name in ("lower/in/deep", "upper", "work", "bound"):
        (directory / name).mkdir(parents=True)
    (directory / "bound" / "file").write_text("bound")
    overlay = (f"lowerdir={directory}/lower", f"upperdir={directory}/upper", f"workdir={directory}/work")
    await mount_all(
        [
            Mount("overlay", "overlay", options=overlay),
            Mount("bind", str(directory / "bound"), "in", ("rbind", "ro", "nosuid")),
            Mount("tmpfs", "tmpfs", "/in/../in", ("size=4k", "mode=700")),
        ],
        str(root),
    )
    assert points(root) == ["", "/in", "/in"]
    bind = mounted(root)[1]
    assert {"ro", "nosuid"} <= set(bind.options)
    assert "rw" in bind.super_options
    done = await unmount_all(str(root))
    assert [one.target.removeprefix(str(root)) for one in done] == ["/in", "/in", ""]
    assert all(one.unmount_ns > 0 for one in done)
    assert done[-1].sync_ns > 0
    assert mounted(root) == []
    assert (directory / "bound" / "file").read_text() == "bound"


async def test_depths_are_unmounted_deepest_first(root: Path) -> None:
    await mount_all([Mount("tmpfs", "tmpfs")], str(root))
    (root / "a" / "b").mkdir(parents=True)
    await mount_all([Mount("tmpfs", "tmpfs", "a/b"), Mount("tmpfs", "tmpfs", "a")], str(root))
    # a/b is hidden now, and can only be reached when the mount over it is gone.
    await mount_all([Mount("tmpfs", "tmpfs")], str(root))
    assert len(mounted(root)) == 4
    await unmount_all(str(root))
    assert mounted(root) == []


async def test_a_bind_keeps_what_its_source_forbids(directory: Path, root: Path) -> None:
    source = directory / "source"
    source.mkdir()
    native.mount("tmpfs", str(source), "tmpfs", 0x4 | 0x8, "")  # nodev, noexec
    try:
        await mount_all([Mount("bind", str(source), options=("bind", "ro", "exec"))], str(root))
        options = set(mounted(root)[0].options)
        assert {"ro", "nodev"} <= options
        assert "noexec" not in options
        await unmount_all(str(root))
    finally:
        kernel.unmount(str(source), detach=True)


async def test_propagation(root: Path) -> None:
    await mount_all([Mount("tmpfs", "tmpfs", options=("rshared",))], str(root))
    assert [tag.partition(":")[0] for tag in mounted(root)[0].tags] == ["shared"]
    await unmount_all(str(root))


@pytest.mark.parametrize("link", ["/", "../../../../..", "/outside", "rel"])
async def test_no_link_leads_out_of_the_root(directory: Path, root: Path, link: str) -> None:
    outside = directory / "outside"
    outside.mkdir()
    (root / "outside").mkdir()
    (root / "rel").symlink_to("../../outside")
    (root / "link").symlink_to(link)
    before = len(read_mountinfo())
    await mount_all([Mount("tmpfs", "tmpfs", "link")], str(root))
    assert len(mounted(root)) == 1
    assert len(read_mountinfo()) == before + 1
    assert points(root) == ["" if set(link) <= {"/", "."} else "/outside"]
    await unmount_all(str(root))


async def test_a_failure_leaves_nothing_mounted(root: Path) -> None:
    wrong: list[tuple[Mount, type[ShimError]]] = [
        (Mount("no-such-fs", "x"), Unknown),
        (Mount("tmpfs", "tmpfs", "missing/target"), Unknown),
        (Mount("tmpfs", "tmpfs", options=("x" * 5000,)), InvalidArgument),
        (Mount("ext4", "/nowhere.img", options=("loop",)), Unknown),
        (Mount("bind", "/nowhere", options=("rbind", "ro")), Unknown),
    ]
    for mount, leaf in wrong:
        with pytest.raises(leaf):
            await mount_all([Mount("tmpfs", "tmpfs"), mount], str(root))
        assert mounted(root) == []


async def test_a_loop_device_goes_with_its_mount(directory: Path, root: Path) -> None:
    image = make_ext4(directory / "image")
    await mount_all([Mount("ext4", str(image), options=("loop",))], str(root))
    assert str(image) in loop_images().values()
    (root / "file").write_text("kept")
    await unmount_all(str(root))
    assert str(image) not in loop_images().values()
    await mount_all([Mount("ext4", str(image), options=("loop", "ro"))], str(root))
    assert (root / "file").read_text() == "kept"
    assert "ro" in mounted(root)[0].super_options
    await unmount_all(str(root))
    assert str(image) not in loop_images().values()


async def test_a_loop_device_is_freed_when_the_mount_fails(directory: Path, root: Path) -> None:
    image = directory / "image"
    image.write_bytes(bytes(1 << 20))
    with pytest.raises(Unknown, match="failed to mount rootfs component"):
        await mount_all([Mount("tmpfs", "tmpfs"), Mount("ext4", str(image), options=("loop",))], str(root))
    assert str(image) not in loop_images().values()
    assert mounted(root) == []


async def test_a_busy_root_is_named_and_a_retry_works(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unwind, "PAUSE_SECONDS", 0.001)
    await mount_all([Mount("tmpfs", "tmpfs")], str(root))
    (root / "file").write_text("there")
    with OwnedFd(os.open(root, os.O_RDONLY)):
        with pytest.raises(FailedPrecondition, match=f"failed to unmount {root}: device or resource busy"):
            await unmount_all(str(root))
        assert (root / "file").read_text() == "there"
    await unmount_all(str(root))
    assert mounted(root) == []
    assert await unmount_all(str(root)) == []


async def test_a_mount_that_comes_after_its_caller_went_is_undone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = Threads("test", 1)
    begun, go = threading.Event(), threading.Event()
    real = native.mount

    def slow(source: str, target: str, kind: str, flags: int, data: str) -> None:
        begun.set()
        assert go.wait(20)
        real(source, target, kind, flags, data)

    monkeypatch.setattr(native, "mount", slow)
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            await mount_all([Mount("tmpfs", "tmpfs"), Mount("tmpfs", "tmpfs")], str(root), threads=threads)

        nursery.start_soon(wait)
        with trio.fail_after(10):
            while not begun.is_set():
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert len(threads.stuck()) == 1
    go.set()
    with trio.fail_after(10):
        while threads.stuck():
            await trio.lowlevel.checkpoint()
    assert mounted(root) == []
