"""Standard input and output of the short commands, past Python's own layers: nothing is buffered, nothing is text."""

from __future__ import annotations

import os

from shim.boot.bootstrap import MAX_INPUT_BYTES

_CHUNK = 1 << 16


def read_stdin() -> bytes:
    """All of standard input, at most one byte more than is allowed; a terminal has nothing to say."""
    if os.isatty(0):
        return b""
    chunks: list[bytes] = []
    left = MAX_INPUT_BYTES + 1
    while left > 0 and (chunk := os.read(0, min(left, _CHUNK))):
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)


def write_stdout(data: bytes) -> None:
    """All of `data` to standard output.  Raises OSError, such as BrokenPipeError when nobody wants it any more."""
    write_fd(1, data)


def write_fd(fd: int, data: bytes) -> None:
    """All of `data` to `fd`."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
