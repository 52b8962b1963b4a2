"""Mounting an EROFS image: the file itself where the kernel can, else a read-only loop device before it.

The same holds for the further devices of an image (`device=`).  Which of the two it is, is the kernel's business, so
the option `loop` changes nothing (protocol.md 9.7).  No loop device outlives the mount, or the attempt.
"""

from __future__ import annotations

import errno
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import attrs

from shim.kernel.loops import is_block_device, open_loop
from shim.kernel.mounts import attach
from shim.model.mount_options import MS_RDONLY

if TYPE_CHECKING:
    from shim.kernel.fds import OwnedFd
    from shim.model.mount_options import MountOptions

KIND: Final = "erofs"
_DEVICE: Final = "device="


def mount_erofs(source: str, options: MountOptions, place: OwnedFd, *, by_file: bool = True) -> None:
    """Mount the image on what `place` has open, read-only.  `by_file` is for tests.  Raises OSError."""
    plain = attrs.evolve(options, flags=options.flags | MS_RDONLY, loop=False)
    if by_file or is_block_device(source):
        try:
            attach(source, KIND, plain, place)
        except OSError as error:
            if error.errno != errno.ENOTBLK:
                raise
        else:
            return
    with ExitStack() as owned:

        def device(path: str) -> str:
            if is_block_device(path):
                return path
            return owned.enter_context(open_loop(path, read_only=True, direct_io=options.direct_io)).path

        data = tuple(
            _DEVICE + device(option.removeprefix(_DEVICE)) if option.startswith(_DEVICE) else option
            for option in options.data
        )
        attach(device(source), KIND, attrs.evolve(plain, data=data), place)
