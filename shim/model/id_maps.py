"""The id mappings of a mount: `uidmap=` and `gidmap=` (protocol.md 9.7, last paragraph).

The text is `ON_DISK:SHOWN:COUNT`, several of them with commas between: what the file system has as the first id is seen
as the second through the mount.  Ids outside of every range cannot be used there.  Refuses what the kernel would refuse
with a bare EINVAL: empty, overlapping or too many ranges, and ids of more than 32 bits.
"""

from __future__ import annotations

import re
from typing import Final

import attrs

from shim.errors import InvalidArgument

MOST_RANGES: Final = 340
"""What one namespace takes (user_namespaces(7))."""
_ID_LIMIT: Final = (1 << 32) - 1  # the last 32-bit number stands for no id at all
_RANGE: Final = re.compile(r"([0-9]{1,10}):([0-9]{1,10}):([0-9]{1,10})")


@attrs.frozen
class IdRange:
    """`count` ids from `on_disk`, seen as those from `shown`."""

    on_disk: int
    shown: int
    count: int


def parse_id_map(text: str, what: str) -> tuple[IdRange, ...]:
    """The ranges of a mapping; `what` is named in the error.  Raises InvalidArgument."""
    ranges: list[IdRange] = []
    for part in text.split(","):
        found = _RANGE.fullmatch(part)
        if found is None:
            raise InvalidArgument(f"{what} {text!r}: {part!r} is not ON_DISK:SHOWN:COUNT")
        one = IdRange(*map(int, found.groups()))
        if one.count == 0 or max(one.on_disk, one.shown) + one.count > _ID_LIMIT:
            raise InvalidArgument(f"{what} {text!r}: {part!r} is no range of ids")
        for other in ranges:
            if _meet(one.on_disk, other.on_disk, one, other) or _meet(one.shown, other.shown, one, other):
                raise InvalidArgument(f"{what} {text!r}: ranges overlap")
        ranges.append(one)
        if len(ranges) > MOST_RANGES:
            raise InvalidArgument(f"{what}: more than {MOST_RANGES} ranges")
    return tuple(ranges)


def _meet(mine: int, others: int, one: IdRange, other: IdRange) -> bool:
    return mine < others + other.count and others < mine + one.count


def as_namespace_map(ranges: tuple[IdRange, ...]) -> str:
    """In the notation of /proc/PID/uid_map."""
    return "".join(f"{one.on_disk} {one.shown} {one.count}\n" for one in ranges)
