"""Unmounting a root file system in a process of its own, which may take longer than whoever asked for it.

The daemon kills the `delete` command after 5 s and then makes a status up; the kernel may write dirty pages back for
much longer than that.  So a fork does the unmounting to its end, in a session of its own and without the caller's
descriptors; the caller waits a moment for it, and answers.  Until it has ended the daemon, removing the bundle, meets
EBUSY; after it there is no mount.
"""

from __future__ import annotations

import os
import select
import time
from typing import Final, NoReturn

from shim.kernel import mountinfo
from shim.mounts.unwind import PAUSE_SECONDS, one_pass

PATIENCE_SECONDS: Final = 600.0
"""How long the fork tries a mount that somebody uses; what the kernel does for itself has no bound."""
_MESSAGE_BYTES: Final = 4096


def unmount_apart(rootfs: str, seconds: float) -> str:
    """Unmount `rootfs` and all below it, waiting at most `seconds`; what is to be said of it, empty when it is done.

    Must be called without threads of our own, since it forks.
    """
    if not mountinfo.at_or_below(mountinfo.read_mountinfo(), os.path.realpath(rootfs)):
        return ""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    child = os.fork()  # noqa: TID251 - the program's second process, and the reason of this module
    if child == 0:
        _unmount_and_leave(rootfs, writer)
    os.close(writer)
    try:
        pidfd = os.pidfd_open(child)
        try:
            if not select.select([pidfd], [], [], seconds)[0]:
                return f"{rootfs} is still being unmounted, by process {child}"
        finally:
            os.close(pidfd)
        os.waitpid(child, 0)  # noqa: TID251 - it has ended, and there is no reaper here
        return os.read(reader, _MESSAGE_BYTES).decode("utf-8", "replace")
    finally:
        os.close(reader)


def _unmount_and_leave(rootfs: str, writer: int) -> NoReturn:
    status = 1
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        os.chdir("/")
        trouble = _unmount(rootfs)
        os.write(writer, trouble.encode()[:_MESSAGE_BYTES])
        status = 0
    finally:
        os._exit(status)  # noqa: TID251 - nothing of the caller's program may run here


def _unmount(rootfs: str) -> str:
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        walk = one_pass(rootfs)
        if not walk.failed:
            if not walk.finished:
                return ""
            continue
        if walk.refusal is not None or time.monotonic() > until:
            return str(walk.as_error())
        time.sleep(PAUSE_SECONDS)
