"""Fault rows S: transforms and options of the mounts that a shim is given with Create."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Final

import pytest

from shim import errors
from shim.wire.proto.mount_pb2 import Mount
from tests.system.harness.mounting import loop_images, make_ext4, mounted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.system.harness.bundles import Bundle
    from tests.system.harness.driver import Driver

MKDIR: Final = "X-containerd.mkdir.path="
TOO_LONG: Final = pytest.mark.better_than_peer("the Go shim says that the mount options are too long")
OURS: Final = "the Go shim leaves transforms to the daemon"


async def run_on(driver: Driver, rootfs: Sequence[Mount], command: str = "test -x /bin/sh") -> None:
    """A whole life of a task on these mounts, whose command must succeed; nothing is mounted after it."""
    bundle = driver.bundle(["sh", "-c", command], root="rootfs", readonly=False)
    shim = await driver.start(bundle)
    place = os.readlink(f"/proc/{shim.pid}/cwd")
    task = await shim.create(bundle, rootfs=rootfs)
    assert os.readlink(f"/proc/{shim.pid}/cwd") == place
    await task.start()
    assert (await task.wait()).exit_status == 0
    await task.delete()
    assert mounted(bundle.file("rootfs")) == []
    assert devices_below(driver.directory) == []


def devices_below(directory: Path) -> list[str]:
    """The images below `directory` that a loop device is in use for."""
    return [image for image in loop_images().values() if image.startswith(f"{directory}/")]


def erofs_of(driver: Driver) -> Path:
    """The shared root file system as an EROFS image."""
    image = driver.directory / "root.erofs"
    subprocess.run(["mkfs.erofs", image, driver.rootfs], check=True, capture_output=True)
    return image


def long_overlay(driver: Driver, total: int) -> Mount:
    """An overlay of a hundred layers, the lowest the shared root, whose options are `total` bytes in one text."""
    top = driver.directory
    options = [f"upperdir={top}/upper", f"workdir={top}/work"]
    for name in ("upper", "work"):
        (top / name).mkdir()
    fixed = len(",".join([*options, f"lowerdir={driver.rootfs}"]))
    each, rest = divmod(total - fixed - 99, 99)
    shared = top / ("s" * (each - len(str(top)) - 5))
    layers = [shared / f"{number:0{4 if number < rest else 3}}" for number in range(99)]
    for number, layer in enumerate(layers):
        layer.mkdir(parents=True)
        (layer / f"layer{number}").touch()
    options.append("lowerdir=" + ":".join(map(str, [*layers, driver.rootfs])))
    assert len(",".join(options)) == total
    return Mount(type="overlay", source="overlay", options=options)


@pytest.mark.better_than_peer(OURS)
async def test_S1_transforms_that_the_shim_is_given(driver: Driver) -> None:
    image = make_ext4(driver.directory / "image", "16M")
    rootfs = [
        Mount(type="ext4", source=str(image), options=["loop"]),
        Mount(type="erofs", source=str(erofs_of(driver)), options=["ro"]),
        Mount(
            type="format/mkdir/overlay",
            source="overlay",
            options=[
                f"{MKDIR}{{{{ mount 0 }}}}/upper:0755",
                f"{MKDIR}{{{{ mount 0 }}}}/work",
                "lowerdir={{ overlay 1 1 }}",
                "upperdir={{ mount 0 }}/upper",
                "workdir={{ mount 0 }}/work",
            ],
        ),
    ]
    await run_on(driver, rootfs, "echo there > /written")
    shown = subprocess.run(["debugfs", "-R", "cat /upper/written", image], capture_output=True, check=True)
    assert shown.stdout == b"there\n"


@pytest.mark.better_than_peer(OURS)
@pytest.mark.parametrize(
    "options",
    [
        ["lowerdir={{ overlay 0 1 }}"],
        ["lowerdir={{ mount -1 }}"],
        ["lowerdir={{ mount }}"],
        ["lowerdir={{ other 0 }}"],
        ["lowerdir={{ mount 0"],
    ],
)
async def test_S1_a_template_that_means_nothing(driver: Driver, options: list[str]) -> None:
    await refuse(driver, [Mount(type="format/overlay", source="overlay", options=options)], errors.InvalidArgument)


@pytest.mark.better_than_peer("the Go shim hands it to the kernel")
async def test_S1_template_text_never_reaches_the_kernel(driver: Driver) -> None:
    for kind, leaf in (("overlay", errors.InvalidArgument), ("other/overlay", errors.Unimplemented)):
        options = ["lowerdir={{ mount 0 }}"]
        await refuse(driver, [Mount(type=kind, source="overlay", options=options)], leaf)


@pytest.mark.parametrize("total", [4095, 4096, 4097, pytest.param(13000, marks=TOO_LONG)])
async def test_S6_a_hundred_layers(driver: Driver, total: int) -> None:
    await run_on(driver, [long_overlay(driver, total)], "test -e /layer0 && test -e /layer98 && echo x > /written")
    assert (driver.directory / "upper" / "written").exists()


async def test_S6_one_path_of_300_bytes(driver: Driver) -> None:
    long = driver.directory / ("a" * 140)
    long /= "b" * (299 - len(str(long)))
    long.mkdir(parents=True)
    (long / "file").touch()
    rootfs = Mount(type="overlay", source="overlay", options=[f"lowerdir={long}:{driver.rootfs}"])
    await run_on(driver, [rootfs], "test -e /file")


@pytest.mark.better_than_peer(OURS)
@pytest.mark.parametrize(
    "value",
    [
        "/tmp/shim-made-outside",
        "{bundle}/made",
        "{bundle}/rootfs/../made",
        "relative",
        "{bundle}/rootfs/made:abc",
        "{bundle}/rootfs/made:0700:0:0:0",
        "{bundle}/rootfs/out/made",
        "",
    ],
)
async def test_S9_nothing_is_made_outside(driver: Driver, value: str) -> None:
    def option(bundle: Bundle) -> str:
        return MKDIR + value.format(bundle=bundle.path)

    first = driver.bundle(["true"], root="rootfs")
    (first.path / "rootfs").mkdir(exist_ok=True)
    (first.path / "rootfs" / "out").symlink_to("../..")
    shim = await driver.start(first)
    mounts = [
        Mount(type="bind", source=str(driver.rootfs), options=["rbind"]),
        Mount(type="mkdir/tmpfs", source="tmpfs", target="/mnt", options=[option(first)]),
    ]
    with pytest.raises(errors.InvalidArgument):
        await shim.create(first, rootfs=mounts)
    assert list(driver.directory.rglob("made")) == []
    assert not (driver.rootfs / "made").exists()
    assert not os.path.lexists("/tmp/shim-made-outside")
    assert mounted(first.file("rootfs")) == []
    await shim.shutdown()


@pytest.mark.parametrize("options", [["ro"], ["ro", "loop"], ["loop"], []])
async def test_S10_an_erofs_image_with_and_without_the_loop_option(driver: Driver, options: list[str]) -> None:
    image = erofs_of(driver)
    await run_on(driver, [Mount(type="erofs", source=str(image), options=options)], "! touch /new && test -x /bin/sh")


async def test_S10_what_is_no_erofs(driver: Driver) -> None:
    (driver.directory / "image").write_bytes(bytes(1 << 20))
    await refuse(driver, [Mount(type="erofs", source=str(driver.directory / "image"), options=["loop"])])
    assert devices_below(driver.directory) == []


async def refuse(driver: Driver, rootfs: Sequence[Mount], leaf: type[errors.ShimError] = errors.ShimError) -> None:
    """Create with these mounts must fail so, and leave nothing mounted."""
    bundle = driver.bundle(["true"], root="rootfs")
    shim = await driver.start(bundle)
    with pytest.raises(leaf):
        await shim.create(bundle, rootfs=rootfs)
    assert mounted(bundle.file("rootfs")) == []
    await shim.shutdown()
