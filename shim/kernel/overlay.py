"""Mounting an overlay, however long its list of layers is.

mount(2) takes one page of options and cuts off the rest without a word, so a longer list goes another way, the first of
these that can say it: layer by layer to a context of the file system, a path of more than 255 bytes as a descriptor;
in one text with `/proc/self/fd/N` for every path; in one text with names relative to the directory that the layers
share, from a thread with a working directory of its own.  The process's own is never changed.  What no way can say is
refused before anything is mounted.

With mapped ids the layers are detached copies of their mounts, each with the mapping (the upper and the work directory
are written to as they are).  A kernel that cannot stack detached mounts gets them attached in a directory that only
root can enter, for as long as the call takes.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
from contextlib import ExitStack
from enum import Enum
from typing import TYPE_CHECKING, Final

from shim.errors import InvalidArgument
from shim.kernel import native
from shim.kernel.fds import OwnedFd
from shim.kernel.trees import Context, copy_mapped, fits_value, open_id_mapping
from shim.model.overlay_layout import OverlayLayout, common_parent, parse_overlay, relative_to

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shim.model.mount_options import MountOptions

KIND: Final = "overlay"
LONGEST_DATA: Final = mmap.PAGESIZE - 1
_LONGEST_FD_PATH: Final = "/proc/self/fd/" + "9" * 5  # what stands for a path, for the estimate
_STAGES: Final = "/run"
_UNMOUNT: Final = 2 | 8  # MNT_DETACH, UMOUNT_NOFOLLOW


class Way(Enum):
    """How the options reach the kernel."""

    WHOLE = "as they are"
    LAYERS = "one by one"
    DESCRIPTORS = "with descriptors for paths"
    RELATIVE = "with relative paths"


ORDER: Final = (Way.WHOLE, Way.LAYERS, Way.DESCRIPTORS, Way.RELATIVE)


def fits_page(data: str) -> bool:
    """Whether mount(2) takes all of `data`."""
    return len(os.fsencode(data)) <= LONGEST_DATA


def can_go(way: Way, options: MountOptions) -> bool:
    """Whether a way can say these options.  Raises InvalidArgument for what is no list of overlay options."""
    if way is Way.WHOLE:
        return fits_page(",".join(options.data))
    layout = parse_overlay(options.data)
    if not all(path.startswith("/") for path in layout.paths):
        return False
    if way is Way.LAYERS:
        return all(map(fits_value, layout.others)) and takes_layers()
    if way is Way.DESCRIPTORS:
        return fits_page(layout.renamed(lambda _: _LONGEST_FD_PATH).text())
    return bool(layout.lower) and fits_page(_relative(layout)[1].text())


def choose_way(options: MountOptions) -> Way:
    """The first way that can say these options.  Raises InvalidArgument when there is none."""
    for way in ORDER:
        if can_go(way, options):
            return way
    raise InvalidArgument(f"options of the {KIND} mount are longer than {LONGEST_DATA} bytes in every notation")


def takes_layers() -> bool:
    """Whether this kernel knows `lowerdir+` (6.7 does), asked without making anything.

    Before 6.5 overlay accepts any key and refuses it only when the file system is made: hence the second question.
    """
    context = OwnedFd(native.context_open(KIND))
    with context:
        try:
            native.context_set(context.fileno(), "lowerdir+", "/")
        except OSError:
            return False
        try:
            native.context_set(context.fileno(), "no-such-option", "x")
        except OSError:
            return True
        return False


def mount_overlay(
    source: str, options: MountOptions, place: OwnedFd, *, way: Way | None = None, detached_layers: bool = True
) -> None:
    """Mount an overlay on what `place` has open.

    `way` and `detached_layers` are for tests.  Raises InvalidArgument for options that cannot be said, OSError.
    """
    if options.uidmap:
        _mount_mapped(source, options, place, detached_layers)
        return
    chosen = choose_way(options) if way is None else way
    target = f"/proc/self/fd/{place.fileno()}"
    if chosen is Way.WHOLE:
        native.mount(source, target, KIND, options.flags, ",".join(options.data))
        return
    layout = parse_overlay(options.data)
    if chosen is Way.LAYERS:
        _by_layers(source, layout, options.flags, place, {})
    elif chosen is Way.DESCRIPTORS:
        _by_descriptors(source, layout, options.flags, target)
    else:
        parent, relative = _relative(layout)
        with OwnedFd(os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as directory:
            native.mount_from(directory.fileno(), source, target, KIND, options.flags, relative.text())


def _relative(layout: OverlayLayout) -> tuple[str, OverlayLayout]:
    parent = common_parent((*layout.lower, *layout.data_only))
    return parent, layout.renamed(lambda path: relative_to(parent, path))


def _by_layers(source: str, layout: OverlayLayout, flags: int, place: OwnedFd, trees: Mapping[str, OwnedFd]) -> None:
    """`trees` are the mounts to be used in place of some lower layers."""
    keyed = [
        *(("lowerdir+", path) for path in layout.lower),
        *(("datadir+", path) for path in layout.data_only),
        *((key, path) for key, path in (("upperdir", layout.upper), ("workdir", layout.work)) if path),
    ]
    with ExitStack() as owned:
        context = owned.enter_context(Context(KIND, source, flags))
        context.set_all(layout.others)
        for key, path in keyed:
            if key.endswith("+") and path in trees:
                context.set(key, trees[path].fileno())
            elif fits_value(path) and "\\" not in path:
                context.set(key, path)
            else:
                _set_long(context, key, owned.enter_context(_open_path(path)))
        tree = owned.enter_context(context.create(flags))
        native.tree_attach(tree.fileno(), place.fileno())


def _set_long(context: Context, key: str, layer: OwnedFd) -> None:
    try:
        context.set(key, layer.fileno())
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        context.set(key, f"/proc/self/fd/{layer.fileno()}")  # up to 6.12 overlay takes no descriptors


def _by_descriptors(source: str, layout: OverlayLayout, flags: int, target: str) -> None:
    with ExitStack() as owned:
        short = layout.renamed(lambda path: f"/proc/self/fd/{owned.enter_context(_open_path(path)).fileno()}")
        native.mount(source, target, KIND, flags, short.text())


def _open_path(path: str) -> OwnedFd:
    return OwnedFd(os.open(path, os.O_PATH | os.O_CLOEXEC))


def _mount_mapped(source: str, options: MountOptions, place: OwnedFd, detached_layers: bool) -> None:
    layout = parse_overlay(options.data)
    with ExitStack() as owned:
        mapping = owned.enter_context(open_id_mapping(options))
        trees = {path: owned.enter_context(copy_mapped(path, mapping)) for path in (*layout.lower, *layout.data_only)}
        if detached_layers and takes_layers():
            try:
                _by_layers(source, layout, options.flags, place, trees)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
            else:
                return
        _by_attached_trees(source, layout, options, place, list(trees.items()))


def _by_attached_trees(
    source: str, layout: OverlayLayout, options: MountOptions, place: OwnedFd, trees: Sequence[tuple[str, OwnedFd]]
) -> None:
    """The overlay keeps copies of its layers' mounts: these here go when it is made."""
    with ExitStack() as undo:
        stage = os.path.join(_STAGES, f"shim-layers-{secrets.token_hex(8)}")
        os.mkdir(stage, 0o700)
        undo.callback(os.rmdir, stage)
        # A mount of its own, private: what is attached inside is seen by no other mount namespace.
        native.mount("shim-layers", stage, "tmpfs", 0, "mode=700")
        undo.callback(native.unmount, stage, _UNMOUNT)
        native.mount("", stage, "", 1 << 18, "")
        names: dict[str, str] = {}
        for number, (path, tree) in enumerate(trees):
            names[path] = os.path.join(stage, str(number))
            os.mkdir(names[path])
            with _open_path(names[path]) as layer:
                native.tree_attach(tree.fileno(), layer.fileno())
        lower = tuple(names[path] for path in layout.lower)
        data_only = tuple(names[path] for path in layout.data_only)
        staged = OverlayLayout(lower, data_only, layout.upper, layout.work, layout.others)
        if not fits_page(staged.text()):
            raise InvalidArgument(f"{len(names)} layers with mapped ids are more than this kernel takes")
        target = f"/proc/self/fd/{place.fileno()}"
        native.mount(source, target, KIND, options.flags, staged.text())
