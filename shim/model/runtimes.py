"""Runtime names and the programs they stand for: the part that needs no file system (protocol.md 2.1).

A runtime is named (`io.containerd.trio.v2`) or given as an absolute path.  Where a program of that name is found is
the manager's business (`shim.manager.lookup`); here only what name to look for.  Refuses relative paths: which file
they mean would depend on who asks and from where.
"""

from __future__ import annotations

from typing import Final

from shim.errors import InvalidArgument

DEFAULT_RUNTIME: Final = "io.containerd.trio.v2"


def is_path(runtime: str) -> bool:
    """Is `runtime` a path to a program rather than a name?  InvalidArgument when it is a relative path."""
    if runtime.startswith("/"):
        return True
    if "/" in runtime:
        raise InvalidArgument(f"runtime {runtime!r:.100} is a relative path: give an absolute path or a runtime name")
    return False


def shim_program(runtime: str) -> str:
    """The program's file name for a runtime name, made of its last two parts.

    `io.containerd.trio.v2` gives `containerd-shim-trio-v2`.
    InvalidArgument unless there are at least two parts, the first and the two used ones not empty.
    """
    parts = runtime.split(".")
    if len(parts) < 2 or not parts[0] or not parts[-1] or not parts[-2]:
        raise InvalidArgument(
            f"{runtime!r:.100} is no runtime name: write it like {DEFAULT_RUNTIME}, or give an absolute path"
        )
    if any(character.isspace() or not character.isprintable() for character in runtime):
        raise InvalidArgument(f"runtime name {runtime!r:.100} has characters that no file name should have")
    return f"containerd-shim-{parts[-2]}-{parts[-1]}"
