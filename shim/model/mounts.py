"""One mount as it crosses the wire: what, from where, onto which place, how."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable


def _texts(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(values)


@attrs.frozen
class Mount:
    """A mount that somebody asks for; `target` is relative to the root file system, empty for the root itself.

    `type` may carry transforms before the kernel's name (`format/mkdir/overlay`, protocol.md 9.7).
    """

    type: str
    source: str
    target: str = ""
    options: tuple[str, ...] = attrs.field(default=(), converter=_texts)
