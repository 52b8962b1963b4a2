"""Points in time on the wire.

Inside, a time is nanoseconds since the epoch in an int, or None for one that has not come.  On the wire "not yet" is
the zero time of Go, the year 1: not an absent field, and not the epoch (protocol.md 3.2).
"""

from __future__ import annotations

from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

GO_ZERO_SECONDS: Final = -62_135_596_800
NANOSECONDS: Final = 1_000_000_000


def timestamp(ns: int | None) -> Timestamp:
    """The time as the wire wants it; None becomes Go's zero time."""
    if ns is None:
        return Timestamp(seconds=GO_ZERO_SECONDS)
    seconds, nanos = divmod(ns, NANOSECONDS)
    return Timestamp(seconds=seconds, nanos=nanos)


def nanoseconds(ts: Timestamp) -> int | None:
    """Nanoseconds since the epoch; None for Go's zero time."""
    if ts.seconds == GO_ZERO_SECONDS and ts.nanos == 0:
        return None
    return ts.seconds * NANOSECONDS + ts.nanos
