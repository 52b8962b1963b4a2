"""What a handler may know of its caller besides the request.

Each request runs in a context of its own; tasks that a handler starts inherit it, detached ones included.  The deadline
is not here: it is the cancel scope that the handler runs in (`trio.current_effective_deadline()`).
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NO_METADATA: Final[Mapping[str, Sequence[str]]] = {}

namespace: ContextVar[str] = ContextVar("namespace", default="")
"""The caller's containerd namespace, empty when it sent none."""

metadata: ContextVar[Mapping[str, Sequence[str]]] = ContextVar("metadata", default=NO_METADATA)
"""All that came with the request, values by lower-cased key."""
