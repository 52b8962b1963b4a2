"""A mount manager in memory: it plans as protocol.md 9.7 says and mounts nothing.

`mounted` is what would be mounted now, by mount point; a test makes a step fail or wait through `fail` and `gate`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

from shim.errors import AlreadyExists, NotFound, Unimplemented
from shim.manager.activations import ActivateOptions, Activation, ActiveMount
from shim.model.mounts import Mount

if TYPE_CHECKING:
    from collections.abc import Sequence

TRANSFORMS: Final = frozenset({"format", "mkfs", "mkdir"})
HANDLERS: Final = frozenset({"erofs", "loop"})


def split_type(text: str) -> tuple[tuple[str, ...], str]:
    """The transforms in front of a mount type, and the rest."""
    parts = text.split("/")
    count = next((at for at, part in enumerate(parts[:-1]) if part not in TRANSFORMS), len(parts) - 1)
    return tuple(parts[:count]), "/".join(parts[count:])


def first_system(mounts: Sequence[Mount], options: ActivateOptions) -> int | None:
    """The first mount that is the shim's; None when nothing needs the manager."""
    first: int | None = None
    for at, mount in enumerate(mounts):
        transforms, base = split_type(mount.type)
        whole = mount.type in options.claims.types
        if any(name not in options.claims.transforms for name in transforms) and not whole:
            first = at
        if options.temporary or (base in HANDLERS and base not in options.claims.types):
            first = at + 1
    return first


def left_for_shim(mount: Mount, options: ActivateOptions) -> Mount:
    """The first system mount, its transforms applied up to the last one that the shim does not claim."""
    transforms, base = split_type(mount.type)
    unclaimed = [at for at, name in enumerate(transforms) if name not in options.claims.transforms]
    tail = transforms[unclaimed[-1] + 1 :] if unclaimed else transforms
    return attrs.evolve(mount, type="/".join((*tail, base)))


class MemoryActivations:
    """Activations by namespace and name."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.options: list[ActivateOptions] = []
        self.mounted: list[str] = []
        self.fail: dict[str, Exception] = {}
        self.gate: dict[str, trio.Event] = {}
        self._known: dict[tuple[str, str], Activation] = {}

    async def activate(
        self, namespace: str, name: str, mounts: Sequence[Mount], options: ActivateOptions
    ) -> Activation:
        """See `Activations.activate`."""
        await self._step("activate")
        self.options.append(options)
        if (namespace, name) in self._known:
            raise AlreadyExists(f"activation {name}")
        first = first_system(mounts, options)
        if first is None:
            raise Unimplemented("nothing of it needs a mount manager")
        made: list[ActiveMount] = []
        try:
            for at, mount in enumerate(mounts[:first]):
                await self._step("mount")
                made.append(ActiveMount(mount, f"/mounts/{namespace}/{name}/{at}", 1))
                self.mounted.append(made[-1].mount_point)
        except BaseException:
            self._unmount(made)
            raise
        system = list(mounts[first:])
        if system:
            system[0] = left_for_shim(system[0], options)
        if options.temporary and made:
            system.append(Mount("bind", made[-1].mount_point, "", ("rbind",)))
        self._known[namespace, name] = Activation(name, tuple(made), tuple(system), dict(options.labels))
        return self._known[namespace, name]

    async def deactivate(self, namespace: str, name: str) -> None:
        """See `Activations.deactivate`."""
        await self._step("deactivate")
        found = self._known.pop((namespace, name), None)
        if found is None:
            raise NotFound(f"activation {name}")
        self._unmount(found.active)

    async def info(self, namespace: str, name: str) -> Activation:
        """See `Activations.info`."""
        await self._step("info")
        try:
            return self._known[namespace, name]
        except KeyError as error:
            raise NotFound(f"activation {name}") from error

    async def list(self, namespace: str) -> Sequence[Activation]:
        """See `Activations.list`."""
        await self._step("list")
        return [found for (space, _), found in sorted(self._known.items()) if space == namespace]

    def _unmount(self, active: Sequence[ActiveMount]) -> None:
        for one in reversed(active):
            self.mounted.remove(one.mount_point)

    async def _step(self, name: str) -> None:
        self.calls.append(name)
        if name in self.gate:
            await self.gate[name].wait()
        await trio.lowlevel.checkpoint()
        if name in self.fail:
            raise self.fail[name]
