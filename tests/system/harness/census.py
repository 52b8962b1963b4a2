"""What a test must leave behind: nothing.

A census lists the processes, sockets, bundles' runtime states, mounts, loop devices, zombies and cgroups that belong
to this run.  Taken before and after each test, the difference must be empty.  An ended process that PID 1 has not
reaped yet is an ended process; a zombie under any other parent of this run is a leak.
"""

from __future__ import annotations

import os
import select
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from tests.system.harness.places import RUN_CONTAINERD, Places
from tests.system.harness.processes import all_pids, command_line, is_running, kill_now, parent_of, process_state

if TYPE_CHECKING:
    from collections.abc import Iterator

CLIENT_FIFOS: Final = RUN_CONTAINERD / "fifo"
SETTLE_MS: Final = 2000
"""How long a process found at the end may take to finish ending: it was told to, and nobody may wait for it by call."""


@attrs.frozen
class Census:
    """Named facts, each a line of text, and the pids behind the process lines."""

    facts: frozenset[str]
    pids: frozenset[int]


def _namespace_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return ""


def _own_processes(places: Places) -> Iterator[int]:
    """Processes in our mount namespace other than this one, and everything in our cgroups."""
    mine = _namespace_of(os.getpid())
    for pid in all_pids():
        if pid != os.getpid() and _namespace_of(pid) == mine and not _is_template(pid):
            yield pid
    for directory in places.cgroup_directories():
        for line in (directory / "cgroup.procs").read_text().split():
            yield int(line)


def _is_template(pid: int) -> bool:
    """Our warm template outlives its callers by design and holds nothing of any container (design section 9)."""
    return "shim-template" in command_line(pid)


def templates() -> list[int]:
    """The warm templates of our own mount namespace, without the forks that are about to become something else."""
    mine = _namespace_of(os.getpid())
    found = {pid for pid in all_pids() if _namespace_of(pid) == mine and _is_template(pid)}
    return sorted(pid for pid in found if parent_of(pid) not in found)


def end_templates() -> None:
    """End them, which no container notices."""
    for pid in templates():
        kill_now(pid)


def _zombies() -> Iterator[str]:
    mine = _namespace_of(os.getpid())
    for pid in all_pids():
        if process_state(pid) != "Z":
            continue
        parent = parent_of(pid)
        if parent != 1 and _namespace_of(parent) == mine:
            yield f"zombie {pid} of {parent} ({command_line(parent)})"


def _mounts() -> Iterator[str]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        yield f"mount {fields[0]} on {fields[4]}"


def _files_below(directory: Path) -> Iterator[str]:
    """Sockets, fifos and files; directories only where they are a runtime's state of a container."""
    for parent, names, files in os.walk(directory):
        here = Path(parent)
        for name in files:
            mode = (here / name).lstat().st_mode
            kind = "socket" if stat.S_ISSOCK(mode) else "fifo" if stat.S_ISFIFO(mode) else "file"
            yield f"{kind} {here / name}"
        if here.parent.name == "runc":
            for name in names:
                yield f"runtime state {here / name}"


def _loops(places: Places) -> Iterator[str]:
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            source = backing.read_text().strip()
        except OSError:
            continue
        if source.startswith(str(places.root)):
            yield f"loop device {backing.parts[3]} on {source}"


def _left_in(directory: Path) -> Iterator[str]:
    """What a driver's or daemon's directory must not keep: sockets, runtime states, temporary files."""
    for name in ("s", "tmp", "runc"):
        if (directory / name).is_dir():
            yield from _files_below(directory / name)
            if name == "tmp":
                for child in (directory / name).iterdir():
                    if child.is_dir():
                        yield f"temporary directory {child}"


def take_census(places: Places, directory: Path) -> Census:
    """Count now; `directory` is the test's own."""
    pids = {pid for pid in _own_processes(places) if is_running(pid)}
    facts = {f"process {pid}: {command_line(pid)}" for pid in pids}
    facts.update(_zombies())
    facts.update(_mounts())
    # ctr's own fifos: a detached client leaves them, whoever serves the task.
    facts.update(fact for fact in _files_below(RUN_CONTAINERD) if f" {CLIENT_FIFOS}/" not in fact)
    facts.update(_left_in(directory))
    facts.update(_loops(places))
    facts.update(f"cgroup {path}" for path in places.cgroup_directories())
    return Census(frozenset(facts), frozenset(pids))


def settle(census: Census, before: Census) -> None:
    """Give each new process its bounded time to finish ending."""
    for pid in census.pids - before.pids:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            poll.poll(SETTLE_MS)
        finally:
            os.close(pidfd)


def end_leftovers(census: Census, before: Census) -> None:
    """After a leak was found and noted: end what it left, so that the next test starts clean."""
    for pid in census.pids - before.pids:
        kill_now(pid)
    settle(census, before)
