"""The worker threads of this room: one set for a run of the loop, whoever asks.

Four at a time: mounts of one machine serialise in the kernel anyway, and a stuck one gives its place up when its caller
does.
"""

from __future__ import annotations

from typing import Final

import trio

from shim.kernel.threads import Threads

WIDTH: Final = 4

_threads: Final = trio.lowlevel.RunVar[Threads]("shim.mounts.threads")


def room_threads() -> Threads:
    """The threads of the current run."""
    try:
        return _threads.get()
    except LookupError:
        made = Threads("mounts", WIDTH)
        _threads.set(made)
        return made
