"""What no other checker looks at: how long a file is, and what a change fragment looks like.

A module that grows past 400 lines holds two ideas and is asking to be split.  Each file of `changes/` is one visible
change: `<kind>-<words>.md`, one paragraph of whole sentences, which a release puts together.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
LONGEST: Final = 400
MEASURED: Final = ("shim/**/*.py", "native/*.c", "native/*.h", "native/*.py", "tools/*.py")
KINDS: Final = ("added", "changed", "fixed", "removed", "security")
FRAGMENT_NAME: Final = re.compile(rf"({'|'.join(KINDS)})-[a-z0-9]+(-[a-z0-9]+)*\.md")
FRAGMENT_WIDTH: Final = 120


def long_files(root: Path) -> list[str]:
    """Complaints about files that are too long; generated modules are not measured."""
    found = []
    for pattern in MEASURED:
        for path in sorted(root.glob(pattern)):
            if path.stem.endswith("_pb2"):
                continue
            lines = len(path.read_text(encoding="utf-8").splitlines())
            if lines > LONGEST:
                found.append(f"{path.relative_to(root)}: {lines} lines, at most {LONGEST}: split it")
    return found


def bad_fragments(root: Path) -> list[str]:
    """Complaints about files of `changes/`."""
    found = []
    for path in sorted((root / "changes").iterdir()):
        name = path.relative_to(root)
        if path.name == "README.md":
            continue
        if not FRAGMENT_NAME.fullmatch(path.name):
            found.append(f"{name}: the name must be <{'|'.join(KINDS)}>-<words>.md")
            continue
        text = path.read_text(encoding="utf-8")
        if not text.endswith(".\n") or not text[:1].isupper() or "\n\n" in text:
            found.append(f"{name}: must be one paragraph of sentences")
        if any(len(line) > FRAGMENT_WIDTH for line in text.splitlines()):
            found.append(f"{name}: has a line longer than {FRAGMENT_WIDTH}")
    return found


def main() -> int:
    """Print every complaint; 1 when there is one."""
    complaints = long_files(ROOT) + bad_fragments(ROOT)
    for complaint in complaints:
        print(complaint)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
