"""What a manager needs of a mount manager: mounts that must be made before a shim can use the rest (protocol.md 9.7).

Only the interface is here.  An implementation keeps activations for longer than one manager lives, and passes the suite
in tests/contract/test_activations.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs

from shim.model.capabilities import MountClaims

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shim.model.mounts import Mount


@attrs.frozen
class ActiveMount:
    """A mount that was made: what was asked for, where it is, since when (Unix time in nanoseconds)."""

    mount: Mount
    mount_point: str
    mounted_at_ns: int | None = None
    data: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen
class Activation:
    """One named set of mounts: `active` were made, `system` is what is left for the shim."""

    name: str
    active: tuple[ActiveMount, ...] = ()
    system: tuple[Mount, ...] = ()
    labels: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen
class ActivateOptions:
    """How to activate: `claims` are what the shim does itself; `temporary` mounts everything, whoever could do it."""

    labels: Mapping[str, str] = attrs.field(factory=dict)
    claims: MountClaims = attrs.field(factory=MountClaims)
    temporary: bool = False


class Activations(Protocol):
    """A mount manager.  Names belong to a namespace; every call may be repeated after any failure."""

    async def activate(
        self, namespace: str, name: str, mounts: Sequence[Mount], options: ActivateOptions
    ) -> Activation:
        """Make what the shim cannot.

        Unimplemented when nothing of it needs us; AlreadyExists when `name` is fully active.  All or nothing, also when
        it is cancelled.
        """

    async def deactivate(self, namespace: str, name: str) -> None:
        """Forget the activation and undo its mounts, the latest first.  NotFound when there is none."""

    async def info(self, namespace: str, name: str) -> Activation:
        """The activation of that name.  NotFound when there is none."""

    async def list(self, namespace: str) -> Sequence[Activation]:
        """All of a namespace."""
