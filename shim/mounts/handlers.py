"""How each kind of mount is made: one function for each that is not simply the kernel's own.

A handler gets a mount that is plain (no transform, no template, no option of the manager) and the place, open, and
makes it or leaves nothing behind.  `make` is the whole of it for one mount: find the place as if the root were "/", let
the handler do it, then the second calls that flags and propagation need.  All of it blocks: for a worker thread.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from shim.errors import InvalidArgument
from shim.kernel import erofs, overlay, trees
from shim.kernel import mounts as kernel
from shim.kernel.loops import LoopDevice, open_loop
from shim.model.id_maps import parse_id_map
from shim.model.mount_options import MS_BIND, MountOptions, parse_options
from shim.model.mount_types import check_plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shim.kernel.fds import OwnedFd
    from shim.model.mounts import Mount

LOOP: Final = "loop"
MANAGED: Final = frozenset({erofs.KIND, LOOP})
"""Kinds that are more than a call of mount(2): a caller that claims nothing has them made for it."""
FUSE: Final = ("fuse.", "fuse3.")
"""How the kinds begin that a helper program makes."""


class Handler(Protocol):
    """Makes a mount of one kind on what `place` has open; OSError, or a ShimError, after which nothing is left."""

    def __call__(self, mount: Mount, options: MountOptions, place: OwnedFd) -> None: ...


@attrs.frozen
class Made:
    """A mount that was made.

    `point` is its resolved place, empty where nothing was added to the mount table.  `root` holds exactly this mount,
    whatever is mounted over it.  `device` is a loop device that lives until it is closed or, if it is in use by then,
    with its last user.
    """

    point: str
    root: OwnedFd | None = None
    device: LoopDevice | None = None

    @property
    def name(self) -> str:
        """A path that means this mount; with `root`, only until that is closed."""
        if self.device is not None:
            return self.device.path
        return self.point if self.root is None else f"/proc/{os.getpid()}/fd/{self.root.fileno()}"

    def close(self) -> None:
        """Let go of what is held."""
        if self.root is not None:
            self.root.close()
        if self.device is not None:
            self.device.fd.close()


def make_bind(mount: Mount, options: MountOptions, place: OwnedFd) -> None:
    """A bind, of ids as they are or mapped."""
    if options.uidmap:
        trees.bind_mapped(mount.source, options, place)
    else:
        kernel.attach(mount.source, mount.type, options, place)


def make_overlay(mount: Mount, options: MountOptions, place: OwnedFd) -> None:
    """An overlay, its list of layers as long as it may be."""
    overlay.mount_overlay(mount.source, options, place)


def make_erofs(mount: Mount, options: MountOptions, place: OwnedFd) -> None:
    """An EROFS image."""
    erofs.mount_erofs(mount.source, options, place)


def make_generic(mount: Mount, options: MountOptions, place: OwnedFd) -> None:
    """Any kind that the kernel knows, before its source a loop device if asked for."""
    kernel.attach_file_or_device(mount.source, mount.type, options, place)


HANDLERS: Final[Mapping[str, Handler]] = {
    "bind": make_bind,
    overlay.KIND: make_overlay,
    erofs.KIND: make_erofs,
}


def handler_for(kind: str, options: MountOptions) -> Handler:
    """The function that makes this kind; binds are known by their options, whatever their type."""
    return make_bind if options.flags & MS_BIND else HANDLERS.get(kind, make_generic)


def check(mount: Mount) -> MountOptions:
    """The options of a plain mount, refused now as far as that needs no mount to be made.

    Raises InvalidArgument or Unimplemented.
    """
    check_plain(mount)
    options = parse_options(mount.options)
    if bool(options.uidmap) != bool(options.gidmap):
        raise InvalidArgument(f"{mount.type} mount: uidmap and gidmap go together")
    if options.uidmap:
        parse_id_map(options.uidmap, "uidmap")
        parse_id_map(options.gidmap, "gidmap")
        if options.is_remount:
            raise InvalidArgument(f"{mount.type} mount: ids of a mount that is there cannot be mapped")
    elif mount.type == overlay.KIND and not options.flags & MS_BIND:
        overlay.choose_way(options)
    return options


def make(mount: Mount, options: MountOptions, rootfs: str, *, hold: bool = False) -> Made:
    """Make one mount at its target inside `rootfs`, and keep it open with `hold`.

    Raises OSError and ShimError, after which nothing is left.
    """
    if mount.type == LOOP:
        device = open_loop(mount.source, read_only=options.read_only, direct_io=options.direct_io)
        return Made("", device=device)
    with kernel.open_target(rootfs, mount.target) as place:
        point = os.readlink(kernel.place_path(place))
        if not options.is_remount or options.data:
            handler_for(mount.type, options)(mount, options, place)
    kernel.finish(point, options, rootfs, mount.target)
    point = "" if options.is_remount else point
    if not hold or not point:
        return Made(point)
    try:
        return Made(point, kernel.open_target(rootfs, mount.target))
    except BaseException:
        kernel.unmount(point, detach=True)
        raise
