"""A disk that stops: a file system whose write-back hangs for exactly as long as a test says.

An ext4 image lies on another ext4, and the outer one is frozen (FIFREEZE, ioctl_fs.h): what the inner one writes back
then waits in the kernel, and with it the `syncfs` or `umount` of anything that stands on it.  Thawing lets it go on.
Nothing here depends on the speed of a real disk.
"""

from __future__ import annotations

import fcntl
import os
import select
import subprocess
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from shim.wire.proto.mount_pb2 import Mount

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FIFREEZE: Final = 0xC0045877
FITHAW: Final = 0xC0045878
OUTER_BYTES: Final = 96 << 20
INNER_BYTES: Final = 64 << 20
DIRTY_BYTES: Final = 8 << 20


class SlowDisk:
    """The inner file system at `inner`, mounted; `freeze` stops its write-back until `thaw`."""

    def __init__(self, directory: Path) -> None:
        self.outer: Final = directory / "outer"
        self.inner: Final = directory / "inner"
        self.frozen = False

    def overlay(self, lower: Path, name: str) -> Mount:
        """A root file system mount whose writes land on this disk."""
        for part in ("upper", "work"):
            (self.inner / name / part).mkdir(parents=True)
        upper, work = self.inner / name / "upper", self.inner / name / "work"
        return Mount(
            type="overlay", source="overlay", options=[f"lowerdir={lower}", f"upperdir={upper}", f"workdir={work}"]
        )

    def make_dirty(self, rootfs: Path) -> None:
        """Bytes in the root file system that only write-back can bring to the disk."""
        (rootfs / "dirty").write_bytes(os.urandom(DIRTY_BYTES))

    def freeze(self) -> None:
        """From now on write-back hangs.  What was dirty outside is written first, or the freeze would wait for it."""
        self._control(FIFREEZE)
        self.frozen = True

    def thaw(self) -> None:
        """Let it go on; again is a no-op."""
        if self.frozen:
            self._control(FITHAW)
            self.frozen = False

    def _control(self, request: int) -> None:
        fd = os.open(self.outer, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, request, 0)
        finally:
            os.close(fd)


@contextmanager
def open_slow_disk(directory: Path) -> Iterator[SlowDisk]:
    """Make both file systems in `directory`; leaving thaws and unmounts them."""
    disk = SlowDisk(directory)
    with ExitStack() as undo:
        for image, place, size in (
            (directory / "outer.img", disk.outer, OUTER_BYTES),
            (disk.outer / "inner.img", disk.inner, INNER_BYTES),
        ):
            place.mkdir()
            with image.open("wb") as stream:
                os.posix_fallocate(stream.fileno(), 0, size)
            _run("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(image))
            _run("mount", "-o", "loop", str(image), str(place))
            undo.callback(_run, "umount", str(place))
        undo.callback(disk.thaw)
        yield disk


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=60)


def wait_unmounted(place: Path, seconds: float) -> bool:
    """Block until nothing is mounted at or below `place`; False when that took longer.

    The kernel says when the table changes (proc_pid_mountinfo(5), POLLPRI).
    """
    until = time.monotonic() + seconds
    with open("/proc/self/mountinfo", "rb") as table:
        poll = select.poll()
        poll.register(table, select.POLLPRI | select.POLLERR)
        while True:
            table.seek(0)
            points = [line.split()[4] for line in table.read().splitlines()]
            if not any(os.fsdecode(point).startswith(str(place)) for point in points):
                return True
            left = until - time.monotonic()
            if left <= 0:
                return False
            poll.poll(left * 1000)
