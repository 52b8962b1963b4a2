"""Being woken when a container may have run out of memory.

Three sources behind one shape, each ready by a descriptor that Trio can wait for:

- v1: an eventfd, registered with the kernel for the cgroup's memory.oom_control.  It fires when the cgroup runs out of
  memory, *before* the kernel has chosen and counted whom to kill, and once more when the cgroup is removed.
- v2: inotify on memory.events and cgroup.events.  It wakes when the last process has ended; the removal that may follow
  wakes nobody (seen on 6.18), so a watch on v2 lasts until it is closed.
- v2 where inotify is used up (a user has 128 of them by default, and every shim of a machine is the same user): the
  kernel's own notification of kernfs files, an epoll that waits for "priority" readiness and is itself waited for.

A source only says "look again"; what happened is for the counts to say.
"""

from __future__ import annotations

import errno
import os
import select
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final, Protocol

import trio

from shim.kernel import native
from shim.kernel.fds import OwnedFd

if TYPE_CHECKING:
    from collections.abc import Sequence

UNIFIED_FILES: Final = ("memory.events", "cgroup.events")
USED_UP: Final = frozenset({errno.EMFILE, errno.ENOSPC})
"""What inotify answers when this user has no instance or no watch left."""
_EVENTS: Final = 4096


class OomSource(Protocol):
    """Something that says when to look at the counts."""

    async def wait(self) -> None:
        """Until something happened since the last call.  Raises ClosedResourceError once closed, also while waiting."""

    def close(self) -> None:
        """Let go of the descriptors; again is a no-op."""


class OomEventFd:
    """The eventfd of a v1 memory cgroup."""

    def __init__(self, directory: str) -> None:
        """Register with the kernel.  Raises OSError."""
        with ExitStack() as undo:
            self._fd = OwnedFd(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
            undo.callback(self._fd.close)
            # Only the registration needs the control file; the eventfd is what keeps it, and closing that ends it.
            with OwnedFd(os.open(f"{directory}/memory.oom_control", os.O_RDONLY | os.O_CLOEXEC)) as control:
                _write(f"{directory}/cgroup.event_control", f"{self._fd.fileno()} {control.fileno()}")
            undo.pop_all()

    async def wait(self) -> None:
        """See OomSource."""
        await trio.lowlevel.wait_readable(self._fd.fileno())
        with suppress(BlockingIOError):
            os.eventfd_read(self._fd.fileno())

    def close(self) -> None:
        """See OomSource."""
        self._fd.close()


class FileChanges:
    """Inotify on some files."""

    def __init__(self, directory: str, names: Sequence[str]) -> None:
        """Watch.  Raises OSError, with an errno of USED_UP when there is none left."""
        with ExitStack() as undo:
            self._fd = OwnedFd(native.watch_open())
            undo.callback(self._fd.close)
            for name in names:
                native.watch_add(self._fd.fileno(), f"{directory}/{name}")
            undo.pop_all()

    async def wait(self) -> None:
        """See OomSource."""
        await trio.lowlevel.wait_readable(self._fd.fileno())
        with suppress(BlockingIOError):
            os.read(self._fd.fileno(), _EVENTS)

    def close(self) -> None:
        """See OomSource."""
        self._fd.close()


class FilePriority:
    """The kernel's own notification of kernfs files; refuses (EPERM) files of any other file system.

    Edges only: a file that is dead while its directory lives, its controller switched off, stays "ready" for ever.
    """

    def __init__(self, directory: str, names: Sequence[str]) -> None:
        """Watch.  Raises OSError."""
        with ExitStack() as undo:
            self._epoll = select.epoll()
            undo.callback(self._epoll.close)
            self._files: list[OwnedFd] = []
            for name in names:
                file = OwnedFd(os.open(f"{directory}/{name}", os.O_RDONLY | os.O_CLOEXEC))
                undo.callback(file.close)
                self._files.append(file)
                self._epoll.register(file.fileno(), select.EPOLLPRI | select.EPOLLET)
            self._rearm()
            undo.pop_all()

    async def wait(self) -> None:
        """See OomSource."""
        if self._epoll.closed:
            raise trio.ClosedResourceError("source is closed")
        await trio.lowlevel.wait_readable(self._epoll.fileno())
        self._rearm()

    def _rearm(self) -> None:
        self._epoll.poll(0)
        for file in self._files:
            try:
                os.pread(file.fileno(), _EVENTS, 0)  # from here on a change is news again
            except OSError:  # ENODEV: the cgroup is gone, which the caller will find
                continue

    def close(self) -> None:
        """See OomSource."""
        if not self._epoll.closed:
            trio.lowlevel.notify_closing(self._epoll.fileno())
            self._epoll.close()
        for file in self._files:
            file.close()


def open_oom_source(directory: str, *, unified: bool) -> OomSource:
    """The source for the memory cgroup at `directory`.  Raises OSError when the kernel refuses."""
    if not unified:
        return OomEventFd(directory)
    try:
        return FileChanges(directory, UNIFIED_FILES)
    except OSError as error:
        if error.errno not in USED_UP:
            raise
        return FilePriority(directory, UNIFIED_FILES)


def _write(path: str, text: str) -> None:
    with OwnedFd(os.open(path, os.O_WRONLY | os.O_CLOEXEC)) as file:
        os.write(file.fileno(), text.encode("ascii"))
