"""Loop devices: an image file as a block device, for as long as somebody of ours uses it.

Two kinds of owner.  `open_loop` gives a device that frees itself with its last user: the descriptor, then the mount.
`keep_loop` gives one that stays until `free_loop`, which another process may call: it frees the device only if that is
still in use for the image that it was made for, since numbers are given out again and a device of somebody else must
never be cleared.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Self

import attrs

from shim.errors import InvalidArgument
from shim.kernel import native
from shim.kernel.fds import OwnedFd


@attrs.frozen
class LoopDevice:
    """A loop device of ours; it frees itself when this and its last mount are gone."""

    path: str
    fd: OwnedFd

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.fd.close()


@attrs.frozen
class KeptLoop:
    """What to remember of a device that stays: its number, and its image by device and inode."""

    number: int
    image_device: int
    image_inode: int

    @property
    def path(self) -> str:
        """The device file."""
        return device_path(self.number)


def device_path(number: int) -> str:
    """The file of a loop device."""
    return f"/dev/loop{number}"


def open_loop(image: str, *, read_only: bool, direct_io: bool = False) -> LoopDevice:
    """Put a free loop device before `image`.  Raises OSError, after which no device is left in use."""
    number, fd = _attach(image, read_only=read_only, direct_io=direct_io, autoclear=True)
    return LoopDevice(device_path(number), OwnedFd(fd))


def keep_loop(image: str, *, read_only: bool, direct_io: bool = False) -> KeptLoop:
    """As `open_loop`, but the device stays when nobody has it open.  Raises OSError."""
    _, fd = _attach(image, read_only=read_only, direct_io=direct_io, autoclear=False)
    with OwnedFd(fd):
        try:
            return KeptLoop(*native.loop_identify(fd))
        except BaseException:
            native.loop_detach(fd)
            raise


def free_loop(kept: KeptLoop) -> bool:
    """Free the device, at once or when its last user ends; False when it is in use for something else, or not at all.

    Raises OSError.
    """
    try:
        device = OwnedFd(os.open(kept.path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENXIO}:
            return False
        raise
    with device:
        try:
            if KeptLoop(*native.loop_identify(device.fileno())) != kept:
                return False
            native.loop_detach(device.fileno())
        except OSError as error:
            if error.errno == errno.ENXIO:
                return False
            raise
    return True


def is_block_device(path: str) -> bool:
    """Whether `path` is a block device already.  Raises OSError."""
    return stat.S_ISBLK(os.stat(path).st_mode)


def _attach(image: str, *, read_only: bool, direct_io: bool, autoclear: bool) -> tuple[int, int]:
    mode = os.O_RDONLY if read_only else os.O_RDWR
    # Not blocking: an image that is a fifo must not hold the thread for ever.
    with OwnedFd(os.open(image, mode | os.O_CLOEXEC | os.O_NONBLOCK)) as source:
        kind = os.fstat(source.fileno()).st_mode
        if not stat.S_ISREG(kind) and not stat.S_ISBLK(kind):
            raise InvalidArgument(f"{image} is neither a file nor a block device")
        return native.loop_attach(source.fileno(), image, read_only=read_only, direct_io=direct_io, autoclear=autoclear)
