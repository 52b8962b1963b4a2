"""The mounts of one task on their way to its shim: what a mount manager made of them, and how that is undone.

An activation is *owned* when this task's creation made it, and then undone with the task; *reused* when it was there
already, and then left alone.  Without a mount manager there is nothing to do, neither then nor later.

Invariants: ownership is written into the bundle the moment it begins, so that another manager undoes it too; undoing
may be repeated, and an activation that is gone counts as undone.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

import trio

from shim.errors import AlreadyExists, NotFound, Unimplemented
from shim.manager.activations import ActivateOptions
from shim.manager.bundle import write_private
from shim.manager.records import ACTIVATION_FILE
from shim.model.mounts import Mount
from shim.wire.proto import mount_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shim.manager.activations import Activations
    from shim.manager.bundle import Bundle
    from shim.model.capabilities import MountClaims

OWNER_LABEL: Final = "containerd.io/gc.bref.container"
"""Ties an activation to its task, for the collection of what nobody owns any more (protocol.md 9.7)."""


class TaskMounts:
    """The mounts of one creation; `activate` once, `undo` as often as needed."""

    def __init__(self, manager: Activations | None, bundle: Bundle) -> None:
        self._manager: Final = manager
        self._bundle: Final = bundle
        self.owned = False

    async def activate(self, mounts: Sequence[mount_pb2.Mount], claims: MountClaims) -> Sequence[mount_pb2.Mount]:
        """What is left for the shim.  Raises what the mount manager raises, but for the two answers that are none."""
        if self._manager is None or not mounts:
            return mounts
        namespace, name = self._bundle.namespace, self._bundle.id
        options = ActivateOptions(labels={OWNER_LABEL: name}, claims=claims)
        wanted = [Mount(one.type, one.source, one.target, one.options) for one in mounts]
        try:
            found = await self._manager.activate(namespace, name, wanted, options)
        except Unimplemented:
            return mounts
        except AlreadyExists:
            found = await self._manager.info(namespace, name)
        else:
            self.owned = True
            write_private(self._bundle.file(ACTIVATION_FILE), name.encode())
        return [
            mount_pb2.Mount(type=one.type, source=one.source, target=one.target, options=one.options)
            for one in found.system
        ]

    async def undo(self) -> None:
        """Deactivate what this creation activated."""
        if self._manager is not None and self.owned:
            await _deactivate(self._manager, self._bundle)
            self.owned = False


async def deactivate(manager: Activations | None, bundle: Bundle) -> None:
    """Undo the activation that the bundle owns, whoever made it, at the end of its task."""
    owned = await trio.to_thread.run_sync(os.path.exists, bundle.file(ACTIVATION_FILE))
    if manager is None or not owned:
        return
    await _deactivate(manager, bundle)


async def _deactivate(manager: Activations, bundle: Bundle) -> None:
    with contextlib.suppress(NotFound):
        await manager.deactivate(bundle.namespace, bundle.id)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(bundle.file(ACTIVATION_FILE))
