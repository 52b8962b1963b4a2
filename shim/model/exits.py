"""What is kept of a process that ended: the content of a bundle's `exit.json` (protocol.md 2.9, design section 3).

The record must let somebody who was not there, such as the `delete` command after the shim was killed, give the
true status.  It is a superset of what the Go shim writes, so each side can read the other's.
"""

from __future__ import annotations

from typing import Final

import attrs

KILLED_STATUS: Final = 137
"""The status of a task whose end nobody saw: its shim is gone, so it was killed (128 + SIGKILL)."""


@attrs.frozen
class ExitRecord:
    """How one process ended.

    `status` is 0 to 255, 128 + signal for a signalled process; `exited_at_ns` is Unix time in nanoseconds;
    `pid_start` the kernel's start time of the pid in clock ticks since boot (0: not known), which tells the pid from
    a later bearer of the same number.
    """

    pid: int
    status: int
    exited_at_ns: int
    namespace: str = ""
    id: str = ""
    pid_start: int = 0
    oom_killed: bool = False

    @property
    def is_sane(self) -> bool:
        """Whether the record can be believed: a real pid, a status and a time.  A torn or foreign file is not."""
        return self.pid > 0 and self.status >= 0 and self.exited_at_ns > 0


@attrs.frozen
class DeletedRecord:
    """The content of a bundle's `deleted.json`: a deletion that the shim, or who cleaned up after it, has done.

    It is written before anybody is told, so whoever finds it knows the exit, and that its events are not to be
    published again.  `exited_at_ns` is 0 where nobody knows the time; `shim_lost`: the exit is what was found after
    the shim was gone.
    """

    pid: int
    status: int
    exited_at_ns: int = 0
    shim_lost: bool = False
