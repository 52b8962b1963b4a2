"""A container's init that outlived its shim: recognised beyond doubt, then held by a pidfd.

Only its pid was written down, and pids are used again.  So a process is taken for init only when it is not younger
than the pid file and lives in another mount namespace than we do, as every container does: a process of the host, or
one that got the number later, is never touched.
"""

from __future__ import annotations

import os
import time
from typing import Final

from shim.kernel import procfs
from shim.kernel.fds import OwnedFd

_SLACK_SECONDS: Final = 0.05
"""Start times are told in ticks of 10 ms, file times by a clock that is behind by up to one."""


def hold_init(pid: int, pid_file: str) -> OwnedFd | None:
    """A pidfd of the process that `pid_file` was written for, None when it is gone or in doubt."""
    if pid <= 1:
        return None
    try:
        held = OwnedFd(os.pidfd_open(pid))
    except OSError:
        return None
    try:
        if _is_init(pid, pid_file):
            return held
    except OSError:
        pass
    held.close()
    return None


def _is_init(pid: int, pid_file: str) -> bool:
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    started = boot + procfs.start_time(pid) / os.sysconf("SC_CLK_TCK")
    foreign = procfs.namespace_id(pid, "mnt") != procfs.namespace_id(os.getpid(), "mnt")
    return foreign and started <= os.stat(pid_file).st_mtime + _SLACK_SECONDS
