"""The socket to which a runtime sends the master of a new terminal (protocol.md 7.5).

It lives in a directory of its own, 0700, whose path is short wherever the bundle is: a socket's path has 107 bytes at
most.  One connection, one message; socket and directory are gone as soon as it came.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from typing import TYPE_CHECKING, Final, Self

import trio

from shim.errors import Unknown
from shim.kernel.pty import receive_master

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shim.kernel.fds import OwnedFd

PATH_LIMIT: Final = 107
_PREFIX: Final = "pty"
_NAME: Final = "s"
_RANDOM: Final = 8


class ConsoleSocket:
    """A listening console socket."""

    def __init__(self, directory: str) -> None:
        self._directory: Final = directory
        self.path: Final = os.path.join(directory, _NAME)
        self._listener = trio.SocketListener(trio.socket.from_stdlib_socket(_listen(self.path)))

    @classmethod
    def open(cls) -> Self:
        """Listen in a new directory; Unknown when there is no place for it."""
        refusals: list[str] = []
        for base in _places():
            try:
                directory = tempfile.mkdtemp(prefix=_PREFIX, dir=base)
            except OSError as error:
                refusals.append(str(error))
                continue
            try:
                return cls(directory)
            except OSError as error:
                refusals.append(str(error))
                shutil.rmtree(directory, ignore_errors=True)
        raise Unknown(f"failed to create console socket: {'; '.join(refusals) or 'no directory with a short path'}")

    async def receive(self) -> OwnedFd:
        """The terminal's master.  Waits for ever; InvalidArgument for what is none.  Closes the socket."""
        try:
            async with await self._listener.accept() as connection:
                return await receive_master(connection)
        finally:
            self.close()

    def close(self) -> None:
        """Stop listening and take socket and directory away; again is a no-op."""
        self._listener.socket.close()
        shutil.rmtree(self._directory, ignore_errors=True)


def _places() -> Iterator[str]:
    for base in (os.environ.get("TMPDIR", ""), "/run", "/tmp"):
        longest = os.path.join(base, _PREFIX + "x" * _RANDOM, _NAME)
        if base.startswith("/") and len(os.fsencode(longest)) <= PATH_LIMIT:
            yield base


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.bind(path)
        listener.listen(1)
    except BaseException:
        listener.close()
        raise
    return listener
