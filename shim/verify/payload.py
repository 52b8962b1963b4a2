"""Where the payload program is: what containers of tests and of verification run (native/payload.c).

Installed it is beside the other programs of its build; in a source tree it is in build/programs, where `make` puts it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

NAME: Final = "shim-payload"
_ABOVE_PACKAGE: Final = Path(__file__).resolve().parents[2]


def find_payload() -> Path:
    """The payload program of this build or source tree, else the one on PATH; FileNotFoundError when there is none."""
    # <tree>/shim has <tree>/build; <build>/lib/shim has <build>/bin beside it.
    for candidate in (_ABOVE_PACKAGE / "build" / "programs" / NAME, _ABOVE_PACKAGE.parent / "bin" / NAME):
        if candidate.is_file():
            return candidate
    found = shutil.which(NAME)
    if found is None:
        raise FileNotFoundError(f"no {NAME}: it is installed with this package; in a source tree run `make native`")
    return Path(found)
