"""Mounting and unmounting, each as one blocking step for a worker thread.

A target is found as if its root file system were "/", by descriptor, so that no symlink in an image leads out of it;
it is then unmounted by its resolved path and without following links.  Refuses data longer than the page that
mount(2) takes, before anything is mounted.
"""

from __future__ import annotations

import errno
import mmap
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import attrs

from shim.errors import InvalidArgument
from shim.kernel import native, trees
from shim.kernel.fds import OwnedFd
from shim.kernel.loops import is_block_device, open_loop
from shim.model.mount_options import MS_BIND, MS_NOATIME, MS_NODIRATIME, MS_RELATIME, MS_REMOUNT, PER_MOUNT

if TYPE_CHECKING:
    from shim.model.mount_options import MountOptions

UMOUNT_NOFOLLOW: Final = 8
MNT_DETACH: Final = 2
_ST_RELATIME: Final = 0x1000  # statvfs has its own bit for this one


@attrs.frozen
class Unmounted:
    """What one unmount took: nanoseconds of write-back and of the unmount itself, and their errno or 0."""

    target: str
    sync_ns: int
    unmount_ns: int
    sync_error: int
    error: int


def open_target(rootfs: str, target: str) -> OwnedFd:
    """An O_PATH descriptor of `target` inside `rootfs`, of the topmost mount there.  Raises OSError."""
    with OwnedFd(os.open(rootfs, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as root:
        return OwnedFd(native.open_in_root(root.fileno(), target or "."))


def mount(source: str, kind: str, options: MountOptions, rootfs: str, target: str = "") -> str:
    """Mount, the kernel's own way, at `target` inside `rootfs` and return the resolved mount point.

    Undoes itself if a later one of its calls fails.  Raises OSError, and InvalidArgument for too long data.
    """
    with open_target(rootfs, target) as place:
        point = os.readlink(place_path(place))
        if not options.is_remount or options.data:
            attach_file_or_device(source, kind, options, place)
    finish(point, options, rootfs, target)
    return point


def attach_file_or_device(source: str, kind: str, options: MountOptions, place: OwnedFd) -> None:
    """`attach`, with a loop device before a source that is a file if the options ask for one."""
    with ExitStack() as owned:
        if options.loop and not is_block_device(source):
            loop = open_loop(source, read_only=options.read_only, direct_io=options.direct_io)
            source = owned.enter_context(loop).path
        attach(source, kind, options, place)


def attach(source: str, kind: str, options: MountOptions, place: OwnedFd) -> None:
    """Mount on what `place` has open, ids mapped if the options say so; what is only for a second call is left.

    Raises OSError, and InvalidArgument for too long data.
    """
    if options.uidmap:
        trees.mount_mapped(source, kind, options, place)
        return
    data = ",".join(options.data)
    if len(os.fsencode(data)) >= mmap.PAGESIZE:
        raise InvalidArgument(f"options of the {kind} mount are longer than {mmap.PAGESIZE - 1} bytes")
    native.mount(source, place_path(place), kind, options.flags, data)


def finish(point: str, options: MountOptions, rootfs: str, target: str) -> None:
    """The second calls on a mount that was made just now; it is undone if one of them fails.  Raises OSError."""
    if not (options.remount_bind or options.propagation):
        return
    try:
        _adjust(options, rootfs, target)
    except BaseException:
        if not options.is_remount:
            native.unmount(point, UMOUNT_NOFOLLOW | MNT_DETACH)
        raise


def place_path(place: OwnedFd) -> str:
    """A path that leads to exactly what the descriptor has open."""
    return f"/proc/self/fd/{place.fileno()}"


def unmount(target: str, *, sync: bool = False, detach: bool = False) -> Unmounted:
    """Take off the topmost mount of `target`, which is a resolved path; the error is in the answer, not raised."""
    flags = UMOUNT_NOFOLLOW | (MNT_DETACH if detach else 0)
    return Unmounted(target, *native.sync_unmount(target, flags, sync))


def _adjust(options: MountOptions, rootfs: str, target: str) -> None:
    """The second calls: flags that a bind does not take at once, and propagation."""
    with open_target(rootfs, target) as place:
        path = place_path(place)
        if options.remount_bind:
            # What the source's mount forbids stays forbidden, unless the options allow it in so many words.
            kept = _current_flags(place) & ~options.cleared
            native.mount("", path, "", MS_REMOUNT | MS_BIND | options.remount_bind | kept, "")
        if options.propagation:
            native.mount("", path, "", options.propagation, "")


def _current_flags(place: OwnedFd) -> int:
    found = os.fstatvfs(place.fileno()).f_flag
    flags = found & PER_MOUNT & ~MS_RELATIME
    if found & _ST_RELATIME and not flags & (MS_NOATIME | MS_NODIRATIME):
        flags |= MS_RELATIME
    return flags


def is_gone(error: int) -> bool:
    """Whether an unmount's errno means that there is nothing mounted any more (protocol.md 9.1)."""
    return error in {errno.EINVAL, errno.ENOENT}
