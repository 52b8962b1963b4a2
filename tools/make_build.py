"""Make one build: a folder that holds everything the installed programs load, except the Python interpreter.

    <build>/bin/NAME        the launcher (native/launcher.c), once for each program in Python
    <build>/bin/NAME        static C programs (native/programs.py)
    <build>/entry/NAME.py   what it has Python run (tools/entry.py)
    <build>/lib/            the package, its native module and its dependencies, byte-compiled
    <build>/python          link to the interpreter: the only absolute path
    <build>/build.json      what went in

The name of a build is a hash of what goes in: the same sources, dependency versions and interpreter are the same
build, and anything else is another one.  The byte code is not checked against its sources and knows no path: a build
that was moved, or whose files got new times, compiles nothing again.  Tests, pip and development tools stay out.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path
from typing import Final

from native.programs import PROGRAMS as STATIC_PROGRAMS
from native.programs import build_program

ROOT: Final = Path(__file__).resolve().parents[1]
PYTHON_PROGRAMS: Final = ("containerd-shim-trio-v2", "shimctl", "shim-faultrun")
PROGRAMS: Final = (*PYTHON_PROGRAMS, *STATIC_PROGRAMS)
SOURCE_DIRECTORIES: Final = ("shim", "native")
SOURCE_FILES: Final = (
    "pyproject.toml",
    "constraints.txt",
    "README.md",
    "LICENSE",
    "tools/entry.py",
    "tools/make_build.py",
)
NOT_SOURCE: Final = ("__pycache__", "*.so", "*.o", "*.pyc", "_native.c")
NO_REVISION: Final = 'REVISION: Final = ""'
LAUNCHER_SOURCES: Final = ("launcher.c", "launcher_template.c", "template_key.c")
LAUNCHER_FLAGS: Final = ("-std=gnu11", "-O2", "-s", "-static", "-Wall", "-Wextra", "-Werror")
# pip's own bookkeeping; one of the files has the path of the wheel in it.
PIP_RECORDS: Final = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")


def interpreter() -> Path:
    """The Python that a build is made for: the one that runs this, outside of any virtual environment."""
    return Path(sys.executable).resolve()


def _copy_sources(source: Path, destination: Path) -> None:
    """Copy what a build is made of, so that what an earlier one left in the tree cannot get in."""
    for name in SOURCE_DIRECTORIES:
        shutil.copytree(source / name, destination / name, ignore=shutil.ignore_patterns(*NOT_SOURCE))
    for name in SOURCE_FILES:
        (destination / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(source / name, destination / name)


def _describe_python() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "abi": str(sysconfig.get_config_var("SOABI")),
        "interpreter": str(interpreter()),
    }


def _build_id(copied: Path) -> str:
    digest = hashlib.sha256(json.dumps(_describe_python(), sort_keys=True).encode())
    for path in sorted(path for path in copied.rglob("*") if path.is_file()):
        digest.update(f"\0{path.relative_to(copied)}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    version = tomllib.loads((copied / "pyproject.toml").read_text())["project"]["version"]
    return f"{version}-{digest.hexdigest()[:12]}"


def _write_revision(copied: Path, revision: str) -> None:
    """Have the programs say with `-v` which build they are."""
    module = copied / "shim/boot/version.py"
    text = module.read_text()
    if text.count(NO_REVISION) != 1:
        raise ValueError(f"{module} does not have the line {NO_REVISION}")
    module.write_text(text.replace(NO_REVISION, f'REVISION: Final = "{revision}"'))


def build_id(source: Path) -> str:
    """The name of the build that `source` gives with this interpreter."""
    with tempfile.TemporaryDirectory(prefix="shim-sources-") as scratch:
        _copy_sources(source, Path(scratch))
        return _build_id(Path(scratch))


def _pip(*arguments: str, constraints: Path) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    # Debug information would carry the path of the scratch directory into the native module.
    subprocess.run(command, env={**os.environ, "PIP_CONSTRAINT": str(constraints), "CFLAGS": "-g0"}, check=True)


def _dependency_wheels(copied: Path, cache: Path) -> Path:
    """A directory with the wheels of all dependencies at the versions of constraints.txt, fetched once."""
    constraints = copied / "constraints.txt"
    dependencies: list[str] = tomllib.loads((copied / "pyproject.toml").read_text())["project"]["dependencies"]
    key = hashlib.sha256(f"{dependencies}{_describe_python()}".encode() + constraints.read_bytes()).hexdigest()[:16]
    wheels = cache / key
    if not wheels.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=cache) as scratch:
            _pip("wheel", "--wheel-dir", f"{scratch}/wheels", *dependencies, constraints=constraints)
            Path(scratch, "wheels").rename(wheels)
    return wheels


def _install_packages(copied: Path, wheels: Path, lib: Path) -> list[str]:
    """Put the package and its dependencies into `lib`; returns `name version` of each."""
    constraints = copied / "constraints.txt"
    own = copied / "dist"
    _pip("wheel", "--no-deps", "--wheel-dir", str(own), str(copied), constraints=constraints)
    _pip(
        *("install", "--no-index", "--no-compile", "--target", str(lib)),
        *("--find-links", str(wheels), "--find-links", str(own), "containerd-shim-trio"),
        constraints=constraints,
    )
    shutil.rmtree(lib / "bin", ignore_errors=True)
    for directory in [path for path in lib.rglob("*") if path.is_dir() and path.name in {"tests", "_tests"}]:
        shutil.rmtree(directory, ignore_errors=True)
    packages = []
    for information in sorted(lib.glob("*.dist-info")):
        for record in PIP_RECORDS:
            (information / record).unlink(missing_ok=True)
        packages.append(" ".join(information.name.removesuffix(".dist-info").split("-")))
    return packages


def _compile(build: Path) -> None:
    subprocess.run(
        [
            *(str(interpreter()), "-I", "-m", "compileall", "-q", "-j", "0"),
            *("--invalidation-mode", "unchecked-hash", "-s", str(build), str(build / "lib")),
        ],
        check=True,
    )


def make_build(source: Path, cache: Path, parent: Path) -> Path:
    """Make the build of `source` under `parent` unless it is there; `cache` keeps the dependencies between builds.

    It is made beside its place and renamed into it, so a build is there completely or not at all, and one that is there
    is never written to.
    """
    with tempfile.TemporaryDirectory(prefix="shim-sources-") as scratch:
        copied = Path(scratch)
        _copy_sources(source, copied)
        name = _build_id(copied)
        place = parent / name
        if place.exists():
            return place
        _write_revision(copied, name.rpartition("-")[2])
        with tempfile.TemporaryDirectory(prefix=".new-", dir=parent) as unfinished:
            build = Path(unfinished) / name
            (build / "bin").mkdir(parents=True)
            (build / "entry").mkdir()
            (build / "python").symlink_to(interpreter())
            packages = _install_packages(copied, _dependency_wheels(copied, cache), build / "lib")
            for program in PYTHON_PROGRAMS:
                shutil.copyfile(copied / "tools/entry.py", build / f"entry/{program}.py")
                launcher = [str(copied / "native" / name) for name in LAUNCHER_SOURCES]
                subprocess.run(["gcc", *LAUNCHER_FLAGS, "-o", str(build / f"bin/{program}"), *launcher], check=True)
            for program in STATIC_PROGRAMS:
                build_program(program, build / "bin", sources=copied / "native")
            about = {"build": name, **_describe_python(), "packages": packages}
            (build / "build.json").write_text(json.dumps(about, indent=1) + "\n")
            _compile(build)
            build.rename(place)
    return place
