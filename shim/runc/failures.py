"""Why a runtime command failed, in the runtime's own words (protocol.md 8.4).

The runtime appends JSON lines to one log for all its runs, several at a time.  What was there before the command began
is not its reason, so callers pass only the part that came later; junk, half lines and other levels are passed over.
The only module that reads the runtime's texts.
"""

from __future__ import annotations

import json
import re
from typing import Final

from shim.errors import NotFound, ShimError, Unknown

TEXT_LIMIT: Final = 16 * 1024
"""Characters of runtime text in one error: enough for any real reason, far below a ttrpc message."""

_FINISHED: Final = ("process already finished", "container not running", "is not running", "no such process")
_ABSENT: Final = re.compile(r"does not exist|error opening file \S+/status\W.*no such file or directory")
"""runc's words for a container that it does not know, and crun's."""
_MOST_JUNK: Final = 32
"""Beginnings of an object in one line that turn out to be none: each costs a look at all that is before it."""
_DECODER: Final = json.JSONDecoder()


class RuntimeFailure(Unknown):
    """The runtime ended with a status that is not 0; the text is its reason."""


def last_error(log: bytes) -> str | None:
    """The message of the last entry of level error, trimmed; None where there is none.

    Entries are looked for line by line; a line that holds several objects, or junk before one, is searched as well, up
    to a bound: junk must not keep the caller's loop busy.
    """
    for line in reversed(log.decode("utf-8", "replace").splitlines()):
        found = None
        junk_left = _MOST_JUNK
        position = line.find("{")
        while position >= 0 and junk_left > 0:
            try:
                entry, end = _DECODER.raw_decode(line, position)
            except (ValueError, RecursionError):
                end = position + 1
                junk_left -= 1
            else:
                if isinstance(entry, dict) and entry.get("level") == "error" and isinstance(entry.get("msg"), str):
                    found = entry["msg"].strip()
            position = line.find("{", end)
        if found is not None:
            return bounded(found)
    return None


def bounded(text: str) -> str:
    """`text`, cut in its middle when it is longer than TEXT_LIMIT: the reason stands at either end."""
    if len(text) <= TEXT_LIMIT:
        return text
    half = TEXT_LIMIT // 2
    return f"{text[:half]} ... {len(text) - 2 * half} characters left out ... {text[-half:]}"


def describe(binary: str, status: int, output: bytes) -> str:
    """The words for a failed command that logged no reason."""
    return bounded(
        f"{binary} did not terminate successfully: exit status {status}: {output.decode('utf-8', 'replace').strip()}"
    )


def of_command(prefix: str, binary: str, status: int, output: bytes, log: bytes | OSError) -> RuntimeFailure:
    """The failure of a command whose reason stands in its log, else in its output."""
    if isinstance(log, OSError):
        reason = f"unable to retrieve OCI runtime error ({log}): {describe(binary, status, output)}"
    else:
        reason = last_error(log) or describe(binary, status, output)
    return RuntimeFailure(f"{prefix}: {reason}")


def of_kill(text: str) -> ShimError:
    """The failure of `kill` from the process error's text; runc's and crun's words for "gone" are NotFound."""
    lowered = text.lower()
    if any(words in lowered for words in _FINISHED):
        return NotFound("process already finished")
    if _ABSENT.search(lowered):
        return NotFound("no such container")
    return RuntimeFailure(f"unknown error after kill: {text}")
