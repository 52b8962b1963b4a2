"""When an old build may go: neither current, nor locked, nor seen in /proc."""

from __future__ import annotations

import fcntl
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from tools.install import Installation, uninstall, users_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    """Two builds without content; the newer one is current."""
    made = Installation(tmp_path)
    for name in ("old", "new"):
        (made.home / name / "bin").mkdir(parents=True)
    made.current.symlink_to("new")
    return made


def test_unused_builds_go_and_leave_the_prefix_as_it_was(installation: Installation) -> None:
    assert uninstall(installation.prefix) == []
    assert list(installation.prefix.iterdir()) == [installation.prefix / "lib"]


def test_locked_build_stays(installation: Installation) -> None:
    lock_fd = os.open(installation.home / "old", os.O_RDONLY)
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_SH)
        assert uninstall(installation.prefix) == [installation.home / "old"]
        assert installation.builds() == [installation.home / "old"]
    finally:
        os.close(lock_fd)
    assert uninstall(installation.prefix) == []


def test_build_whose_program_runs_stays(installation: Installation) -> None:
    build = installation.home / "old"
    program = build / "bin/cat"
    program.write_bytes(_read_program("/bin/cat"))
    program.chmod(0o755)
    with subprocess.Popen([program], stdin=subprocess.PIPE) as process:
        # Popen returns when the exec has succeeded, so the program is in /proc.
        assert users_of(build) == [process.pid]
        assert uninstall(installation.prefix) == [build]
    assert uninstall(installation.prefix) == []


def test_what_a_killed_install_left_goes(installation: Installation) -> None:
    (installation.home / ".new-1/x").mkdir(parents=True)
    (installation.home / ".gone-x").mkdir()
    uninstall(installation.prefix)
    assert not installation.home.exists()


def test_others_links_stay(installation: Installation) -> None:
    link = installation.prefix / "bin/shimctl"
    link.parent.mkdir()
    link.symlink_to("/somewhere/else")
    uninstall(installation.prefix)
    assert os.readlink(link) == "/somewhere/else"


def _read_program(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
