"""Mounting what a task's root file system is made of, all of it or nothing.

Everything that can be refused without the kernel is refused first.  The mounts are then made in order by one worker
thread; when one fails, or when the caller has gone before they were all there, those made are taken off again, last
first.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import attrs

from shim.errors import ShimError, Unimplemented, Unknown
from shim.kernel import mounts as kernel
from shim.model.mount_options import MountOptions, parse_options
from shim.mounts.room import room_threads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shim.kernel.threads import Job, Threads
    from shim.model.mounts import Mount

_log: Final = logging.getLogger("shim.mounts")


@attrs.frozen
class _Step:
    mount: Mount
    options: MountOptions


async def mount_all(mounts: Sequence[Mount], rootfs: str, *, threads: Threads | None = None) -> None:
    """Mount all of `mounts` at their targets inside `rootfs`, in order.

    Raises InvalidArgument or Unimplemented for what cannot be asked of the kernel, Unknown with the kernel's reason
    otherwise; after any of them, and after a cancellation, nothing stays mounted.
    """
    steps = [_plan(mount) for mount in mounts]
    if not steps:
        return
    pool = room_threads() if threads is None else threads
    await pool.run(f"mount {rootfs}", lambda job: _apply(job, steps, rootfs), undo=_undo)


def _plan(mount: Mount) -> _Step:
    if "/" in mount.type:
        raise Unimplemented(f"mount type {mount.type}")
    if mount.type.startswith(("fuse.", "fuse3.")):
        raise Unimplemented(f"mount type {mount.type}")
    options = parse_options(mount.options)
    if options.uidmap or options.gidmap:
        raise Unimplemented("id-mapped mounts")
    return _Step(mount, options)


def _apply(job: Job[list[str]], steps: Sequence[_Step], rootfs: str) -> list[str]:
    """Make the mounts; the resolved mount points, in order, of those that are new."""
    made: list[str] = []
    try:
        for step in steps:
            if job.abandoned:
                break
            point = kernel.mount(step.mount.source, step.mount.type, step.options, rootfs, step.mount.target)
            if not step.options.is_remount:
                made.append(point)
    except ShimError:
        _undo(made)
        raise
    except OSError as error:
        _undo(made)
        raise Unknown(f"failed to mount rootfs component: {error.strerror or error}") from error
    return made


def _undo(made: Sequence[str]) -> None:
    for point in reversed(made):
        result = kernel.unmount(point)
        if result.error and not kernel.is_gone(result.error):
            # Nothing can use what was never handed over, so whatever looked inside is none of ours.
            result = kernel.unmount(point, detach=True)
        if result.error and not kernel.is_gone(result.error):
            _log.error("cannot undo the mount at %s: errno %d", point, result.error)
