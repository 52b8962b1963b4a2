"""Where a manager keeps things, and with what modes (protocol.md 9.1, design section 13).

```
STATE  0711                                     ROOT  0700
├─ io.containerd.runtime.v2.task/NS/ID  bundle  ├─ io.containerd.runtime.v2.task/NS/ID  0711, the work directory
├─ events.sock     shims publish here           └─ tmp  0700
├─ events  0700    its lock says which manager listens there
├─ locks   0700    one file for each task that is being changed
└─ manager.sock    a name only: part of the hash of a shim's socket
```

Invariants: modes are set explicitly, whatever the umask, also on directories that exist already with wider ones; names
from outside become paths only after the identifier check.  Refuses to change the mode of a directory that holds
something but was never a manager's: `--state /run` must not close /run to the rest of the machine.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import Final

import attrs

from shim.errors import FailedPrecondition, InvalidArgument, ResourceExhausted, ShimError
from shim.model.names import check_identifier
from shim.model.settings import DEFAULT_ROOT, DEFAULT_STATE

TASK_DIR: Final = "io.containerd.runtime.v2.task"
MAX_SOCKET_PATH: Final = 106
"""Bytes of a socket's path that all sides accept (protocol.md 1.7)."""


def _absolute(instance: object, attribute: attrs.Attribute[str], value: str) -> None:
    if not value.startswith("/") or os.path.normpath(value) != value or value == "/":
        raise InvalidArgument(f"the {attribute.name} directory must be a plain absolute path, not {value!r:.100}")


@attrs.frozen
class Layout:
    """All paths of one manager; both directories are absolute and normal."""

    state: str = attrs.field(default=DEFAULT_STATE, validator=_absolute)
    root: str = attrs.field(default=DEFAULT_ROOT, validator=_absolute)

    @property
    def address(self) -> str:
        """What shims get as the daemon's address: nobody listens there, it only keeps managers' shims apart."""
        return f"{self.state}/manager.sock"

    @property
    def events_address(self) -> str:
        """The socket on which shims publish their events."""
        return f"{self.state}/events.sock"

    @property
    def events_lock(self) -> str:
        """The directory whose lock decides which manager listens for events."""
        return f"{self.state}/events"

    @property
    def locks(self) -> str:
        """The directory of lock files: outside of what a deletion removes."""
        return f"{self.state}/locks"

    @property
    def tasks(self) -> str:
        """The directory of all namespaces' bundles."""
        return f"{self.state}/{TASK_DIR}"

    @property
    def temporary(self) -> str:
        """A private directory for what is made before it is moved into place."""
        return f"{self.root}/tmp"

    def lock_file(self, namespace: str, task_id: str) -> str:
        """The lock file of one task; a plus is in no identifier, so two tasks never share one."""
        check_identifier(namespace, "namespace")
        check_identifier(task_id, "task id")
        return f"{self.locks}/{namespace}+{task_id}"

    def bundles(self, namespace: str) -> str:
        """The directory of all bundles of `namespace`; InvalidArgument for what is no identifier."""
        check_identifier(namespace, "namespace")
        return f"{self.tasks}/{namespace}"

    def bundle(self, namespace: str, task_id: str) -> str:
        """The bundle of one task; InvalidArgument for what is no identifier."""
        check_identifier(task_id, "task id")
        return f"{self.bundles(namespace)}/{task_id}"

    def works(self, namespace: str) -> str:
        """The directory of all work directories of `namespace`."""
        check_identifier(namespace, "namespace")
        return f"{self.root}/{TASK_DIR}/{namespace}"

    def work(self, namespace: str, task_id: str) -> str:
        """The work directory of one task: its persistent side."""
        check_identifier(task_id, "task id")
        return f"{self.works(namespace)}/{task_id}"

    def prepare(self) -> None:
        """Make the directories that do not depend on a namespace.

        FailedPrecondition when one of them is somebody else's; InvalidArgument when the sockets' paths get too long.
        """
        if len(os.fsencode(self.events_address)) > MAX_SOCKET_PATH:
            raise InvalidArgument(
                f"the state directory {self.state} is too long: a socket in it may have {MAX_SOCKET_PATH} bytes"
            )
        _refuse_foreign(self.state)
        _refuse_foreign(self.root)
        make_directory(self.state, 0o711)
        make_directory(self.tasks, 0o711)
        make_directory(self.events_lock, 0o700)
        make_directory(self.locks, 0o700)
        make_directory(self.root, 0o700)
        make_directory(f"{self.root}/{TASK_DIR}", 0o711)
        make_directory(self.temporary, 0o700)

    def prepare_namespace(self, namespace: str) -> None:
        """Make the two directories of `namespace`."""
        make_directory(self.bundles(namespace), 0o711)
        make_directory(self.works(namespace), 0o711)


def make_directory(path: str, mode: int) -> None:
    """Make `path` and what is missing above it, and give `path` exactly `mode`; the umask has no say.

    FailedPrecondition when it exists and is no directory or not ours (its owner could change what we put there).
    """
    if not os.path.isdir(os.path.dirname(path)):
        make_directory(os.path.dirname(path), 0o711)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode)
    try:
        directory_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError as error:
        raise FailedPrecondition(f"{path} is in the way: it is no directory") from error
    try:
        found = os.fstat(directory_fd)
        if found.st_uid != os.geteuid():
            raise FailedPrecondition(f"{path} belongs to user {found.st_uid}, not to user {os.geteuid()}")
        if stat.S_IMODE(found.st_mode) != mode:
            os.fchmod(directory_fd, mode)
    finally:
        os.close(directory_fd)


def _refuse_foreign(path: str) -> None:
    """A directory that has entries, but none of a manager, was made for something else."""
    try:
        entries = os.listdir(path)
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        raise FailedPrecondition(f"{path} is in the way: it is no directory") from error
    if entries and TASK_DIR not in entries:
        raise FailedPrecondition(
            f"{path} holds things of others and would be closed to them: "
            f"name a directory of its own, such as {path}/shimctl"
        )


def disk_error(error: OSError, what: str) -> ShimError:
    """The error for a file system that refuses: full (ResourceExhausted), read-only or otherwise not to be written."""
    where = f": {error.filename}" if error.filename else ""
    full = error.errno in {errno.ENOSPC, errno.EDQUOT}
    return (ResourceExhausted if full else FailedPrecondition)(f"{what}: {error.strerror}{where}")
