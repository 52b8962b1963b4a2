"""The transform `mkdir`: directories that a mount needs, made below the allowed roots.

One directory each, its parent must be there.  A directory that is there already is taken if it is what was asked for,
and never changed.  A new one belongs to us: who asks for another owner is refused, before anything is made.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from shim.errors import InvalidArgument
from shim.kernel.fds import OwnedFd
from shim.mounts.roots import Entry, find_entry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shim.model.transform_options import DirectoryRequest


def make_directories(requests: Sequence[DirectoryRequest], roots: Sequence[str]) -> None:
    """Make those that are not there; blocks.

    Raises InvalidArgument for a path that is not allowed and for a directory that is there and different, OSError.
    """
    for request in requests:
        with find_entry(request.path, roots, "mkdir") as entry:
            _make(request, entry)


def _make(request: DirectoryRequest, entry: Entry) -> None:
    parent = entry.parent.fileno()
    if not _exists(entry):
        if request.owner not in {None, (os.geteuid(), os.getegid())}:
            raise InvalidArgument(f"mkdir {request.path}: a new directory cannot be given to {request.owner}")
        try:
            os.mkdir(entry.name, 0o700, dir_fd=parent)
        except FileExistsError:
            pass  # somebody was faster: look at it like at any other
        else:
            try:
                with _open(entry) as made:
                    os.fchmod(made.fileno(), request.mode)  # the mode of mkdir is cut by the umask
            except BaseException:
                os.rmdir(entry.name, dir_fd=parent)
                raise
            return
    with _open(entry) as there:
        found = os.fstat(there.fileno())
    if stat.S_IMODE(found.st_mode) != request.mode:
        raise InvalidArgument(f"mkdir {request.path}: exists with mode {stat.S_IMODE(found.st_mode):04o}")
    if request.owner not in {None, (found.st_uid, found.st_gid)}:
        raise InvalidArgument(f"mkdir {request.path}: exists and belongs to {found.st_uid}:{found.st_gid}")


def _exists(entry: Entry) -> bool:
    try:
        os.stat(entry.name, dir_fd=entry.parent.fileno(), follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _open(entry: Entry) -> OwnedFd:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return OwnedFd(os.open(entry.name, flags, dir_fd=entry.parent.fileno()))
    except OSError as error:
        if error.errno in {errno.ENOTDIR, errno.ELOOP}:
            raise InvalidArgument(f"mkdir {entry.path}: exists and is no directory") from error
        raise
