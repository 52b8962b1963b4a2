"""What /proc says of processes.

Every figure belongs to a pid at one moment; to be sure that two answers are about the same process, compare start
times.  A process that is gone is a ProcessLookupError, whichever way the kernel puts it.
"""

from __future__ import annotations

import os
from typing import Final

_OOM_MIN: Final = -1000
_OOM_MAX: Final = 1000
_STATE: Final = 0
_PARENT: Final = 1
_START: Final = 19


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as stream:
            return stream.read()
    except FileNotFoundError as error:
        raise ProcessLookupError(3, f"no process {pid}") from error


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name, which may hold spaces and brackets itself."""
    return _read(pid, "stat").rpartition(b")")[2].decode().split()


def start_time(pid: int) -> int:
    """When it started, in clock ticks since boot: with the pid, the identity of a process."""
    return int(_stat(pid)[_START])


def state(pid: int) -> str:
    """Its state letter: R, S, D, Z, T and so on."""
    return _stat(pid)[_STATE]


def parent(pid: int) -> int:
    """The pid of its parent, 0 for one outside this pid namespace."""
    return int(_stat(pid)[_PARENT])


def children(pid: int) -> list[int]:
    """Its living and unreaped children, by all its threads; what changes meanwhile may be missed."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except FileNotFoundError as error:
        raise ProcessLookupError(3, f"no process {pid}") from error
    for thread in threads:
        try:
            found.extend(int(word) for word in _read(pid, f"task/{thread}/children").split())
        except ProcessLookupError:  # the thread ended
            continue
    return sorted(found)


def namespace_id(pid: int, kind: str) -> int:
    """The inode number of its namespace of `kind` (pid, mnt, net, user and so on)."""
    try:
        return os.stat(f"/proc/{pid}/ns/{kind}").st_ino
    except FileNotFoundError as error:
        raise ProcessLookupError(3, f"no process {pid}") from error


def command_line(pid: int) -> list[str]:
    """Its argv; empty for a zombie or a kernel thread."""
    raw = _read(pid, "cmdline")
    return [os.fsdecode(word) for word in raw.rstrip(b"\0").split(b"\0")] if raw else []


def oom_score_adj(pid: int) -> int:
    """Its out-of-memory score adjustment, -1000 to 1000."""
    return int(_read(pid, "oom_score_adj"))


def set_oom_score_adj(pid: int, score: int) -> None:
    """Set it, clipped to the allowed range.  Raises PermissionError when lowering it without privilege."""
    clipped = max(_OOM_MIN, min(_OOM_MAX, score))
    try:
        with open(f"/proc/{pid}/oom_score_adj", "w", encoding="ascii") as stream:
            stream.write(str(clipped))
    except FileNotFoundError as error:
        raise ProcessLookupError(3, f"no process {pid}") from error
