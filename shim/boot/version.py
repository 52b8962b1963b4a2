"""What the program says of itself: its names, its version, and the task API that it speaks."""

from __future__ import annotations

import sys
from typing import Final

PROGRAM: Final = "containerd-shim-trio-v2"
RUNTIME_NAME: Final = "io.containerd.trio.v2"
VERSION: Final = "0.1.0"
"""Equal to the version in pyproject.toml (a test compares them); package metadata is too slow to ask for here."""
REVISION: Final = ""
"""The build (tools/make_build.py), a hash of all that went in; filled in by it, empty in a work tree."""
API_VERSION: Final = 3
"""The newest task API served; version 2 is served beside it (protocol.md 2.4)."""


def version_text() -> str:
    """The lines that `-v` prints."""
    return (
        f"{PROGRAM}:\n"
        f"  Version:  {VERSION}\n"
        f"  Revision: {REVISION or 'unknown'}\n"
        f"  Python:   {sys.version.split()[0]}\n"
    )
