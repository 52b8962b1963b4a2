"""Mount claims as shims before 2.4 made them: an annotation in what `-info` answers (protocol.md 9.8, "Old way").

All of the old way is in this file, and one call in `shim.manager.creation`: to drop it, delete both.

Invariants: asked only about a shim whose bootstrap answer claims nothing at all, without options, and once per runtime
name: an answer is kept for the life of the manager, also one without the annotation, a failure is not; two runtimes are
never asked, since they never used it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from shim.errors import ShimError
from shim.model.capabilities import MountClaims, claims_from_annotation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shim.wire.proto.runtime_info_pb2 import RuntimeInfo

LOG: Final = logging.getLogger("shim.manager")
ANNOTATION: Final = "containerd.io/runtime-allow-mounts"
NEVER_ASKED: Final = frozenset({"io.containerd.runc.v2", "io.containerd.runhcs.v1"})


class DeprecatedClaims:
    """The claims by runtime name; `ask` runs `-info`."""

    def __init__(self, ask: Callable[[str], Awaitable[RuntimeInfo]]) -> None:
        self._ask: Final = ask
        self._known: dict[str, MountClaims | None] = {}

    async def claims(self, runtime: str) -> MountClaims:
        """What the shim of `runtime` claims; nothing when it cannot be asked."""
        if runtime in NEVER_ASKED:
            return MountClaims()
        if runtime not in self._known:
            try:
                info = await self._ask(runtime)
            except ShimError as error:
                LOG.debug("%s was asked for mounts that it handles: %s", runtime, error)
                return MountClaims()
            text = info.annotations.get(ANNOTATION)
            self._known[runtime] = None if text is None else claims_from_annotation(text)
            if text is not None:
                LOG.warning("%s claims mounts by the deprecated annotation %s", runtime, ANNOTATION)
        return self._known[runtime] or MountClaims()
