"""The identifier rule: what may be a namespace, a task id or an exec id (protocol.md 5.2).

An identifier becomes a file name, a cgroup name and an argument of the runtime, so everything that could mean
something else there (a slash, `..`, a leading dash, a newline, nothing at all) is refused before it is used.
Refuses nothing else: whether an identifier is *taken* is not asked here.
"""

from __future__ import annotations

import re
from typing import Final

from shim.errors import InvalidArgument

MAX_LENGTH: Final = 76
_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*")


def check_identifier(text: str, what: str) -> None:
    """Raise InvalidArgument, naming `what` (such as "namespace"), unless `text` is an identifier.

    1 to 76 characters: runs of ASCII letters and digits, one `.`, `_` or `-` between two runs.
    """
    if not text:
        raise InvalidArgument(f"{what} must not be empty")
    if len(text) > MAX_LENGTH:
        raise InvalidArgument(
            f"{what} {_shown(text)} is no identifier: it has {len(text)} characters, at most {MAX_LENGTH} are allowed"
        )
    if not _IDENTIFIER.fullmatch(text):
        raise InvalidArgument(
            f"{what} {_shown(text)} is no identifier: letters and digits, with single dots, underscores or dashes "
            "between them"
        )


def _shown(text: str) -> str:
    """`text` quoted, bounded and on one line, fit for a log."""
    return ascii(text if len(text) <= MAX_LENGTH else f"{text[:MAX_LENGTH]}...")
