"""The mount table of a process, /proc/PID/mountinfo.

A line is: id, parent id, device, root within the file system, mount point, options of the mount, any number of tagged
fields, a dash, type, source, options of the file system.  Space, tab, newline, backslash and `#` in a field are written
as three octal digits; bytes that are no UTF-8 survive the way Python's file names do.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable

_ESCAPE: Final = re.compile(rb"\\([0-7]{3})")


@attrs.frozen
class MountEntry:
    """One line of the table; `device` is `major:minor`."""

    id: int
    parent: int
    device: str
    root: str
    mount_point: str
    options: tuple[str, ...]
    tags: tuple[str, ...]
    type: str
    source: str
    super_options: tuple[str, ...]


def parse_mountinfo(raw: bytes) -> list[MountEntry]:
    """All entries of a table, in its order.  Raises ValueError for what is no mountinfo."""
    return [_entry(line) for line in raw.split(b"\n") if line]


def read_mountinfo(pid: int | None = None) -> list[MountEntry]:
    """The table of `pid`'s mount namespace, or of ours.  Raises OSError."""
    with open(f"/proc/{'self' if pid is None else pid}/mountinfo", "rb") as stream:
        return parse_mountinfo(stream.read())


def at_or_below(entries: Iterable[MountEntry], path: str) -> list[MountEntry]:
    """Those mounted at `path` (absolute, resolved, no slash at its end) or inside it."""
    return [entry for entry in entries if entry.mount_point == path or entry.mount_point.startswith(f"{path}/")]


def _entry(line: bytes) -> MountEntry:
    fields = line.split(b" ")
    try:
        dash = fields.index(b"-", 6)
        number, parent, device, root, point, options = fields[:6]
        kind, source, super_options = fields[dash + 1 : dash + 4]
        return MountEntry(
            id=int(number),
            parent=int(parent),
            device=device.decode(),
            root=_text(root),
            mount_point=_text(point),
            options=tuple(_text(options).split(",")),
            tags=tuple(_text(tag) for tag in fields[6:dash]),
            type=_text(kind),
            source=_text(source),
            super_options=tuple(_text(super_options).split(",")),
        )
    except ValueError as error:
        raise ValueError(f"not a line of mountinfo: {line!r}") from error


def _text(field: bytes) -> str:
    return os.fsdecode(_ESCAPE.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), field) if b"\\" in field else field)
