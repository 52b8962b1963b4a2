"""Mounting what a task's root file system is made of, all of it or nothing.

Everything that can be refused without the kernel is refused first.  The mounts are then made in order, each by a worker
thread, the transforms of its type applied just before; when one fails, or when the caller has gone before they were all
there, those made are taken off again, last first.  A template names an earlier mount of the list by a descriptor, so
that it means exactly that one although others lie on top of it.  A loop device that was made as a mount of its own
lives until the end, and from then on with whatever uses it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import attrs
import trio

from shim.errors import Unimplemented
from shim.kernel import mounts as kernel
from shim.model.mount_template import MountedAt
from shim.model.mount_types import FORMAT, MountType, check_options, split_type
from shim.mounts import fuse, handlers
from shim.mounts.failures import kernel_errors
from shim.mounts.handlers import FUSE, Made
from shim.mounts.room import room_threads
from shim.mounts.transforms import Means, transform

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shim.kernel.threads import Threads
    from shim.model.mounts import Mount

UNDO_SECONDS: Final = 10.0
"""For undoing in the place of a caller that has gone: an unmount of what was never used takes milliseconds."""
_log: Final = logging.getLogger("shim.mounts")


async def mount_all(
    mounts: Sequence[Mount], rootfs: str, *, threads: Threads | None = None, means: Means | None = None
) -> None:
    """Mount all of `mounts` at their targets inside `rootfs`, in order.

    `means` says what transforms and helpers may do; without it no directory or image can be made and no helper be run.
    Raises InvalidArgument or Unimplemented for what cannot be asked of the kernel, Unknown with the kernel's reason
    otherwise; after any of them, and after a cancellation, nothing stays mounted.
    """
    allowed = Means() if means is None else means
    if threads is not None:
        allowed = attrs.evolve(allowed, threads=threads)
    kinds = [_check(mount, allowed) for mount in mounts]
    named = any(FORMAT in kind.transforms for kind in kinds)
    session = _Session(rootfs, allowed)
    try:
        for mount, kind in zip(mounts, kinds, strict=True):
            plain = await transform(mount, kind, session.earlier, session.means)
            session.add(plain, await mount_one(plain, rootfs, means=allowed, hold=named))
    except BaseException:
        await session.undo()
        raise
    finally:
        session.close()


async def mount_one(mount: Mount, rootfs: str, *, means: Means, hold: bool = False) -> Made:
    """Make one mount without transforms at its target inside `rootfs`; `Made.close` is the caller's to call.

    With `hold` it is kept open, so that `Made.name` means it whatever comes over it.  Raises as `mount_all`; after
    that, and after a cancellation, nothing stays mounted.
    """
    options = handlers.check(mount)
    pool = room_threads() if means.threads is None else means.threads
    with kernel_errors():
        if mount.type.startswith(FUSE):
            return await fuse.mount_by_helper(mount, rootfs, means.children, pool, hold=hold)
        return await pool.run(
            f"mount {rootfs}", lambda _: handlers.make(mount, options, rootfs, hold=hold), undo=undo_one
        )


def undo_one(made: Made) -> None:
    """Take off what `mount_one` made; blocks, for a worker thread."""
    made.close()
    if not made.point:
        return
    result = kernel.unmount(made.point)
    if result.error and not kernel.is_gone(result.error):
        # Nothing can use what was never handed over, so whatever looked inside is none of ours.
        result = kernel.unmount(made.point, detach=True)
    if result.error and not kernel.is_gone(result.error):
        _log.error("cannot undo the mount at %s: errno %d", made.point, result.error)


def _check(mount: Mount, means: Means) -> MountType:
    """The type of a mount, all refused that can be before the first one is made."""
    kind = split_type(mount.type)
    if not kind.is_known:
        raise Unimplemented(f"mount type {mount.type}")
    if kind.kind.startswith(FUSE) and means.children is None:
        raise Unimplemented(f"mount type {mount.type}: no helper programs can be run here")
    check_options(mount, kind)
    if not kind.transforms:
        handlers.check(mount)
    return kind


class _Session:
    """One list of mounts being made: what there is so far, and what keeps it reachable for templates."""

    def __init__(self, rootfs: str, means: Means) -> None:
        self.earlier: Final[list[MountedAt]] = []
        self._rootfs: Final = rootfs
        self._means: Final = means
        self._made: Final[list[Made]] = []

    @property
    def means(self) -> Means:
        """The means, with the mounts made so far among the places where something may be made."""
        places = tuple(made.name for made in self._made if made.point)
        return attrs.evolve(self._means, roots=(*self._means.roots, *places))

    def add(self, mount: Mount, made: Made) -> None:
        """Remember a mount that was made."""
        self._made.append(made)
        self.earlier.append(MountedAt(mount, made.name))

    async def undo(self) -> None:
        """Take everything off again, last first."""
        made = tuple(reversed(self._made))
        if not made:
            return
        pool = room_threads() if self._means.threads is None else self._means.threads

        def work(_: object) -> None:
            for each in made:
                undo_one(each)

        with trio.move_on_after(UNDO_SECONDS, shield=True):
            await pool.run(f"undo the mounts of {self._rootfs}", work)

    def close(self) -> None:
        """Let names and devices go."""
        for made in self._made:
            made.close()
