"""Who makes which mount: the mount manager, or the shim that gets what is left (protocol.md 9.7, the N column).

Of a list of mounts the manager makes the first F and hands the others on.  F is the last mount that needs the manager:
itself when a transform has to be applied to it that the shim did not claim, the one after it when nobody but a handler
of the manager can make it.  Of the transforms of mount F the manager applies those up to the last unclaimed one; what
the shim claimed can only stay as a tail.  Mounts after F need nothing, so they go as they came.

One row is not as in containerd 2.4.2: a template that would be left to a shim while the manager makes mounts is
evaluated by the manager, although the shim claims `format`, since the indexes in it count mounts that the shim never
sees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from shim.model.mount_types import FORMAT, TRANSFORMS, MountType, has_template, split_type
from shim.model.mounts import Mount

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

REBIND: Final = "rbind"


def _names(values: Collection[str]) -> frozenset[str]:
    return frozenset(values)


@attrs.frozen
class Claims:
    """What a shim says that it does itself (protocol.md 9.8): kinds or whole types, and transforms by name."""

    types: frozenset[str] = attrs.field(default=frozenset(), converter=_names)
    transforms: frozenset[str] = attrs.field(default=frozenset(), converter=_names)

    def handles(self, kind: str) -> bool:
        """Whether a kind with a handler is left to the shim."""
        return kind in self.types

    def transforms_of(self, kind: MountType) -> tuple[bool, ...]:
        """For each transform of a type whether the shim claims it."""
        whole = kind.text() in self.types
        return tuple(whole or name in self.transforms for name in kind.transforms)


@attrs.frozen
class PlannedMount:
    """A mount with the transforms that are to be applied to it now, and its type after that."""

    mount: Mount
    transforms: tuple[str, ...]
    rest: MountType


@attrs.frozen
class MountPlan:
    """What the manager does, in order.

    It makes `active`; applies the transforms of `partial`, if there is one, and hands it on before `system`, which is
    handed on unchanged.  With `bind_last` (a temporary activation) a bind of the last mount point is handed on at the
    end.
    """

    active: tuple[PlannedMount, ...]
    partial: PlannedMount | None
    system: tuple[Mount, ...]
    bind_last: bool = False

    def handed_on(self, partial: Mount | None, last_point: str) -> tuple[Mount, ...]:
        """The mounts for the shim: `partial` is the plan's after its transforms, `last_point` the last active one's."""
        first = () if partial is None else (partial,)
        last = (Mount("bind", last_point, options=(REBIND,)),) if self.bind_last else ()
        return (*first, *self.system, *last)


def plan_mounts(
    mounts: Sequence[Mount],
    *,
    handlers: Collection[str],
    claims: Claims,
    temporary: bool = False,
    known: Collection[str] = TRANSFORMS,
) -> MountPlan | None:
    """Decide; None when nothing needs the manager (NotImplemented on the wire).

    `handlers` are the kinds that only a handler of the manager can make, `known` the transforms that it has.
    """
    types = [split_type(mount.type, known) for mount in mounts]
    first: int | None = None
    upto = 0  # how many transforms of mount `first` are the manager's
    for index, (mount, kind) in enumerate(zip(mounts, types, strict=True)):
        claimed = list(claims.transforms_of(kind))
        if first:
            claimed = [
                each and not (name == FORMAT and _has_templates(mount))
                for name, each in zip(kind.transforms, claimed, strict=True)
            ]
        if not all(claimed):
            first, upto = index, max(place for place, each in enumerate(claimed) if not each) + 1
        if temporary or (kind.kind in handlers and not claims.handles(kind.kind)):
            first, upto = index + 1, 0
    if first is None:
        return None
    active = tuple(
        PlannedMount(mount, kind.transforms, MountType((), kind.kind))
        for mount, kind in zip(mounts[:first], types[:first], strict=True)
    )
    bind_last = temporary and first > 0
    if not upto:
        return MountPlan(active, None, tuple(mounts[first:]), bind_last)
    kind = types[first]
    partial = PlannedMount(mounts[first], kind.transforms[:upto], kind.without(upto))
    return MountPlan(active, partial, tuple(mounts[first + 1 :]), bind_last)


def _has_templates(mount: Mount) -> bool:
    return any(has_template(text) for text in (mount.source, mount.target, *mount.options))
