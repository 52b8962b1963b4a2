"""What shimctl ends with: one line on stderr and an exit status.

| status | meaning |
|---|---|
| 125 | shimctl itself failed: its arguments, the shim, the runtime |
| 126 | the command is there and cannot be run |
| 127 | the command was not found in the container |
| any other | the container's own; 128 + signal when it was killed |

The runtime's words are looked at here and nowhere else, for they are the only sign of a command that is not there.
"""

from __future__ import annotations

from typing import Final

from shim.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, ShimError, Unavailable, wire_text

OWN_FAILURE: Final = 125
CANNOT_RUN: Final = 126
NOT_FOUND: Final = 127

_SIGNS: Final = (
    ("executable file not found", NOT_FOUND),
    ("no such file or directory", NOT_FOUND),
    ("permission denied", CANNOT_RUN),
    ("exec format error", CANNOT_RUN),
    ("is a directory", CANNOT_RUN),
)


def status_of_create(error: ShimError) -> int:
    """The exit status for a Create or Start that failed with `error`."""
    text = str(error).lower()
    if 'exec: "' in text:  # a missing working directory or mount point has the same words, but not these
        for sign, status in _SIGNS:
            if sign in text:
                return status
    return OWN_FAILURE


def line_of(error: BaseException) -> str:
    """The one line for stderr."""
    if isinstance(error, InvalidArgument | FailedPrecondition | DeadlineExceeded | Unavailable):
        text = error.message  # says all; the class would only end the advice in it
    elif isinstance(error, ShimError):
        text = wire_text(error)
    elif isinstance(error, OSError) and error.strerror:
        text = f"{error.strerror}: {error.filename}" if error.filename else str(error)
    else:
        text = f"{type(error).__name__}: {error}"
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())
