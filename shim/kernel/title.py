"""What `ps` shows of this process.

The kernel shows the memory in which the arguments came (proc_pid_cmdline(5)); when its last byte is not zero it shows
the text at its beginning instead, which is how a process can give itself a title as long as that memory.
"""

from __future__ import annotations

import os
from typing import Final

_ARG_START: Final = 45
_ARG_END: Final = 46


def set_title(text: str) -> None:
    """Show `text` as the command line, cut where the arguments' memory ends; does nothing where that is not allowed."""
    try:
        with open("/proc/self/stat", "rb") as stream:
            fields = stream.read().rpartition(b")")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        room = end - start
        if start == 0 or room < 2:
            return
        title = os.fsencode(text)[: room - 2]
        memory = os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
        try:
            os.pwrite(memory, title + bytes(room - 1 - len(title)) + b"\x01", start)
        finally:
            os.close(memory)
    except (OSError, ValueError, IndexError):
        return
