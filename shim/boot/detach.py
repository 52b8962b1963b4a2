"""From a command that somebody started to a process that belongs to nobody (protocol.md 2.3).

What a long-lived process inherits, it holds: a descriptor keeps a mount busy or somebody's pipe open, a working
directory keeps a file system, an environment variable reaches every runtime and container (field-faults U6, R3, Z1).
So all of it is let go of here, by name, and what is kept is an argument.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

HIDDEN_VARIABLES: Final = ("NOTIFY_SOCKET",)
"""Variables that were meant for our caller alone."""
_STANDARD_FDS: Final = (0, 1, 2)


def ensure_standard_fds() -> None:
    """Open /dev/null for each of 0, 1 and 2 that is closed, so that nothing else ever gets such a number."""
    for number in _STANDARD_FDS:
        try:
            os.fstat(number)
        except OSError:
            fd = os.open(os.devnull, os.O_RDWR)
            if fd != number:  # a lower one was free: it is closed too, and its turn was before
                os.dup2(fd, number)
                os.close(fd)


def close_inherited(keep: Collection[int]) -> None:
    """Close what came from our caller, but not 0, 1, 2 and those to `keep`, which become close-on-exec.

    What came over an exec has no close-on-exec flag, and everything that this program opens has one: so the flag tells
    the two apart, and what we hold on purpose, such as the lock of our own build, stays.
    """
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number in keep:
            os.set_inheritable(number, False)
        elif number not in _STANDARD_FDS:
            try:
                if os.get_inheritable(number):
                    os.close(number)
            except OSError:  # the one that the listing itself used
                continue


def forget_surroundings() -> None:
    """Let go of the working directory, the umask, the signal mask and the variables that are not for us."""
    os.chdir("/")
    os.umask(0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for name in HIDDEN_VARIABLES:
        os.environ.pop(name, None)


def detach(keep: Collection[int]) -> None:
    """Become a process of its own: own session and group, null stdio, nothing inherited but `keep`."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in _STANDARD_FDS:
        os.dup2(null, number)
    os.close(null)
    close_inherited(keep)
    forget_surroundings()
