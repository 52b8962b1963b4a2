"""A logger program as `binary://` starts it: `tests/fakes/logger.py`, told by its arguments how to behave."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Final
from urllib.parse import quote

import attrs

SCRIPT: Final = Path(__file__).parent / "logger.py"


@attrs.frozen
class Report:
    """How a logger found itself: its arguments, its environment, what its descriptors were open on, its directory."""

    argv: list[str]
    environment: dict[str, str]
    descriptors: dict[str, str]
    directory: str


@attrs.frozen
class Logger:
    """The program as a file of its own in a directory of the test."""

    path: Path

    def uri(self, *, scheme: str = "binary", **arguments: object) -> str:
        """Its URI; each argument is a behaviour of the script, in this order."""
        query = "&".join(f"{name}={quote(str(value), safe='/')}" for name, value in arguments.items())
        return f"{scheme}://{quote(str(self.path))}?{query}"


def make_logger(path: Path) -> Logger:
    """A new program at `path`; a script cannot be given to `binary://` without one."""
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -S {shlex.quote(str(SCRIPT))} "$@"\n')
    path.chmod(0o755)
    return Logger(path)


def read_report(path: Path) -> Report:
    """What a logger with `report=PATH` wrote before it was ready."""
    found = json.loads(path.read_text())
    return Report(found["argv"], found["environment"], found["descriptors"], found["directory"])
