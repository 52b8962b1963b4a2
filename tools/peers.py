"""The programs of others that ours is tested with: where they are, how they are built, what is absent and why.

containerd 1.6 with its client and its Go shim is Debian's package `containerd`, dockerd 20.10 with its client Debian's
`docker.io`; they are looked up on the machine.  The programs of containerd 2.4 and crictl are built with `go install`
and kept outside the tree, so that a clean checkout does not build them again.  A peer that cannot be had is a line with
a reason, never a silent gap: this program exits with 0 for it, and the tests that need the peer say so again as a skip
(tests/skips.txt).

    python tools/peers.py           what is here
    python tools/peers.py --build   build what is missing, then say what is here
    python tools/peers.py --where   print the directory only
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import attrs


@attrs.frozen
class GoProgram:
    """A program that `go install` makes."""

    package: str
    version: str
    go: tuple[int, int]
    """The Go that its module asks for at least (major, minor)."""

    @property
    def name(self) -> str:
        """Its file name."""
        return self.package.rpartition("/")[2]

    @property
    def origin(self) -> str:
        """What `go install` is given; kept beside the program to know what it was built from."""
        return f"{self.package}@{self.version}"


CONTAINERD: Final = "github.com/containerd/containerd/v2/cmd"
GO_PROGRAMS: Final = (
    GoProgram(f"{CONTAINERD}/containerd", "v2.4.2", (1, 26)),
    GoProgram(f"{CONTAINERD}/ctr", "v2.4.2", (1, 26)),
    GoProgram(f"{CONTAINERD}/containerd-shim-runc-v2", "v2.4.2", (1, 26)),
    GoProgram("sigs.k8s.io/cri-tools/cmd/crictl", "v1.37.0", (1, 26)),
)
MACHINE_PROGRAMS: Final = {
    "containerd": "containerd",
    "ctr": "containerd",
    "containerd-shim-runc-v2": "containerd",
    "/usr/sbin/dockerd": "docker.io",
    "/usr/bin/docker": "docker.io",
}
"""Program -> its package; docker's by path, since another client may come first on PATH."""
BUILD_SECONDS: Final = 20 * 60


@attrs.frozen
class Peer:
    """A peer as found: `path` when it is here, else `absent` says why not."""

    name: str
    version: str
    path: Path | None
    absent: str = ""


def peers_directory() -> Path:
    """Where built peers are kept: SHIM_PEERS_DIR, else below XDG_CACHE_HOME, else below ~/.cache."""
    given = os.environ.get("SHIM_PEERS_DIR")
    if given:
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "containerd-shim-trio" / "peers"


def go_version() -> tuple[int, int] | None:
    """The version of the Go on PATH, None when there is none."""
    if shutil.which("go") is None:
        return None
    done = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, check=False)
    found = re.match(r"go(\d+)\.(\d+)", done.stdout)
    return (int(found[1]), int(found[2])) if found else None


def _origin_file(directory: Path, program: GoProgram) -> Path:
    return directory / f"{program.name}.origin"


def is_built(directory: Path, program: GoProgram) -> bool:
    """Whether `directory` has `program` in exactly this version."""
    origin = _origin_file(directory, program)
    return (directory / program.name).exists() and origin.exists() and origin.read_text() == program.origin


def build(directory: Path, program: GoProgram) -> str:
    """Build `program` into `directory`; the reason why not, "" when it is there."""
    have = go_version()
    if have is None:
        return "there is no Go on this machine"
    if have < program.go:
        return f"needs Go {program.go[0]}.{program.go[1]}, this is Go {have[0]}.{have[1]}"
    scratch = directory / f".building-{os.getpid()}"
    scratch.mkdir(parents=True)
    try:
        print(f"building {program.origin} ...", file=sys.stderr, flush=True)
        command = ["go", "install", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", program.origin]
        done = subprocess.run(
            command,
            env={**os.environ, "GOBIN": str(scratch), "CGO_ENABLED": "0"},
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=BUILD_SECONDS,
        )
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["no output"]
            return f"go install failed with {done.returncode}: {lines[-1]}"
        # The origin goes last: a build that was cut short is made again.
        (scratch / program.name).rename(directory / program.name)
        _origin_file(directory, program).write_text(program.origin)
    except subprocess.TimeoutExpired:
        return f"go install took more than {BUILD_SECONDS // 60} minutes"
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return ""


def _machine_version(path: str) -> str:
    flag = "-v" if "shim" in Path(path).name else "--version"
    done = subprocess.run([path, flag], capture_output=True, text=True, check=False)
    found = re.search(r"\b(\d+\.\d+\.\d+)", done.stdout)
    return found[1] if found else "unknown version"


def find_peers(*, may_build: bool) -> list[Peer]:
    """Every peer, in the order in which they are listed."""
    found: list[Peer] = []
    for program_name, package in MACHINE_PROGRAMS.items():
        path, name = shutil.which(program_name), Path(program_name).name
        if path is None:
            found.append(Peer(name, "-", None, f"Debian's package {package} is not installed"))
        else:
            found.append(Peer(name, _machine_version(path), Path(path)))
    directory = peers_directory()
    for program in GO_PROGRAMS:
        absent = ""
        if not is_built(directory, program):
            absent = build(directory, program) if may_build else "not built: make peers"
        path_there = None if absent else directory / program.name
        found.append(Peer(program.name, program.version.removeprefix("v"), path_there, absent))
    return found


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--build", action="store_true", help="build what is missing")
    parser.add_argument("--where", action="store_true", help="print the directory of built peers and nothing else")
    options = parser.parse_args()
    if options.where:
        print(peers_directory())
        return 0
    for peer in find_peers(may_build=options.build):
        print(f"{peer.name:<24} {peer.version:<16} {peer.path or f'ABSENT: {peer.absent}'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
