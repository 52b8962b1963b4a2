"""The options that the transforms `mkdir` and `mkfs` consume (protocol.md 9.7).

    X-containerd.mkdir.path=DIR[:OCTALMODE[:UID:GID]]     one directory each, in order
    X-containerd.mkfs.size=SIZE  .fs=FS  .uuid=UUID       one image, the mount's source

Refuses with InvalidArgument every other key, a key given twice, fields that are missing or too many, and modes, ids,
sizes, kinds and UUIDs that are none; also a transform that is given nothing to do.  Paths are judged where the allowed
roots are known.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import attrs

from shim.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable

MKDIR_PREFIX: Final = "X-containerd.mkdir."
MKFS_PREFIX: Final = "X-containerd.mkfs."
DEFAULT_MODE: Final = 0o700
DEFAULT_FS: Final = "ext4"
LARGEST_SIZE: Final = (1 << 63) - 1
SMALLEST_SIZE: Final = {"ext2": 256 << 10, "ext3": 2 << 20, "ext4": 256 << 10, "xfs": 300 << 20}
"""By kind, in bytes: below it mkfs fails, or makes something else (tried with e2fsprogs 1.47 and xfsprogs 6.1)."""

_MODE: Final = re.compile(r"0?[0-7]{3,4}")
_ID: Final = re.compile(r"[0-9]{1,10}")
_SIZE: Final = re.compile(r"([0-9]{1,19})(?:\.([0-9]{1,6}))? ?([kmgtp]?)i?b?", re.IGNORECASE | re.ASCII)
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


@attrs.frozen
class DirectoryRequest:
    """A directory to be there; an owner of None means our own on a new one, any on an old one."""

    path: str
    mode: int = DEFAULT_MODE
    owner: tuple[int, int] | None = None


@attrs.frozen
class ImageRequest:
    """An image to be made if it is not there: bytes, kind of file system, UUID or empty."""

    size: int
    fs: str = DEFAULT_FS
    uuid: str = ""


def parse_mkdir(options: Iterable[str]) -> tuple[tuple[DirectoryRequest, ...], tuple[str, ...]]:
    """The directories, and the options that are left.  Raises InvalidArgument."""
    wanted: list[DirectoryRequest] = []
    left: list[str] = []
    for option in options:
        if not option.startswith(MKDIR_PREFIX):
            left.append(option)
            continue
        key, _, value = option.removeprefix(MKDIR_PREFIX).partition("=")
        if key != "path":
            raise InvalidArgument(f"mount option {MKDIR_PREFIX}{key} is unknown")
        wanted.append(_directory(value, option))
    if not wanted:
        raise InvalidArgument(f"mkdir without {MKDIR_PREFIX}path")
    return tuple(wanted), tuple(left)


def parse_mkfs(options: Iterable[str]) -> tuple[ImageRequest, tuple[str, ...]]:
    """The image, and the options that are left.  Raises InvalidArgument."""
    given: dict[str, str] = {}
    left: list[str] = []
    for option in options:
        if not option.startswith(MKFS_PREFIX):
            left.append(option)
            continue
        key, _, value = option.removeprefix(MKFS_PREFIX).partition("=")
        if key not in {"size", "fs", "uuid"}:
            raise InvalidArgument(f"mount option {MKFS_PREFIX}{key} is unknown")
        if key in given:
            raise InvalidArgument(f"mount option {MKFS_PREFIX}{key} is given twice")
        given[key] = value
    fs = given.get("fs", DEFAULT_FS)
    if fs not in SMALLEST_SIZE:
        raise InvalidArgument(f"mount option {MKFS_PREFIX}fs={fs}: none of {', '.join(SMALLEST_SIZE)}")
    uuid = given.get("uuid", "")
    if "uuid" in given and not _UUID.fullmatch(uuid):
        raise InvalidArgument(f"mount option {MKFS_PREFIX}uuid={uuid} is no UUID")
    if "size" not in given:
        raise InvalidArgument(f"mkfs without {MKFS_PREFIX}size")
    size = parse_size(given["size"])
    if not SMALLEST_SIZE[fs] <= size <= LARGEST_SIZE:
        raise InvalidArgument(f"mount option {MKFS_PREFIX}size={given['size']}: no size of an {fs} image")
    return ImageRequest(size, fs, uuid), tuple(left)


def parse_size(text: str) -> int:
    """Bytes; the units k, m, g, t and p count by 1024, with or without `i` and `b`.  Raises InvalidArgument."""
    found = _SIZE.fullmatch(text)
    if found is None:
        raise InvalidArgument(f"{text!r} is no size")
    whole, fraction, unit = found.groups()
    scale: int = 1024 ** " kmgtp".index(unit.lower() or " ")
    return int(whole) * scale + (int(fraction) * scale // 10 ** len(fraction) if fraction else 0)


def _directory(value: str, option: str) -> DirectoryRequest:
    path, *fields = value.split(":")
    if len(fields) not in {0, 1, 3}:
        raise InvalidArgument(f"mount option {option}: not DIR[:MODE[:UID:GID]]")
    if fields and not _MODE.fullmatch(fields[0]):
        raise InvalidArgument(f"mount option {option}: {fields[0]!r} is no octal mode")
    if not all(_ID.fullmatch(field) and int(field) < (1 << 32) - 1 for field in fields[1:]):
        raise InvalidArgument(f"mount option {option}: owner and group are numbers")
    mode = int(fields[0], 8) if fields else DEFAULT_MODE
    owner = (int(fields[1]), int(fields[2])) if len(fields) == 3 else None
    return DirectoryRequest(path, mode, owner)
