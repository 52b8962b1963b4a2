"""The payload program as a container's init, under the real runc; no shim takes part."""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from native.programs import ensure_program
from shim.verify.faultrun import numbered
from tests.system.harness.bundles import Spec, make_bundle

if TYPE_CHECKING:
    from pathlib import Path

    from tests.system.harness.bundles import Json
    from tests.system.harness.places import Places

# Under the container's own tmpfs: nothing is added to the shared root.
INSIDE = "/tmp/shim-payload"


class Container:
    """Runs the payload as init of a container with the shared root."""

    def __init__(self, places: Places, directory: Path, rootfs: Path) -> None:
        self._cgroups_path = places.cgroup_path(f"p{directory.name}")
        self._directory = directory
        self._rootfs = rootfs
        self._payload = str(ensure_program("shim-payload"))

    def run(
        self, words: str, *, user: tuple[int, int] = (0, 0), stdin: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        mount: Json = {"destination": INSIDE, "type": "bind", "source": self._payload, "options": ["bind", "ro"]}
        spec = Spec(
            args=[INSIDE, *words.split()],
            cgroups_path=self._cgroups_path,
            root=str(self._rootfs),
            user=user,
            env=["ONE=1"],
            mounts=[mount],
        )
        bundle = make_bundle(self._directory / "bundle", "payload", spec)
        command = ["runc", "--root", str(self._directory / "runc"), "run", "--bundle", str(bundle.path), "payload"]
        return subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=30)


@pytest.fixture
def container(places: Places, directory: Path, rootfs: Path) -> Container:
    return Container(places, directory, rootfs)


def test_it_reports_what_the_container_gave_it(container: Container) -> None:
    done = container.run("ignore TERM -- cat -- report", user=(1000, 1000), stdin=b"given\n")
    assert (done.returncode, done.stderr) == (0, b"")
    first, *lines = done.stdout.decode().splitlines()
    shown = dict(line.split("=", 1) for line in lines)
    assert first == "given"
    assert (shown["pid"], shown["ppid"], shown["sid"]) == ("1", "0", "1")
    assert (shown["uid"], shown["gid"], shown["cwd"]) == ("1000", "1000", "/")
    assert (shown["no_new_privs"], shown["capabilities"]) == ("1", "0000000000000000")
    assert (shown["env.ONE"], shown["stdin"]) == ("1", "eof")
    assert int(shown["signals.ignored"], 16) & 1 << (signal.SIGTERM - 1)
    assert {key for key in shown if key.startswith("fd.")} == {"fd.0", "fd.1", "fd.2"}


def test_its_output_is_exact(container: Container) -> None:
    done = container.run("print-bytes 1000001 both -- exit 7")
    assert done.returncode == 7
    assert done.stdout == numbered(1000001)
    assert done.stderr == numbered(1000001)


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("die SEGV", 128 + signal.SIGSEGV),
        ("die ILL", 128 + signal.SIGILL),
        ("die KILL", 125),
        ("daemon 600 -- exit 3", 3),
    ],
)
def test_as_pid_1_it_dies_of_faults_only(container: Container, words: str, status: int) -> None:
    assert container.run(words).returncode == status
