"""Kinds that a program makes: `fuse.X` through mount.fuse, `fuse3.X` through mount.fuse3 (protocol.md 9.7).

The helper is told the source, the place, every option and the name X.  It has done its work when there is a new mount
at the place; one that ends well without it has failed, and one that fails or is given up leaves no mount behind.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import attrs
import trio

from shim.errors import FailedPrecondition, InvalidArgument, Unimplemented, Unknown
from shim.kernel import mounts as kernel
from shim.kernel.children import Command
from shim.kernel.commands import run
from shim.mounts.handlers import Made

if TYPE_CHECKING:
    from shim.kernel.children import Children
    from shim.kernel.threads import Threads
    from shim.model.mounts import Mount

HELPERS: Final = {"fuse": "mount.fuse", "fuse3": "mount.fuse3"}
UNDO_SECONDS: Final = 10.0
_OUTPUT_LIMIT: Final = 4096


@attrs.frozen
class _Seen:
    """The resolved place, and the id of the mount on top there."""

    point: str
    mount_id: int


def helper_command(mount: Mount, point: str) -> Command:
    """What is run.  Raises InvalidArgument for a kind without a name, or a word that the helper would misread."""
    prefix, _, name = mount.type.partition(".")
    if not name or mount.source.startswith("-"):
        raise InvalidArgument(f"mount type {mount.type} with source {mount.source!r}")
    options = [word for option in mount.options for word in ("-o", option)]
    return Command([HELPERS[prefix], mount.source, point, *options, "-t", name])


async def mount_by_helper(
    mount: Mount, rootfs: str, children: Children | None, pool: Threads, *, hold: bool = False
) -> Made:
    """Have the mount made at its target inside `rootfs`, and keep it open with `hold`.

    Raises FailedPrecondition without the helper, Unknown with its words when it fails, OSError; nothing is left then,
    nor after a cancellation.
    """
    if children is None:
        raise Unimplemented(f"mount type {mount.type}: no programs can be run here")
    before = await pool.run(f"look at {rootfs}", lambda _: _look(rootfs, mount.target))
    command = helper_command(mount, before.point)
    try:
        try:
            done = await run(children, command, stdout_limit=_OUTPUT_LIMIT, stderr_limit=_OUTPUT_LIMIT)
        except FileNotFoundError as error:
            raise FailedPrecondition(f"mount type {mount.type}: {command.argv[0]} is not installed") from error
        said = (done.stderr + done.stdout).decode(errors="replace").strip()
        if done.exit.status != 0:
            raise Unknown(f"mount type {mount.type}: {command.argv[0]} ended with {done.exit.status}: {said}")
        made = await pool.run(
            f"look at {rootfs}", lambda _: _find(before, rootfs, mount.target, hold), undo=lambda made: made.close()
        )
        if not made.point:
            raise Unknown(f"mount type {mount.type}: {command.argv[0]} ended well and mounted nothing: {said}")
    except BaseException:
        with trio.move_on_after(UNDO_SECONDS, shield=True):
            await pool.run(f"undo {before.point}", lambda _: _take_off(before, rootfs, mount.target))
        raise
    return made


def _find(before: _Seen, rootfs: str, target: str, hold: bool) -> Made:
    """The new mount; one without a point if there is none."""
    if _look(rootfs, target).mount_id == before.mount_id:
        return Made("")
    return Made(before.point, kernel.open_target(rootfs, target) if hold else None)


def _look(rootfs: str, target: str) -> _Seen:
    with kernel.open_target(rootfs, target) as place:
        with open(f"/proc/self/fdinfo/{place.fileno()}", encoding="ascii") as stream:
            facts = dict(line.split(":", 1) for line in stream)
        return _Seen(os.readlink(kernel.place_path(place)), int(facts["mnt_id"]))


def _take_off(before: _Seen, rootfs: str, target: str) -> None:
    if _look(rootfs, target).mount_id != before.mount_id:
        kernel.unmount(before.point, detach=True)
