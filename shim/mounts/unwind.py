"""Taking off everything that is mounted at a root file system and below it.

The mount table is read, its mounts there are taken off children before parents, and it is read again until none is
left: what was hidden by another mount shows up once that is gone.  A busy mount is tried 50 times, 50 ms apart, and
then named.  A mount that is gone already counts as done.  No file is ever removed, and nothing is detached lazily: the
caller must know when a root is still in use.  A slow unmount, which is the kernel writing dirty pages back, leaves one
line in the log with all that explains it.
"""

from __future__ import annotations

import errno
import logging
import os
from typing import TYPE_CHECKING, Final

import attrs
import trio

from shim.errors import FailedPrecondition, Unknown
from shim.kernel import meminfo, mountinfo, mounts
from shim.mounts.room import room_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shim.errors import ShimError
    from shim.kernel.meminfo import PageCache
    from shim.kernel.mountinfo import MountEntry
    from shim.kernel.mounts import Unmounted
    from shim.kernel.threads import Threads

TRIES: Final = 50
PAUSE_SECONDS: Final = 0.05
SLOW_NS: Final = 1_000_000_000
"""An unmount that takes longer is worth a line in the log."""
_log: Final = logging.getLogger("shim.mounts")
_MEMORY_ONLY: Final = frozenset({"cgroup", "cgroup2", "devpts", "mqueue", "proc", "ramfs", "sysfs", "tmpfs"})


@attrs.frozen
class Pass:
    """One walk over the mounts: what came off, what was refused, and what is to be said of the slow ones."""

    finished: Sequence[Unmounted]
    failed: Sequence[Unmounted]
    slow: Sequence[str]

    @property
    def refusal(self) -> Unmounted | None:
        """The first mount that failed for another reason than being in use: trying again will not help."""
        return next((one for one in self.failed if one.error != errno.EBUSY), None)

    def as_error(self) -> ShimError:
        """Why it is not done, for a walk with failures."""
        refused = self.refusal
        if refused is not None:
            return Unknown(f"failed to unmount {refused.target}: {os.strerror(refused.error).lower()}")
        return FailedPrecondition(
            f"failed to unmount {self.failed[0].target}: device or resource busy; end what uses it, then try again"
        )


def unmount_order(entries: Sequence[MountEntry]) -> list[MountEntry]:
    """Children before parents, a later mount before an earlier one of the same depth.

    A mount stacked on another is its child in the table, so stacks come off from the top.
    """
    by_id = {entry.id: entry for entry in entries}

    def depth(entry: MountEntry) -> int:
        steps = 0
        parent = by_id.get(entry.parent)
        while parent is not None and steps < len(entries):
            steps += 1
            parent = by_id.get(parent.parent)
        return steps

    return sorted(entries, key=lambda entry: (depth(entry), len(entry.mount_point), entry.id), reverse=True)


def worth_syncing(entry: MountEntry, table: Iterable[MountEntry], doomed: Iterable[MountEntry]) -> bool:
    """Whether to write back before this unmount: only where its file system ends with it.

    A file system that is still mounted elsewhere, such as the host's behind a bind, is not ours to flush.
    """
    going = {other.id for other in doomed}
    return entry.type not in _MEMORY_ONLY and not any(
        other.device == entry.device and other.id not in going for other in table
    )


async def unmount_all(rootfs: str, *, threads: Threads | None = None) -> Sequence[Unmounted]:
    """Unmount `rootfs` and all below it; what each one took, in order.

    Raises FailedPrecondition naming the mount that stays busy, Unknown for another refusal of the kernel.  May be
    called again after either.  A `rootfs` that does not exist has nothing mounted.
    """
    pool = room_threads() if threads is None else threads
    done: list[Unmounted] = []
    tries = 0
    while True:
        walk = await pool.run(f"unmount {rootfs}", lambda job: one_pass(rootfs, lambda: job.abandoned))
        for line in walk.slow:
            _log.warning("%s", line)
        done.extend(walk.finished)
        if not walk.finished and not walk.failed:
            return done
        if walk.finished and not walk.refusal:
            continue
        tries += 1
        if tries >= TRIES or walk.refusal:
            raise walk.as_error()
        await trio.sleep(PAUSE_SECONDS)


def one_pass(rootfs: str, abandoned: Callable[[], bool] = lambda: False) -> Pass:
    """Take off once what is mounted now; blocks, for a worker thread or a process of its own.

    `abandoned` is asked between two mounts: when it says so, the rest stays.
    """
    root = os.path.join(os.path.realpath(os.path.dirname(rootfs.rstrip("/"))), os.path.basename(rootfs.rstrip("/")))
    table = mountinfo.read_mountinfo()
    doomed = mountinfo.at_or_below(table, root)
    finished: list[Unmounted] = []
    failed: list[Unmounted] = []
    slow: list[str] = []
    before = meminfo.read_page_cache() if doomed else None
    for entry in unmount_order(doomed):
        if abandoned():
            break
        result = mounts.unmount(entry.mount_point, sync=worth_syncing(entry, table, doomed))
        if before is not None and result.sync_ns + result.unmount_ns > SLOW_NS:
            slow.append(describe_slow(result, entry.type, before, meminfo.read_page_cache()))
        if result.error == 0:
            finished.append(result)
        elif not mounts.is_gone(result.error):
            failed.append(result)
    return Pass(finished, failed, slow)


def describe_slow(result: Unmounted, kind: str, before: PageCache, after: PageCache) -> str:
    """What took so long: the line that goes into the log."""
    return (
        f"slow unmount of {result.target} ({kind}): sync {result.sync_ns / 1e9:.3f} s, "
        f"unmount {result.unmount_ns / 1e9:.3f} s; dirty {before.dirty} -> {after.dirty} bytes, "
        f"writeback {before.writeback} -> {after.writeback} bytes"
    )
