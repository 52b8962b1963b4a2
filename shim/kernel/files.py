"""Small files, written so that a reader sees the old or the new one, and read so that no size can hurt."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, Final

from shim.errors import DataLoss

if TYPE_CHECKING:
    from os import PathLike

TEXT_LIMIT: Final = 1 << 20


def write_atomic(path: str | PathLike[str], data: bytes, *, mode: int = 0o600) -> None:
    """Replace the file at `path` by `data` with exactly `mode`, whatever the umask.

    Written under another name in the same directory and renamed.  Survives our death, not the machine's: there is no
    fsync, for what is written so lives as long as a container does.  Raises OSError, and leaves nothing behind then.
    """
    directory, name = os.path.split(os.fspath(path))
    temporary = os.path.join(directory, f".{name}.{secrets.token_hex(4)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.fchmod(fd, mode)
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read_bounded(path: str | PathLike[str], *, limit: int = TEXT_LIMIT) -> bytes:
    """The whole file.  Raises DataLoss if it holds more than `limit` bytes, OSError if it cannot be read."""
    with open(path, "rb") as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise DataLoss(f"{os.fspath(path)} is longer than {limit} bytes")
    return data


def read_text(path: str | PathLike[str], *, limit: int = TEXT_LIMIT) -> str:
    """The whole file as UTF-8 text; DataLoss if it is none or too long, OSError if it cannot be read."""
    try:
        return read_bounded(path, limit=limit).decode()
    except UnicodeDecodeError as error:
        raise DataLoss(f"{os.fspath(path)} is not text") from error
