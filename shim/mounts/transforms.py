"""The transforms of a mount's type, applied left to right, each giving the next one its mount (protocol.md 9.7).

`format` puts the places of earlier mounts into the texts, `mkdir` and `mkfs` make what the mount needs and take their
options out.  Nothing that a transform makes is taken away when a later step fails: directories and images belong to
whoever named them, and are found again by the next attempt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from shim.model.mount_template import format_mount
from shim.model.mount_types import FORMAT, MKDIR, MKFS
from shim.model.transform_options import parse_mkdir, parse_mkfs
from shim.mounts.directories import make_directories
from shim.mounts.failures import kernel_errors
from shim.mounts.images import make_image
from shim.mounts.room import room_threads

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from shim.kernel.children import Children
    from shim.kernel.threads import Threads
    from shim.model.mount_template import MountedAt
    from shim.model.mount_types import MountType
    from shim.model.mounts import Mount


@attrs.frozen
class Means:
    """What mounting may use: directories below which things may be made, who starts programs, worker threads.

    Without roots no directory and no image can be made, without children no program run; threads None are the room's.
    """

    roots: tuple[str, ...] = ()
    children: Children | None = None
    threads: Threads | None = None


async def transform(mount: Mount, kind: MountType, earlier: Sequence[MountedAt], means: Means) -> Mount:
    """Apply all transforms of `kind`; the mount that is left has the kind as its type.

    For a part of them give a `MountType` whose kind is the rest.  Raises InvalidArgument, Unknown with
    the kernel's reason, and what `make_image` raises.
    """
    with kernel_errors():
        for name in kind.transforms:
            mount = await _TRANSFORMS[name](mount, earlier, means)
    return attrs.evolve(mount, type=kind.kind)


async def _format(mount: Mount, earlier: Sequence[MountedAt], means: Means) -> Mount:
    return format_mount(mount, earlier)


async def _mkdir(mount: Mount, earlier: Sequence[MountedAt], means: Means) -> Mount:
    wanted, left = parse_mkdir(mount.options)
    pool = room_threads() if means.threads is None else means.threads
    await pool.run("make directories", lambda _: make_directories(wanted, means.roots))
    return attrs.evolve(mount, options=left)


async def _mkfs(mount: Mount, earlier: Sequence[MountedAt], means: Means) -> Mount:
    wanted, left = parse_mkfs(mount.options)
    await make_image(mount.source, wanted, means.roots, children=means.children, threads=means.threads)
    return attrs.evolve(mount, options=left)


_TRANSFORMS: Final[Mapping[str, Callable[[Mount, Sequence[MountedAt], Means], Awaitable[Mount]]]] = {
    FORMAT: _format,
    MKDIR: _mkdir,
    MKFS: _mkfs,
}
