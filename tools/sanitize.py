"""Run the tests of the native module with the address and undefined-behaviour sanitizers built in.

The tree is copied first, so that the module in use here is not replaced.  The sanitizers' libraries must be in the
process before anything else, hence LD_PRELOAD; as a pytest plugin this module takes the variable out of the environment
again before the first test, because children that the tests start are to be what they are without it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
COPIED: Final = ("shim", "native", "tests", "tools", "pyproject.toml")
TESTS: Final = ("tests/unit/kernel",)
# It starts a second interpreter that loads the module, which cannot do so without the libraries.
LEFT_OUT: Final = ("tests/unit/kernel/test_spawn.py::test_the_death_signal_comes_when_the_parent_ends",)
LIBRARIES: Final = ("libasan.so", "libubsan.so")
SANITIZERS: Final = {
    # The interpreter itself keeps what it allocated until it ends.
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
}


def pytest_configure() -> None:
    """The plugin's hook, in the process that has the sanitizers."""
    os.environ.pop("LD_PRELOAD", None)


def _library(name: str) -> str:
    done = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _copy(destination: Path) -> None:
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, destination / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copyfile(ROOT / name, destination / name)


def main() -> int:
    """Copy, build, and run the tests in a process that has the sanitizers; its exit status."""
    with tempfile.TemporaryDirectory(prefix="shim-sanitize-") as scratch:
        _copy(Path(scratch))
        build = [sys.executable, "native/build.py"]
        subprocess.run(build, cwd=scratch, env={**os.environ, "SHIM_NATIVE_SANITIZE": "1"}, check=True)
        left_out = [f"--deselect={test}" for test in LEFT_OUT]
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "tools.sanitize", *left_out, *TESTS],
            cwd=scratch,
            env={**os.environ, **SANITIZERS, "LD_PRELOAD": " ".join(map(_library, LIBRARIES))},
            check=False,
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
