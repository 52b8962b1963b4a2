"""A runtime that records how it was run and can be made to fail, in front of the real one: `tests/fakes/runtime.sh`."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

import attrs

from tests.system.harness.subject import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT: Final = REPOSITORY / "tests" / "fakes" / "runtime.sh"


@attrs.frozen
class Runtime:
    """One copy of the script in a directory of its own."""

    directory: Path

    @property
    def binary(self) -> str:
        """For `binary_name` of the options."""
        return str(self.directory / "runtime")

    def fail_create(self, log: bytes, output: bytes = b"") -> None:
        """From now on `create` fails after it wrote `log` to its log and `output` to stderr."""
        (self.directory / "fail-create").write_bytes(log)
        (self.directory / "fail-output").write_bytes(output)

    def work(self) -> None:
        """From now on every command works."""
        (self.directory / "fail-create").unlink()

    def recorded(self, what: str) -> str:
        """What was recorded of `argv`, `env` or `fds`, all runs together."""
        return (self.directory / what).read_text(errors="replace")


def make_runtime(directory: Path) -> Runtime:
    """A fresh copy in a new directory."""
    directory.mkdir()
    shutil.copy(SCRIPT, directory / "runtime")
    return Runtime(directory)
