"""The shim's listening socket in the file system: made, found alive, replaced when dead, removed (protocol.md 2.7).

Every change of a name in the socket directory happens under an exclusive flock of that directory itself, so two
starts of one group, or a start and a clean-up, cannot undo each other, and no lock file is left behind.  A name is
only ever unlinked when nobody listens behind it (connecting is refused) or when it is still the very inode we made.
A listener too busy to accept counts as alive.
Refuses a path that cannot be dialled, and one that is taken by something other than a socket.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import attrs

from shim.errors import Unavailable, Unknown
from shim.model.grouping import SCHEME, check_socket_path

if TYPE_CHECKING:
    from collections.abc import Iterator

PROBE_SECONDS: Final = 0.1
"""How long a connect may take before its listener counts as alive but busy."""
LOCK_SECONDS: Final = 3.0
"""How long another start may hold the directory: many probes, and still inside every caller's patience."""
_LOCK_POLL_SECONDS: Final = 0.005
_BACKLOG: Final = 4096
_DIRECTORY_MODE: Final = 0o700
_SOCKET_MODE: Final = 0o600


@attrs.frozen
class BoundSocket:
    """A listening socket of ours and the directory entry it was bound to."""

    listener: socket.socket
    path: str
    device: int
    inode: int

    @property
    def address(self) -> str:
        """The address as a client dials it."""
        return SCHEME + self.path

    def remove(self) -> bool:
        """Unlink the entry if it is still ours; True when it is gone by our hand.  The listener stays open."""
        try:
            with locked_directory(os.path.dirname(self.path)):
                found = os.lstat(self.path)
                if (found.st_dev, found.st_ino) != (self.device, self.inode):
                    return False
                os.unlink(self.path)
                return True
        except FileNotFoundError:
            return False


def bind_socket(path: str) -> BoundSocket | None:
    """Listen at `path`, owner-only from the first moment; None when somebody listens there already.

    Makes the directory when it is missing.  Raises InvalidArgument for a path too long, Unavailable when the
    directory is held by somebody else, Unknown when the name is taken by something that is no socket, OSError for the
    rest.
    """
    check_socket_path(path)
    make_directory(os.path.dirname(path))
    with locked_directory(os.path.dirname(path)):
        if is_alive(path):
            return None
        _unlink_socket(path)
        return _listen(path)


def adopt_socket(listener: socket.socket) -> BoundSocket:
    """The listening socket that somebody bound for us (descriptor 3), with the entry it is bound to."""
    path = listener.getsockname()
    if not isinstance(path, str) or not path.startswith("/"):
        raise Unknown(f"listening socket has no path in the file system: {path!r}")
    found = os.lstat(path)
    return BoundSocket(listener, path, found.st_dev, found.st_ino)


def remove_dead_socket(path: str, *, lock_seconds: float | None = None) -> bool:
    """Unlink the socket at `path` if nobody listens behind it; True when it was removed.  Missing is fine."""
    try:
        with locked_directory(os.path.dirname(path), seconds=lock_seconds):
            if is_alive(path) or not stat.S_ISSOCK(os.lstat(path).st_mode):
                return False
            os.unlink(path)
            return True
    except FileNotFoundError:
        return False


def is_alive(path: str) -> bool:
    """Whether somebody listens at `path`; a listener that is too busy to take us counts."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_SECONDS)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except (TimeoutError, BlockingIOError):
            return True
    return True


@contextmanager
def locked_directory(directory: str, *, seconds: float | None = None) -> Iterator[None]:
    """Hold the exclusive flock of `directory`.  Raises Unavailable when it stays taken, FileNotFoundError."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        give_up = time.monotonic() + (LOCK_SECONDS if seconds is None else seconds)
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > give_up:
                    raise Unavailable(f"socket directory {directory} is locked by another start or delete") from error
                time.sleep(_LOCK_POLL_SECONDS)
        yield
    finally:
        os.close(fd)


def make_directory(directory: str) -> None:
    """Make `directory` and its missing parents, owner-only whatever the umask.  What exists keeps its mode."""
    if os.path.isdir(directory):
        return
    parent = os.path.dirname(directory)
    if parent != directory:
        make_directory(parent)
    try:
        os.mkdir(directory, _DIRECTORY_MODE)
    except FileExistsError:
        if not os.path.isdir(directory):
            raise
    else:
        os.chmod(directory, _DIRECTORY_MODE)


def _unlink_socket(path: str) -> None:
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise Unknown(f"{path} is taken by something that is no socket")
        os.unlink(path)
    except FileNotFoundError:
        pass


def _listen(path: str) -> BoundSocket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    bound = False
    try:
        inherited = os.umask(0o177)  # so that nobody else can connect, not even before the chmod
        try:
            listener.bind(path)
            bound = True
        finally:
            os.umask(inherited)
        os.chmod(path, _SOCKET_MODE)
        listener.listen(_BACKLOG)
        made = os.lstat(path)
    except BaseException:
        listener.close()
        if bound:
            os.unlink(path)
        raise
    return BoundSocket(listener, path, made.st_dev, made.st_ino)
