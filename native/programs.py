"""Build the stand-alone C programs of this directory: static, so that they run in a root file system of their own.

Run as a program it builds those of PROGRAMS into `build/programs`, each under the name that it is installed with;
tools/make_build.py puts the same into a build.  A program is built under a temporary name and renamed, so two builds at
once do no harm, and one that is newer than its sources is left as it is.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
BUILT: Final = HERE.parent / "build" / "programs"
FLAGS: Final = ("-std=gnu11", "-O2", "-s", "-static", "-Wall", "-Wextra", "-Werror")
PROGRAMS: Final = {
    "shim-payload": ("payload.c", "payload_verbs.c", "payload_report.c"),
}
"""Installed name to sources.  The launcher is not among them: it is useful inside of a build only."""


def build_program(name: str, directory: Path, *, sources: Path = HERE) -> Path:
    """Build `name` from `sources` into `directory`; returns its path.  CalledProcessError when gcc refuses."""
    place = directory / name
    files = [sources / source for source in PROGRAMS[name]]
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=directory) as scratch:
        built = Path(scratch) / name
        subprocess.run(["gcc", *FLAGS, "-o", str(built), *map(str, files)], check=True)
        built.rename(place)
    return place


def ensure_program(name: str) -> Path:
    """The program in `build/programs`, built anew when a source is newer."""
    place = BUILT / name
    newest = max(path.stat().st_mtime for path in (*HERE.glob("*.[ch]"), Path(__file__)))
    if place.exists() and place.stat().st_mtime >= newest:
        return place
    return build_program(name, BUILT)


def main() -> None:
    """Build all of them."""
    for name in PROGRAMS:
        ensure_program(name)


if __name__ == "__main__":
    main()
