"""One mount as it crosses the wire: what, from where, onto which place, how."""

from __future__ import annotations

import attrs


@attrs.frozen
class Mount:
    """A mount that somebody asks for; `target` is relative to the root file system, empty for the root itself.

    `type` may carry transforms before the kernel's name (`format/mkdir/overlay`, protocol.md 9.7).
    """

    type: str
    source: str
    target: str = ""
    options: tuple[str, ...] = attrs.field(default=(), converter=tuple)
