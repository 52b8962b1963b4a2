"""Who listens on a unix socket, found without asking them: for a server that takes connections and never answers.

/proc/net/unix tells the inode of a listening socket by its path, and the descriptors of every process tell who holds
that inode.  Invariants: a process is signalled through a pidfd, and only after it was seen to hold the socket with the
pidfd open; ourselves never, and nobody whom `belongs` does not know.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_LISTENING: Final = 0x10000
_TABLE: Final = "/proc/net/unix"


def listening_inodes(path: str, table: bytes | None = None) -> frozenset[int]:
    """The inodes of the sockets that listen at `path`; two of them when it was bound anew by somebody else."""
    if table is None:
        with open(_TABLE, "rb") as stream:
            table = stream.read()
    wanted = os.fsencode(path)
    found = set()
    for line in table.split(b"\n")[1:]:
        fields = line.split(None, 7)  # the last one is the path, with whatever spaces it has
        if len(fields) == 8 and fields[7] == wanted and int(fields[3], 16) & _LISTENING:
            found.add(int(fields[6]))
    return frozenset(found)


def kill_listeners(path: str, belongs: Callable[[int], bool]) -> list[int]:
    """SIGKILL whoever listens at `path` and `belongs`; the pids.  Blocks while /proc is read process by process."""
    inodes = listening_inodes(path)
    if not inodes:
        return []
    names = {f"socket:[{inode}]" for inode in inodes}
    return [pid for pid in _pids() if _kill(pid, names, belongs)]


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and int(name) != os.getpid()]


def _holds(pid: int, names: set[str]) -> bool:
    directory = f"/proc/{pid}/fd"
    for name in os.listdir(directory):
        try:
            if os.readlink(f"{directory}/{name}") in names:
                return True
        except OSError:  # closed meanwhile
            continue
    return False


def _kill(pid: int, names: set[str], belongs: Callable[[int], bool]) -> bool:
    """Look, take hold, look again: the second look is what counts, and the first spares most pids the rest."""
    try:
        if not _holds(pid, names):
            return False
        pidfd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not (_holds(pid, names) and belongs(pid)):
            return False
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(pidfd)
    return True
