"""One owned file descriptor.

A closed one is -1 from then on: the integer may belong to somebody else already, and must never be hit by mistake.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Self

import trio

if TYPE_CHECKING:
    from types import TracebackType


class OwnedFd:
    """A descriptor with one owner; a context manager that closes it."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        if fd < 0:
            raise ValueError(f"not a descriptor: {fd}")
        self._fd = fd

    def __repr__(self) -> str:
        return f"<OwnedFd {self._fd}>"

    @property
    def closed(self) -> bool:
        """Whether it was closed or given away."""
        return self._fd == -1

    def fileno(self) -> int:
        """The number.  Raises ClosedResourceError once closed or given away."""
        if self._fd == -1:
            raise trio.ClosedResourceError("descriptor is closed")
        return self._fd

    def detach(self) -> int:
        """Give the number away: the caller owns it now."""
        number = self.fileno()
        self._fd = -1
        return number

    def close(self) -> None:
        """Close it, waking with ClosedResourceError whoever waits for it in a Trio task; again is a no-op."""
        number, self._fd = self._fd, -1
        if number == -1:
            return
        if trio.lowlevel.in_trio_task():
            trio.lowlevel.notify_closing(number)
        os.close(number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
