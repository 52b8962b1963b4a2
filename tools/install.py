"""Install the programs under a prefix, switch to a newer build, take everything away again.

    PREFIX/bin/NAME                              relative links, made once
    PREFIX/lib/containerd-shim-trio/current      relative link to the build in use, switched by a rename
    PREFIX/lib/containerd-shim-trio/<build>/     builds (tools/make_build.py)

Invariants.  What is installed is never written to: a new build is a new folder, and the switch replaces one link.  A
process loads from its own build only, so an upgrade changes nothing for a shim that runs.  A build goes when it is
neither current nor used by a process; one that is in use is kept, named, and taken by a later install or uninstall.  No
path inside is absolute except the interpreter's, so PREFIX can be moved.  Refuses to touch a program in PREFIX/bin that
it did not put there.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from tools.make_build import PROGRAMS, ROOT, build_id, make_build

if TYPE_CHECKING:
    from collections.abc import Iterator

HOME: Final = "lib/containerd-shim-trio"
CURRENT: Final = "current"
MADE: Final = "made.json"
TEMPLATE_TITLE: Final = b"shim-template "
"""How the command line of a warm template begins (shim/boot/template.py)."""
TEMPLATE_WORD: Final = b"\0--template\0"
"""What stands in it while the template is not ready yet (native/launcher_template.c)."""
TEMPLATE_SECONDS: Final = 5.0
"""How long one may take to leave."""


class InstallError(Exception):
    """The prefix is not as it must be; nothing was changed."""


@attrs.frozen
class Installation:
    """One prefix."""

    prefix: Path

    @property
    def home(self) -> Path:
        """Where the builds are."""
        return self.prefix / HOME

    @property
    def current(self) -> Path:
        """The link to the build in use."""
        return self.home / CURRENT

    def links(self) -> dict[Path, str]:
        """What PREFIX/bin gets: each link and its target."""
        return {self.prefix / "bin" / name: f"../{HOME}/{CURRENT}/bin/{name}" for name in PROGRAMS}

    def builds(self) -> list[Path]:
        """All builds that are there."""
        if not self.home.is_dir():
            return []
        return sorted(path for path in self.home.iterdir() if path.is_dir() and not path.is_symlink())


def _is_link_to(path: Path, target: str) -> bool:
    return path.is_symlink() and os.readlink(path) == target


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold `directory` alone: one install or uninstall of a prefix at a time."""
    lock_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock_fd)


def _belongs(process: Path, build: Path) -> bool:
    """Whether `process` (a directory of /proc) runs from `build`: its program, interpreter or anything it mapped."""
    inside = f"{build}/"
    try:
        if os.readlink(process / "exe").startswith(inside):
            return True
        if os.fsdecode((process / "cmdline").read_bytes()).startswith(inside):
            return True
        return inside in (process / "maps").read_text(errors="surrogateescape")
    except OSError:
        # It ended, is a kernel thread, or belongs to another user; then the lock speaks for it.
        return False


def users_of(build: Path) -> list[int]:
    """The processes seen in /proc to run from `build`."""
    processes = [path for path in Path("/proc").iterdir() if path.name.isdigit()]
    return sorted(int(process.name) for process in processes if _belongs(process, build))


def end_templates(build: Path) -> None:
    """Have the warm templates of `build` leave: they hold nothing of any container, but the build itself."""
    for pid in users_of(build):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            if not words.startswith(TEMPLATE_TITLE) and TEMPLATE_WORD not in words:
                continue
            pidfd = os.pidfd_open(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
        try:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGTERM)
            select.select([pidfd], [], [], TEMPLATE_SECONDS)
        finally:
            os.close(pidfd)


