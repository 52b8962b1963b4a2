"""The mount claims in a shim's bootstrap answer (protocol.md 9.8).

Invariants: where the shim attached the extension, it decides, and nothing older is asked; an empty one claims nothing,
and so does one that cannot be read, which is logged.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from shim.errors import InvalidArgument
from shim.model.capabilities import MountClaims
from shim.wire import typeurl
from shim.wire.proto.mount_pb2 import MountCapabilities

if TYPE_CHECKING:
    from shim.manager.bootstrap import Answer

LOG: Final = logging.getLogger("shim.manager")


def claims_of(answer: Answer) -> MountClaims | None:
    """What the shim claims; None when it says nothing of it."""
    for value in answer.extensions:
        if not typeurl.is_a(value, MountCapabilities):
            continue
        try:
            found = typeurl.unpack(value, MountCapabilities)
        except InvalidArgument as error:
            LOG.warning("the shim at %s: its mount capabilities cannot be read: %s", answer.address, error)
            return MountClaims()
        return MountClaims(found.types, found.transforms)
    return None
