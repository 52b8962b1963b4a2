"""Detached mounts: complete before anybody can see them, gone without a trace when they are closed.

The way to what mount(2) cannot say: an id mapping, which a mount takes only before it is attached, and options longer
than one page, which go one by one.  Each option is limited to 255 bytes (measured); what the kernel says about one that
it refuses is part of the error.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Self

from shim.errors import InvalidArgument
from shim.kernel import native
from shim.kernel.fds import OwnedFd
from shim.model.id_maps import as_namespace_map, parse_id_map
from shim.model.mount_options import (
    MS_DIRSYNC,
    MS_MANDLOCK,
    MS_NOATIME,
    MS_NODEV,
    MS_NODIRATIME,
    MS_NOEXEC,
    MS_NOSUID,
    MS_RDONLY,
    MS_REC,
    MS_STRICTATIME,
    MS_SYNCHRONOUS,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shim.model.mount_options import MountOptions

LONGEST_VALUE: Final = 255
_ATTR_IDMAP: Final = 0x100000
_ATTRIBUTES: Final = {
    MS_RDONLY: 0x1,
    MS_NOSUID: 0x2,
    MS_NODEV: 0x4,
    MS_NOEXEC: 0x8,
    MS_NOATIME: 0x10,
    MS_STRICTATIME: 0x20,
    MS_NODIRATIME: 0x80,
}
_SUPER_FLAGS: Final = {MS_RDONLY: "ro", MS_SYNCHRONOUS: "sync", MS_DIRSYNC: "dirsync", MS_MANDLOCK: "mand"}


def mount_attributes(flags: int) -> int:
    """The MOUNT_ATTR_* for flags of mount(2), those of the mount only."""
    return sum(attribute for flag, attribute in _ATTRIBUTES.items() if flags & flag)


def fits_value(text: str) -> bool:
    """Whether the kernel takes this as one option's text."""
    return len(os.fsencode(text)) <= LONGEST_VALUE


def open_id_mapping(options: MountOptions) -> OwnedFd:
    """A user namespace that maps as the options say.  Raises InvalidArgument, OSError."""
    return OwnedFd(
        native.userns_open(
            as_namespace_map(parse_id_map(options.uidmap, "uidmap")),
            as_namespace_map(parse_id_map(options.gidmap, "gidmap")),
        )
    )


def copy_mapped(path: str, mapping: OwnedFd, *, recursive: bool = False) -> OwnedFd:
    """A detached copy of the mount at `path` whose ids are mapped.  Raises OSError."""
    tree = OwnedFd(native.tree_copy(path, recursive=recursive))
    try:
        native.tree_change(tree.fileno(), set_flags=_ATTR_IDMAP, recursive=recursive, userns_fd=mapping.fileno())
    except BaseException:
        tree.close()
        raise
    return tree


def bind_mapped(source: str, options: MountOptions, place: OwnedFd) -> None:
    """Bind `source` with mapped ids.  Raises InvalidArgument, OSError."""
    with (
        open_id_mapping(options) as mapping,
        copy_mapped(source, mapping, recursive=bool(options.flags & MS_REC)) as tree,
    ):
        native.tree_attach(tree.fileno(), place.fileno())


def mount_mapped(source: str, kind: str, options: MountOptions, place: OwnedFd) -> None:
    """Mount a file system with mapped ids.  Raises InvalidArgument, OSError."""
    with open_id_mapping(options) as mapping, Context(kind, source, options.flags) as context:
        context.set_all(options.data)
        with context.create(options.flags) as tree:
            native.tree_change(tree.fileno(), set_flags=_ATTR_IDMAP, userns_fd=mapping.fileno())
            native.tree_attach(tree.fileno(), place.fileno())


class Context:
    """A file system being configured; a context manager."""

    def __init__(self, kind: str, source: str, flags: int) -> None:
        self.kind: Final = kind
        self._fd: Final = OwnedFd(native.context_open(kind))
        try:
            if source:
                self.set("source", source)
            for flag, name in _SUPER_FLAGS.items():
                if flags & flag:
                    self.set(name, None)
        except BaseException:
            self._fd.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._fd.close()

    def set(self, key: str, value: str | int | None) -> None:
        """One option: a flag (None), a text, or a file by its descriptor.  Raises InvalidArgument, OSError."""
        if isinstance(value, str) and not fits_value(value):
            raise InvalidArgument(f"option {key} of the {self.kind} mount is longer than {LONGEST_VALUE} bytes")
        try:
            native.context_set(self._fd.fileno(), key, value)
        except OSError as error:
            raise self._explained(error) from error

    def set_all(self, options: Iterable[str]) -> None:
        """Options as text, `key` or `key=value`.  Raises InvalidArgument, OSError."""
        for option in ",".join(options).split(","):
            key, separator, value = option.partition("=")
            if option:
                self.set(key, value if separator else None)

    def create(self, flags: int) -> OwnedFd:
        """Make it; the detached mount, with the flags of mount(2) that are the mount's.  Raises OSError."""
        try:
            return OwnedFd(native.context_create(self._fd.fileno(), mount_attributes(flags)))
        except OSError as error:
            raise self._explained(error) from error

    def _explained(self, error: OSError) -> OSError:
        try:
            said = os.read(self._fd.fileno(), 4096).decode(errors="replace")
        except OSError:
            return error
        reason = said.removeprefix("e ").strip()
        return OSError(error.errno, f"{error.strerror} ({reason})")
