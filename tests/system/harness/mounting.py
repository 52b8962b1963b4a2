"""What the tests of mounts share: an empty root file system, and looking at what is mounted there."""

from __future__ import annotations

import os
import subprocess
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from shim.kernel import mounts as kernel
from shim.kernel.mountinfo import MountEntry, at_or_below, read_mountinfo
from shim.mounts.unwind import unmount_order

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@asynccontextmanager
async def open_root(directory: Path) -> AsyncIterator[Path]:
    """An empty root file system; whatever a failed test leaves on it is detached.

    A worker thread kept from before this suite took its own mount namespace would mount in the machine's: refused.
    """
    place = await trio.to_thread.run_sync(os.readlink, "/proc/thread-self/ns/mnt")
    assert place == os.readlink("/proc/self/ns/mnt"), "worker threads are older than the private mounts"
    made = directory / "rootfs"
    made.mkdir()
    yield made
    for entry in unmount_order(mounted(made)):
        kernel.unmount(entry.mount_point, detach=True)


def mounted(root: Path) -> list[MountEntry]:
    """The mounts at `root` and below."""
    return at_or_below(read_mountinfo(), str(root))


def points(root: Path) -> list[str]:
    """Where they are, as seen from `root`."""
    return [entry.mount_point.removeprefix(str(root)) for entry in mounted(root)]


def loop_images() -> dict[str, str]:
    """The loop devices in use, by name, and their images."""
    found = {}
    for device in os.listdir("/sys/block"):
        try:
            with open(f"/sys/block/{device}/loop/backing_file", encoding="utf-8") as stream:
                found[device] = stream.read().strip()
        except FileNotFoundError:
            continue
    return found


def make_ext4(image: Path, size: str = "8M") -> Path:
    """An image with an empty ext4."""
    subprocess.run(["truncate", "-s", size, image], check=True)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    return image


def make_erofs(image: Path, *arguments: str) -> Path:
    """An EROFS image of one file `file`, whose text is the image's name."""
    source = image.with_suffix(".d")
    source.mkdir()
    (source / "file").write_text(image.name)
    subprocess.run(["mkfs.erofs", "-Enosbcrc", *arguments, image, source], check=True, capture_output=True)
    return image
