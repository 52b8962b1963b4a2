"""Where a process is in the control groups, and moving one there.

Three layouts: v2 alone (one line `0::/path` in /proc/PID/cgroup), v1 (a line for each hierarchy), and both beside each
other.  A path in /proc/PID/cgroup is relative to our cgroup namespace, and a mount may show only a part of its
hierarchy; both are taken into account.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import attrs

from shim.errors import NotFound
from shim.kernel.mountinfo import read_mountinfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shim.kernel.mountinfo import MountEntry

UNIFIED: Final = ""
"""The name of the v2 hierarchy among the controllers."""


@attrs.frozen
class Membership:
    """One line of /proc/PID/cgroup; no controllers means v2, `name=x` a v1 hierarchy without any."""

    controllers: tuple[str, ...]
    path: str

    @property
    def unified(self) -> bool:
        """Whether this is the v2 hierarchy."""
        return not self.controllers


@attrs.frozen
class Hierarchy:
    """A mounted hierarchy: its controllers (none for v2), where it is mounted, and which part of it that shows."""

    controllers: tuple[str, ...]
    mount_point: str
    root: str

    def directory(self, path: str) -> str:
        """The directory of the cgroup `path` (absolute within the hierarchy).  NotFound if the mount hides it."""
        if self.root == "/":
            inside = path
        elif path == self.root or path.startswith(f"{self.root}/"):
            inside = path[len(self.root) :]
        else:
            raise NotFound(f"cgroup {path} is outside of what {self.mount_point} shows")
        return os.path.normpath(f"{self.mount_point}/{inside}")


def parse_memberships(text: str) -> list[Membership]:
    """The lines of /proc/PID/cgroup.  Raises ValueError for what is none."""
    found: list[Membership] = []
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        found.append(Membership(tuple(controllers.split(",")) if controllers else (), path))
    return found


def find_hierarchies(entries: Sequence[MountEntry]) -> list[Hierarchy]:
    """The cgroup hierarchies of a mount table, each once, at the first place that shows it whole if there is one."""
    found: dict[tuple[str, ...], Hierarchy] = {}
    for entry in entries:
        if entry.type == "cgroup2":
            controllers: tuple[str, ...] = ()
        elif entry.type == "cgroup":
            controllers = tuple(sorted(set(entry.super_options) - {"rw", "ro", "xattr", "noprefix", "clone_children"}))
            controllers = tuple(name for name in controllers if not name.startswith("release_agent="))
        else:
            continue
        known = found.get(controllers)
        if known is None or (known.root != "/" and entry.root == "/"):
            found[controllers] = Hierarchy(controllers, entry.mount_point, entry.root)
    return list(found.values())


def memberships(pid: int) -> list[Membership]:
    """Where `pid` is now.  Raises ProcessLookupError when it is gone."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="surrogateescape") as stream:
            return parse_memberships(stream.read())
    except FileNotFoundError as error:
        raise ProcessLookupError(3, f"no process {pid}") from error


def directories(pid: int) -> dict[str, str]:
    """The directory of `pid`'s cgroup for each controller; the v2 hierarchy is under the empty name.

    A hierarchy that is not mounted, or whose mount does not show the cgroup, is left out.  Raises ProcessLookupError.
    """
    hierarchies = {hierarchy.controllers: hierarchy for hierarchy in find_hierarchies(read_mountinfo())}
    found: dict[str, str] = {}
    for member in memberships(pid):
        hierarchy = hierarchies.get(tuple(sorted(member.controllers)))
        if hierarchy is None:
            continue
        try:
            place = hierarchy.directory(member.path)
        except NotFound:
            continue
        for controller in member.controllers or (UNIFIED,):
            found[controller.removeprefix("name=")] = place
    return found


def move(pid: int, path: str) -> None:
    """Move `pid` into the cgroup `path` (protocol.md 2.7 step 6): v2, or every v1 hierarchy that has it.

    Raises NotFound when no hierarchy has such a cgroup, OSError when the kernel refuses.
    """
    hierarchies = find_hierarchies(read_mountinfo())
    legacy = [hierarchy for hierarchy in hierarchies if hierarchy.controllers]
    places: list[str] = []
    for hierarchy in legacy or hierarchies:
        place = os.path.normpath(f"{hierarchy.mount_point}/{path}")
        if place != hierarchy.mount_point and not place.startswith(f"{hierarchy.mount_point}/"):
            raise NotFound(f"cgroup {path}")
        if os.path.isdir(place):
            places.append(place)
    if not places:
        raise NotFound(f"cgroup {path}")
    for place in places:
        with open(f"{place}/cgroup.procs", "w", encoding="ascii") as stream:
            stream.write(str(pid))
