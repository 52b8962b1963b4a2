"""A loop device as a mount with a place of its own: the kind `loop` for who keeps mounts beyond one call.

The place is a symlink to the device file, so that `{{ mount I }}` of a later mount is a path that means the device
(protocol.md 9.7).  The device stays until it is taken off; what has to be remembered for that is a `KeptLoop`, and a
device that is in use for another image by then is left alone.  All of it blocks: for a worker thread.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from shim.errors import InvalidArgument
from shim.kernel.loops import KeptLoop, free_loop, keep_loop
from shim.mounts.handlers import LOOP, check

if TYPE_CHECKING:
    from shim.model.mounts import Mount


def make_loop_point(mount: Mount, point: str) -> KeptLoop:
    """Put a device before `mount`'s source and a link to it at `point`, which must not exist.

    Raises InvalidArgument, OSError; after either there is neither device nor link.
    """
    if mount.type != LOOP:
        raise InvalidArgument(f"mount type {mount.type} is no loop device")
    options = check(mount)
    kept = keep_loop(mount.source, read_only=options.read_only, direct_io=options.direct_io)
    try:
        os.symlink(kept.path, point)
    except BaseException:
        free_loop(kept)
        raise
    return kept


def take_loop_point(kept: KeptLoop, point: str) -> bool:
    """Remove the link and free the device; False if the device was no longer in use for that image.

    May be called again.  Raises OSError.
    """
    freed = free_loop(kept)
    with contextlib.suppress(FileNotFoundError):
        if os.readlink(point) == kept.path:
            os.unlink(point)
    return freed
