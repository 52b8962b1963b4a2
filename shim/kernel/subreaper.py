"""What this process is to its descendants and to people who list processes.

Both settings belong to the process for its whole life; nothing here undoes itself.
"""

from __future__ import annotations

from shim.kernel import native


def become_subreaper() -> None:
    """Make orphans of this process's descendants its own children (protocol.md 2.8).  Raises OSError."""
    native.set_subreaper(True)


def set_command_name(name: str) -> None:
    """Set what `ps -o comm` shows for the calling thread, at most 15 bytes of it.  Raises OSError."""
    native.set_name(name)
