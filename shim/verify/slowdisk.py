"""Disks on which an unmount takes as long as somebody wants: for tests, the benchmark and the demonstration.

`open_loop_disk` is an ext4 image on a loop device: an overlay that writes there is as slow to unmount as its dirty
pages are many, as on any machine.  `open_slow_disk` puts such an image on another one, and that one can be frozen
(FIFREEZE, ioctl_fs.h): what the inner one writes back then waits in the kernel, and with it the `syncfs` or `umount` of
anything that stands on it, until it is thawed.  No speed of a real disk plays a part in that.

Invariants: leaving a disk takes off what was mounted here and removes the image, also when it was cancelled; the loop
device frees itself with its mount.  No file is removed while anything is mounted in its directory.  Refuses (before
anything is made) a size for which the disk below has no room, and paths that overlay options cannot carry.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import attrs
import trio

from shim.errors import FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted, Unknown
from shim.kernel import mounts
from shim.kernel.children import Command
from shim.kernel.commands import run
from shim.kernel.mountinfo import at_or_below, read_mountinfo
from shim.model.mount_options import parse_options
from shim.wire.proto.mount_pb2 import Mount

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from shim.kernel.children import Children

FIFREEZE: Final = 0xC0045877
FITHAW: Final = 0xC0045878
OUTER_BYTES: Final = 96 << 20
INNER_BYTES: Final = 64 << 20
DIRTY_BYTES: Final = 8 << 20
SPARE_BYTES: Final = 256 << 20
"""Left free for others on the disk below, whatever size is asked for."""
INODES: Final = 4096
UNMOUNT_SECONDS: Final = 300.0
"""How long leaving waits for the kernel to finish with what stood on the disk."""
_PAUSE_SECONDS: Final = 0.05


@attrs.frozen
class LoopDisk:
    """An ext4 file system of its own, mounted at `place`; `image` is what it lies in."""

    image: str
    place: str

    def overlay(self, lower: str | os.PathLike[str], name: str) -> Mount:
        """A root file system mount over `lower` whose writes land on this disk; a fresh one for each `name`."""
        upper, work = f"{self.place}/{name}/upper", f"{self.place}/{name}/work"
        for path in (os.fspath(lower), upper):
            if set(path) & set(":,\\"):
                raise InvalidArgument(f"{path} cannot be part of an overlay: it has a colon, comma or backslash in it")
        for directory in (upper, work):
            os.makedirs(directory, mode=0o755)
        return Mount(
            type="overlay", source="overlay", options=[f"lowerdir={lower}", f"upperdir={upper}", f"workdir={work}"]
        )


class SlowDisk:
    """The inner file system, mounted; `freeze` stops its write-back until `thaw`."""

    def __init__(self, outer: LoopDisk, inner: LoopDisk) -> None:
        self.outer: Final = outer
        self.inner: Final = inner
        self.frozen = False

    def overlay(self, lower: str | os.PathLike[str], name: str) -> Mount:
        """As that of the inner disk."""
        return self.inner.overlay(lower, name)

    def make_dirty(self, rootfs: str | os.PathLike[str]) -> None:
        """Bytes in the root file system that only write-back can bring to the disk."""
        with open(f"{os.fspath(rootfs)}/dirty", "wb") as file:
            file.write(os.urandom(DIRTY_BYTES))

    def freeze(self) -> None:
        """From now on write-back hangs.  What is dirty on the outer disk is written first; blocks that long."""
        self._control(FIFREEZE)
        self.frozen = True

    def thaw(self) -> None:
        """Let it go on; again is a no-op."""
        if self.frozen:
            self._control(FITHAW)
            self.frozen = False

    def _control(self, request: int) -> None:
        fd = os.open(self.outer.place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(fd, request, 0)
        finally:
            os.close(fd)


@asynccontextmanager
async def open_loop_disk(children: Children, directory: str | os.PathLike[str], size: int) -> AsyncIterator[LoopDisk]:
    """A new disk of `size` bytes in the existing `directory`, which has two more entries meanwhile.

    The image is sparse: room on the disk below is checked, not taken.  ResourceExhausted when there is too little,
    NotFound without mkfs.ext4, Unknown with its words when it fails, OSError when the kernel refuses the mount.
    """
    base = await trio.to_thread.run_sync(os.path.realpath, directory)
    disk = LoopDisk(f"{base}/disk.img", f"{base}/disk")
    check_room(base, size)
    _make_entries(disk, size)
    try:
        await _make_file_system(children, disk.image)
        await trio.to_thread.run_sync(mounts.mount, disk.image, "ext4", parse_options(("loop",)), disk.place)
        yield disk
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + UNMOUNT_SECONDS):
            await _take_away(disk)


@asynccontextmanager
async def open_slow_disk(children: Children, directory: str | os.PathLike[str]) -> AsyncIterator[SlowDisk]:
    """A disk that can be stopped, in the existing `directory`; leaving thaws it first.  Errors: `open_loop_disk`."""
    async with (
        open_loop_disk(children, directory, OUTER_BYTES) as outer,
        open_loop_disk(children, outer.place, INNER_BYTES) as inner,
    ):
        disk = SlowDisk(outer, inner)
        try:
            yield disk
        finally:
            disk.thaw()


def check_room(directory: str, size: int) -> None:
    """Raise ResourceExhausted unless `directory`'s disk has room for `size` bytes and something for others."""
    found = os.statvfs(directory)
    free = found.f_bavail * found.f_frsize
    spare = min(SPARE_BYTES, size // 4)
    if free < size + spare:
        raise ResourceExhausted(
            f"{directory} has {free >> 20} MiB free: {size + spare >> 20} MiB are needed; ask for a smaller size"
        )


def _make_entries(disk: LoopDisk, size: int) -> None:
    with open(disk.image, "xb") as file:
        file.truncate(size)
    os.mkdir(disk.place, 0o755)


async def _make_file_system(children: Children, image: str) -> None:
    command = Command(
        ["mkfs.ext4", "-q", "-m", "0", "-N", str(INODES), "-E", "lazy_itable_init=0,lazy_journal_init=0", image]
    )
    try:
        made = await run(children, command)
    except FileNotFoundError as error:
        raise NotFound("there is no mkfs.ext4 on PATH: install e2fsprogs") from error
    if made.exit.status:
        raise Unknown(f"mkfs.ext4 failed with {made.exit.status}: {made.stderr.decode(errors='replace').strip()}")


async def _take_away(disk: LoopDisk) -> None:
    """Unmount, then remove; what stood on it may still be on its way out."""
    while True:
        error = await trio.to_thread.run_sync(_unmount, disk.place)
        if error != errno.EBUSY:
            break
        await trio.sleep(_PAUSE_SECONDS)
    if error:
        raise FailedPrecondition(f"{disk.place} cannot be unmounted: {os.strerror(error).lower()}")
    os.rmdir(disk.place)
    os.unlink(disk.image)


def _unmount(place: str) -> int:
    """Take off what is mounted at `place`; 0 when nothing is there any more, else the kernel's errno."""
    while at_or_below(read_mountinfo(), place):
        error = mounts.unmount(place).error
        if error and not mounts.is_gone(error):
            return error
    return 0
