"""What a shim claims to mount itself, so that its manager leaves it that (protocol.md 9.8).  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable


def _names(values: Iterable[str]) -> frozenset[str]:
    return frozenset(value for value in values if value)


@attrs.frozen
class MountClaims:
    """Base types (`erofs`) and transforms (`mkdir`) that the shim performs; empty: plain system mounts only."""

    types: frozenset[str] = attrs.field(default=frozenset(), converter=_names)
    transforms: frozenset[str] = attrs.field(default=frozenset(), converter=_names)


def claims_from_annotation(text: str) -> MountClaims:
    """The claims in the deprecated annotation: a comma list, `NAME/*` a transform, anything else a type."""
    entries = [entry.strip() for entry in text.split(",")]
    transforms = [entry.removesuffix("/*") for entry in entries if entry.endswith("/*")]
    return MountClaims([entry for entry in entries if not entry.endswith("/*")], transforms)