def _remove_if_unused(build: Path) -> bool:
    """Take `build` away unless a process uses it; whether it is gone.

    Each process of a build holds a shared lock on it, and /proc shows those that have not come that far.  The exclusive
    lock is held until the build is gone, so one that starts meanwhile waits and then finds nothing, not half of it.
    """
    end_templates(build)
    lock_fd = os.open(build, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if users_of(build):
            return False
        gone = build.with_name(f".gone-{build.name}")
        build.rename(gone)
        shutil.rmtree(gone)
    finally:
        os.close(lock_fd)
    return True


def _clean(installation: Installation) -> list[Path]:
    """Take away every build that is neither current nor in use, and what a killed install left; returns those kept."""
    current = installation.current.resolve() if installation.current.is_symlink() else None
    kept = []
    for build in installation.builds():
        if build.name.startswith((".new-", ".gone-")):
            shutil.rmtree(build)
        elif build != current and not _remove_if_unused(build):
            kept.append(build)
    return kept


def _make_directories(installation: Installation) -> None:
    """Make PREFIX/bin and the home, and note which directories were not there, so that uninstall can leave nothing."""
    wanted = (installation.prefix, installation.prefix / "bin", installation.prefix / "lib")
    made = [str(path.relative_to(installation.prefix)) for path in wanted if not path.exists()]
    for path in (*wanted, installation.home):
        path.mkdir(parents=True, exist_ok=True)
    record = installation.home / MADE
    if not record.exists():
        record.write_text(json.dumps(made))


def _switch(installation: Installation, build: Path) -> None:
    """Make `build` the current one: the link is replaced whole, there is no moment without it."""
    if _is_link_to(installation.current, build.name):
        return
    fresh = installation.home / f".{CURRENT}-{os.getpid()}"
    fresh.symlink_to(build.name)
    fresh.rename(installation.current)


def install(prefix: Path, source: Path, cache: Path) -> tuple[Path, list[Path]]:
    """Install the build of `source`, switch to it; returns it and the older builds that are still in use.

    Raises InstallError when PREFIX/bin has a program of that name which is not ours.
    """
    installation = Installation(prefix.resolve())
    for link, target in installation.links().items():
        if os.path.lexists(link) and not _is_link_to(link, target):
            raise InstallError(f"{link} is there and was not put there by this program")
    _make_directories(installation)
    with _locked(installation.home):
        build = make_build(source, cache, installation.home)
        _switch(installation, build)
        for link, target in installation.links().items():
            if not _is_link_to(link, target):
                link.symlink_to(target)
        return build, _clean(installation)


def uninstall(prefix: Path) -> list[Path]:
    """Take everything away that no process uses; returns the builds that had to stay."""
    installation = Installation(prefix.resolve())
    if not installation.home.is_dir():
        return []
    with _locked(installation.home):
        for link, target in installation.links().items():
            if _is_link_to(link, target):
                link.unlink()
        installation.current.unlink(missing_ok=True)
        kept = _clean(installation)
        if not kept:
            record = installation.home / MADE
            made: list[str] = json.loads(record.read_text()) if record.exists() else []
            shutil.rmtree(installation.home)
            for name in sorted(made, reverse=True):
                # Whatever others put there since then keeps it.
                with contextlib.suppress(OSError):
                    (installation.prefix / name).rmdir()
    return kept


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="tools.install", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("verb", choices=["install", "uninstall", "build-id"])
    parser.add_argument("--prefix", type=Path, default=Path("/usr/local"))
    parser.add_argument("--source", type=Path, default=ROOT, help="the tree that is installed")
    parser.add_argument("--cache", type=Path, default=ROOT / "build/wheels", help="where fetched dependencies are kept")
    options = parser.parse_args(arguments)
    os.umask(0o022)
    if options.verb == "build-id":
        print(build_id(options.source))
        return 0
    try:
        if options.verb == "install":
            build, kept = install(options.prefix, options.source, options.cache)
            print(f"installed {build}")
        else:
            kept = uninstall(options.prefix)
            print(f"uninstalled from {options.prefix}")
    except InstallError as error:
        print(f"not installed: {error}", file=sys.stderr)
        return 1
    for build in kept:
        users = ", ".join(map(str, users_of(build))) or "unknown"
        print(f"kept {build}: in use by process {users}; a later install or uninstall takes it away")
    return 0


if __name__ == "__main__":
    sys.exit(main())
