"""Processes that a command left behind, found by what they still have of it, and ended.

That is its process group, the pipe that it was to speak through, or the arguments that it gives to what it starts.

Invariants: a process is signalled through a pidfd, and only after it was seen, with the pidfd open, to be one of those
meant, so that a recycled pid is never hit; ourselves never.  What has none of the three any more is not found.
"""

from __future__ import annotations

import contextlib
import os
import signal
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from shim.kernel.procfs import command_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

PASSES: Final = 20
"""Looks at /proc before giving up: what is being killed may start another meanwhile, or be in the middle of an exec."""
_GROUP: Final = 2
_ENDED: Final = -1


def kill_leftovers(group: int, pipe_fd: int, arguments: Mapping[str, str]) -> int:
    """Kill what a command left behind; the number of signals sent.

    `group` is the process group that the command had; the kernel gives the number to nobody else while a member lives.
    `pipe_fd` is our end of its pipe.  `arguments` are flags and values that, all together, only its servers have in
    their argv.  Blocks for some milliseconds: /proc is read process by process.
    """
    pipe = f"pipe:[{os.fstat(pipe_fd).st_ino}]"
    session = os.getsid(0)

    def belongs(pid: int) -> bool:
        if _group(pid) == group and os.getsid(pid) == session:
            return True
        return _holds(pid, pipe) or _has_arguments(pid, arguments)

    sent = 0
    for _ in range(PASSES):
        pids = list(_pids())
        killed = sum(_kill(pid, belongs) for pid in pids)
        sent += killed
        if not killed and not any(_is_between(pid) for pid in pids):
            break
    return sent


def kill_group(leader: int) -> None:
    """Kill the process group of a child that has not been waited for yet, which keeps its number taken."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def _pids() -> Iterator[int]:
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            yield int(name)


def _group(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as stream:
        fields = stream.read().rpartition(b")")[2].split()
    return _ENDED if fields[0] in (b"Z", b"X") else int(fields[_GROUP])


def _holds(pid: int, wanted: str) -> bool:
    directory = f"/proc/{pid}/fd"
    for name in os.listdir(directory):
        with contextlib.suppress(OSError):
            if os.readlink(f"{directory}/{name}") == wanted:
                return True
    return False


def _has_arguments(pid: int, arguments: Mapping[str, str]) -> bool:
    words = " ".join(command_line(pid)).split()  # a title, as our own shim gives itself, has spaces for zeros
    return bool(arguments) and arguments.items() <= set(pairwise(words))


def _is_between(pid: int) -> bool:
    """Whether a process is in the middle of an exec: it has a program, and no arguments yet to be known by."""
    try:
        return not command_line(pid) and _group(pid) != _ENDED and bool(os.readlink(f"/proc/{pid}/exe"))
    except OSError:  # gone, or a thread of the kernel's, which has no program
        return False


def _kill(pid: int, belongs: Callable[[int], bool]) -> bool:
    """Kill `pid` if it belongs; what cannot be looked at is not ours, what is gone needs nothing."""
    try:
        if not belongs(pid):
            return False
        pidfd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not belongs(pid):
            return False
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(pidfd)
    return True
