"""Where transforms may make something: below the allowed roots, and nowhere else by no way of writing it.

A path is judged twice: as text (absolute, no `.` and no `..`, inside a root), then by the kernel, which walks from the
open root and refuses to leave it, whatever links lie on the way.  What comes out is the open parent directory and a
name in it.  Every refusal is InvalidArgument, where containerd answers NotImplemented (protocol.md 9.7): a path that is
not allowed here is a mistake or an attempt, not a reason to look for another way.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final, Self

import attrs

from shim.errors import InvalidArgument
from shim.kernel import native
from shim.kernel.fds import OwnedFd

if TYPE_CHECKING:
    from collections.abc import Sequence

LONGEST_NAME: Final = 255
_REFUSED: Final = frozenset({errno.EXDEV, errno.ELOOP, errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENAMETOOLONG})


@attrs.frozen
class Entry:
    """A directory entry, there or not: `name` in the directory that `parent` has open (O_PATH)."""

    parent: OwnedFd
    name: str
    path: str

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.parent.close()


def find_entry(path: str, roots: Sequence[str], what: str) -> Entry:
    """The entry of `path`; `what` is named in the error.  Blocks.  Raises InvalidArgument, OSError."""
    parts = [part for part in path.split("/") if part]
    if not path.startswith("/") or not parts or {".", ".."} & set(parts) or "\0" in path:
        raise InvalidArgument(f"{what} {path!r} is not an absolute path without . and ..")
    if any(len(os.fsencode(part)) > LONGEST_NAME for part in parts):
        raise InvalidArgument(f"{what} {path!r} has a name of more than {LONGEST_NAME} bytes")
    clean = "/" + "/".join(parts)
    for root in roots:
        for spelled in dict.fromkeys((root.rstrip("/"), os.path.realpath(root).rstrip("/"))):
            if clean.startswith(f"{spelled}/"):
                return _enter(root, clean[len(spelled) + 1 :], path, what)
    raise InvalidArgument(f"{what} {path} is outside of the allowed directories")


def _enter(root: str, rest: str, path: str, what: str) -> Entry:
    parent, _, name = rest.rpartition("/")
    with OwnedFd(os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as opened:
        try:
            flags = os.O_PATH | os.O_DIRECTORY
            return Entry(OwnedFd(native.open_beneath(opened.fileno(), parent or ".", flags)), name, path)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            outside = error.errno in {errno.EXDEV, errno.ELOOP}
            reason = "leads out of the allowed directories" if outside else os.strerror(error.errno).lower()
            raise InvalidArgument(f"{what} {path}: the directory of it: {reason}") from error
