"""Every failure that can cross the wire: one root, one leaf for each status, one table between them.

A message is written without its class; `wire_text` adds the class the way containerd's own errors end
(`container not created: not found`), and `from_status` takes it off again.  Sources: protocol.md 1.2 and 1.3.
"""

from __future__ import annotations

from typing import ClassVar, Final


class ShimError(Exception):
    """Root of all errors of this package; itself answers as Unknown, whose text goes out as it is.

    `code` is the gRPC status number, `suffix` the class text at the end of the wire message.
    """

    code: ClassVar[int] = 2
    suffix: ClassVar[str] = ""

    @property
    def message(self) -> str:
        """The text without the class at its end."""
        return str(self)


class Canceled(ShimError):
    """The caller went away."""

    code = 1
    suffix = "context canceled"


class Unknown(ShimError):
    """A failure that fits no class, such as the runtime's own words."""


class InvalidArgument(ShimError):
    """The request itself is wrong; repeating it will not help."""

    code = 3
    suffix = "invalid argument"


class DeadlineExceeded(ShimError):
    """The time that the caller gave has passed."""

    code = 4
    suffix = "context deadline exceeded"


class NotFound(ShimError):
    """No such task, process, mount or activation."""

    code = 5
    suffix = "not found"


class AlreadyExists(ShimError):
    """The id is taken."""

    code = 6
    suffix = "already exists"


class PermissionDenied(ShimError):
    """The caller may not do this."""

    code = 7
    suffix = "permission denied"


class ResourceExhausted(ShimError):
    """A bound was reached: message size, queue length, space."""

    code = 8
    suffix = "resource exhausted"


class FailedPrecondition(ShimError):
    """The state does not allow the call now."""

    code = 9
    suffix = "failed precondition"


class Aborted(ShimError):
    """Given up because of a concurrent change."""

    code = 10
    suffix = "aborted"


class OutOfRange(ShimError):
    """Past the end, as a read after EOF."""

    code = 11
    suffix = "out of range"


class Unimplemented(ShimError):
    """This service, method or mount kind is not done here."""

    code = 12
    suffix = "not implemented"


class Internal(ShimError):
    """A bug, or a state that must not occur."""

    code = 13
    suffix = "internal"


class Unavailable(ShimError):
    """The other side cannot be reached now."""

    code = 14
    suffix = "unavailable"


class ConnectionClosed(Unavailable):
    """The connection was lost with calls open: the shim is gone (protocol.md 1.5)."""

    suffix = ""

    def __init__(self, message: str = "ttrpc: closed") -> None:
        super().__init__(message)


class DataLoss(ShimError):
    """Stored data is damaged."""

    code = 15
    suffix = "data loss"


class Unauthenticated(ShimError):
    """The peer is not who it must be."""

    code = 16
    suffix = "unauthenticated"


BY_CODE: Final[dict[int, type[ShimError]]] = {
    leaf.code: leaf
    for leaf in (
        Canceled,
        Unknown,
        InvalidArgument,
        DeadlineExceeded,
        NotFound,
        AlreadyExists,
        PermissionDenied,
        ResourceExhausted,
        FailedPrecondition,
        Aborted,
        OutOfRange,
        Unimplemented,
        Internal,
        Unavailable,
        DataLoss,
        Unauthenticated,
    )
}


def wire_text(error: ShimError) -> str:
    """The message as containerd's clients expect it: the text, then its class, once."""
    text = error.message
    if not error.suffix or text == error.suffix or text.endswith(f": {error.suffix}"):
        return text
    return f"{text}: {error.suffix}" if text else error.suffix


def from_status(code: int, text: str) -> ShimError:
    """The error that a status of the wire stands for, its class text taken off; unlisted codes become Unknown."""
    leaf = BY_CODE.get(code, Unknown)
    message = text.removesuffix(f": {leaf.suffix}") if leaf.suffix else text
    return leaf(message)
