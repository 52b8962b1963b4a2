"""Mount options in text, sorted into what the kernel takes them as (protocol.md 9.7, last paragraph).

Flags are decided left to right, the later one wins; what no table knows is data for the file system.  The numbers are
the kernel's own and do not differ between machines.  Refuses `X-containerd.` options: they are the mount manager's, and
one that is left over at mount time means that a transform was not done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from shim.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable

MS_RDONLY: Final = 0x1
MS_NOSUID: Final = 0x2
MS_NODEV: Final = 0x4
MS_NOEXEC: Final = 0x8
MS_SYNCHRONOUS: Final = 0x10
MS_REMOUNT: Final = 0x20
MS_MANDLOCK: Final = 0x40
MS_DIRSYNC: Final = 0x80
MS_NOATIME: Final = 0x400
MS_NODIRATIME: Final = 0x800
MS_BIND: Final = 0x1000
MS_REC: Final = 0x4000
MS_UNBINDABLE: Final = 1 << 17
MS_PRIVATE: Final = 1 << 18
MS_SLAVE: Final = 1 << 19
MS_SHARED: Final = 1 << 20
MS_RELATIME: Final = 1 << 21
MS_STRICTATIME: Final = 1 << 24

PER_MOUNT: Final = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME | MS_NODIRATIME | MS_RELATIME
"""Flags of the mount rather than of the file system: a bind takes them only in a second call."""

MANAGER_PREFIX: Final = "X-containerd."
"""What the options that a transform or handler consumes begin with; none of them is for the kernel."""

_SET: Final = {
    "bind": MS_BIND,
    "defaults": 0,
    "dirsync": MS_DIRSYNC,
    "mand": MS_MANDLOCK,
    "noatime": MS_NOATIME,
    "nodev": MS_NODEV,
    "nodiratime": MS_NODIRATIME,
    "noexec": MS_NOEXEC,
    "nosuid": MS_NOSUID,
    "rbind": MS_BIND | MS_REC,
    "relatime": MS_RELATIME,
    "remount": MS_REMOUNT,
    "ro": MS_RDONLY,
    "strictatime": MS_STRICTATIME,
    "sync": MS_SYNCHRONOUS,
}
_CLEAR: Final = {
    "async": MS_SYNCHRONOUS,
    "atime": MS_NOATIME,
    "dev": MS_NODEV,
    "diratime": MS_NODIRATIME,
    "exec": MS_NOEXEC,
    "nomand": MS_MANDLOCK,
    "norelatime": MS_RELATIME,
    "nostrictatime": MS_STRICTATIME,
    "rw": MS_RDONLY,
    "suid": MS_NOSUID,
}
_PROPAGATION: Final = {
    "private": MS_PRIVATE,
    "rprivate": MS_PRIVATE | MS_REC,
    "shared": MS_SHARED,
    "rshared": MS_SHARED | MS_REC,
    "slave": MS_SLAVE,
    "rslave": MS_SLAVE | MS_REC,
    "unbindable": MS_UNBINDABLE,
    "runbindable": MS_UNBINDABLE | MS_REC,
}


@attrs.frozen
class MountOptions:
    """Options as the kernel takes them.

    `cleared` are flags that the text turned off in so many words; `propagation` is one call's flags or 0; `data` keeps
    its order.  `uidmap` and `gidmap` are the texts after the `=`, empty if not given.
    """

    flags: int = 0
    cleared: int = 0
    propagation: int = 0
    data: tuple[str, ...] = ()
    loop: bool = False
    direct_io: bool = False
    uidmap: str = ""
    gidmap: str = ""

    @property
    def read_only(self) -> bool:
        """Whether the mount is to be read-only."""
        return bool(self.flags & MS_RDONLY)

    @property
    def is_remount(self) -> bool:
        """Whether this changes a mount that is there rather than adding one."""
        return bool(self.flags & MS_REMOUNT)

    @property
    def remount_bind(self) -> int:
        """The per-mount flags that a bind needs a second call for; 0 if it needs none."""
        return self.flags & PER_MOUNT if self.flags & MS_BIND and not self.is_remount else 0


def parse_options(options: Iterable[str]) -> MountOptions:
    """Sort `options`; InvalidArgument for a leftover of the mount manager."""
    flags = cleared = propagation = 0
    data: list[str] = []
    special = {"loop": "", "direct-io": "", "uidmap": "", "gidmap": ""}
    for option in options:
        name, separator, value = option.partition("=")
        if option in _SET:
            flags |= _SET[option]
            cleared &= ~_SET[option]
        elif option in _CLEAR:
            flags &= ~_CLEAR[option]
            cleared |= _CLEAR[option]
        elif option in _PROPAGATION:
            propagation = _PROPAGATION[option]
        elif option in {"loop", "direct-io"}:
            special[option] = "yes"
        elif separator and name in {"uidmap", "gidmap"}:
            special[name] = value
        elif option.startswith(MANAGER_PREFIX):
            raise InvalidArgument(f"mount option {name} belongs to a transform that was not applied")
        elif option:
            data.append(option)
    if special["direct-io"] and not special["loop"]:
        data.append("direct-io")
    return MountOptions(
        flags=flags,
        cleared=cleared,
        propagation=propagation,
        data=tuple(data),
        loop=bool(special["loop"]),
        direct_io=bool(special["loop"] and special["direct-io"]),
        uidmap=special["uidmap"],
        gidmap=special["gidmap"],
    )
