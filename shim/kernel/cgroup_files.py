"""The cgroup of a container as a set of directories, and reading its files.

The places are remembered when the container is created, from init's pid; they go on answering after init has ended, for
as long as the cgroup is there.  A directory is opened once for all its files, so that one answer never mixes a cgroup
with a later one of the same name.  What cannot be read, for whatever reason, is left out.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Self

import attrs

from shim.kernel.cgroups import UNIFIED, directories
from shim.model import metrics

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

LEGACY_CONTROLLERS: Final = frozenset({"memory", "cpu", "cpuacct", "pids", "blkio", "rdma", "hugetlb"})
"""The v1 controllers whose files we read; one of them makes a cgroup legacy, also on a host that mounts v2 as well."""
HUGE_PAGES: Final = "/sys/kernel/mm/hugepages"
BLOCK_DEVICES: Final = "/sys/dev/block"
_CHUNK: Final = 16 * 1024
_FILE_LIMIT: Final = 4 * 1024 * 1024
"""Bytes read of one file: io.stat with ten thousand devices is a tenth of it."""


@attrs.frozen
class CgroupPlaces:
    """Where one container is: its directory for each v1 controller, that of v2 under the empty name."""

    directories: Mapping[str, str]

    @classmethod
    def of(cls, pid: int) -> Self:
        """Where `pid` is now.  Raises ProcessLookupError when it is gone."""
        return cls(directories(pid))

    @property
    def unified(self) -> bool:
        """Whether the figures are those of v2: no controller of ours is in a v1 hierarchy."""
        return not LEGACY_CONTROLLERS & self.directories.keys()

    @property
    def memory(self) -> str | None:
        """The directory that has the counts of OOM kills, if one is known."""
        return self.directories.get(UNIFIED if self.unified else "memory")


def read_files(directory: str, names: Iterable[str]) -> dict[str, str] | None:
    """The text of those of the files that can be read; None when the directory does not exist."""
    try:
        directory_fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return {}
    try:
        texts = ((name, _read(name, directory_fd)) for name in names)
        return {name: text for name, text in texts if text is not None}
    finally:
        os.close(directory_fd)


def _read(name: str, directory_fd: int) -> str | None:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory_fd)
    except OSError:
        return None
    content = b""
    try:
        # A short read is no end: seq_file gives what its buffer had.
        while len(content) < _FILE_LIMIT and (more := os.read(fd, _CHUNK)):
            content += more
    except OSError:  # ENODEV: the cgroup went after the file was opened; EOPNOTSUPP: pressure is not accounted
        return None
    finally:
        os.close(fd)
    return content.decode("ascii", "replace")


def exists(directory: str) -> bool:
    """Whether the cgroup is there."""
    return os.path.isdir(directory)


def is_root(directory: str) -> bool:
    """Whether it is the topmost cgroup that we can see: everybody's, no single container's."""
    return os.path.ismount(directory)


def huge_page_sizes() -> list[str]:
    """The sizes of huge pages of this machine as the names of cgroup files write them, smallest first."""
    try:
        names = os.listdir(HUGE_PAGES)
    except OSError:
        return []
    sizes = (metrics.page_size(name) for name in names)
    return [text for _, text in sorted(size for size in sizes if size is not None)]


def block_device(major: int, minor: int) -> str:
    """The path of a block device below /dev; empty when there is no such device any more."""
    try:
        target = os.readlink(f"{BLOCK_DEVICES}/{major}:{minor}")
    except OSError:
        return ""
    return f"/dev/{os.path.basename(target).replace('!', '/')}"


def oom_control(places: CgroupPlaces) -> Iterator[tuple[str, dict[str, int]]]:
    """The file that counts OOM kills, by directory: in v2 the container's own, which counts for all below it.

    A v1 cgroup counts only the processes that are in it itself, so those below are read as well: a container may have
    made some.  What cannot be read is left out.
    """
    if places.memory is None:
        return
    name = "memory.events" if places.unified else "memory.oom_control"
    waiting = [places.memory]
    while waiting:
        directory = waiting.pop()
        found = read_files(directory, [name]) or {}
        if name in found:
            yield directory, metrics.flat(found[name])
        if not places.unified:
            waiting += _below(directory)


def _below(directory: str) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
