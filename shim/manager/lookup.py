"""From a runtime's name to the program on this machine (protocol.md 2.1).

An absolute path is taken as it is; a name is looked for on PATH, then beside our own program, and what was found is
kept for the life of the manager.  containerd looks in its working directory first; it runs in a directory of its own,
we run in whatever directory a person stands in, where a planted file would become root, so that step needs to be asked
for.
Refuses relative paths and what cannot be executed.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import attrs

from shim.errors import NotFound
from shim.model.runtimes import is_path, shim_program

if TYPE_CHECKING:
    from collections.abc import Sequence


def search_directories(path: str | None = None, working_dir: str | None = None) -> tuple[str, ...]:
    """Where shims are looked for, in order: `working_dir` when given, PATH (default: ours), beside our own program."""
    listed = (path if path is not None else os.environ.get("PATH", os.defpath)).split(os.pathsep)
    own = (os.path.dirname(os.path.abspath(sys.argv[0])), os.path.dirname(sys.executable))
    before = (working_dir,) if working_dir is not None else ()
    # An empty or relative entry of PATH means the current directory: see the top of this file.
    return (*before, *dict.fromkeys(entry for entry in (*listed, *own) if os.path.isabs(entry)))


def find_shim(runtime: str, directories: Sequence[str]) -> str:
    """The absolute path of the shim for `runtime`.

    InvalidArgument when `runtime` is neither name nor absolute path; NotFound, saying what to install, when there is
    no such program.
    """
    if is_path(runtime):
        if not _is_program(runtime):
            raise NotFound(f'runtime "{runtime}" binary not installed: no executable file is at that path')
        return os.path.normpath(runtime)
    program = shim_program(runtime)
    for directory in directories:
        candidate = os.path.join(directory, program)
        if _is_program(candidate):
            return candidate
    raise NotFound(
        f'runtime "{runtime}" binary not installed "{program}": file does not exist '
        f"(looked in {':'.join(directories) or 'no directory'}; install it there or give its absolute path)"
    )


@attrs.define
class ShimLookup:
    """`find_shim` that remembers what it found; a miss is not remembered, so that installing the shim helps."""

    directories: tuple[str, ...] = attrs.field(factory=search_directories)
    _found: dict[str, str] = attrs.field(factory=dict, init=False)

    def find(self, runtime: str) -> str:
        """As `find_shim`."""
        path = self._found.get(runtime)
        if path is None:
            path = self._found[runtime] = find_shim(runtime, self.directories)
        return path


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)
