"""How much of the page cache waits to be written, the reason for most slow unmounts (proc_meminfo(5))."""

from __future__ import annotations

import attrs


@attrs.frozen
class PageCache:
    """Bytes changed and not yet written, and bytes being written now; of the whole machine."""

    dirty: int
    writeback: int


def parse_page_cache(text: str) -> PageCache:
    """The two figures in the text of /proc/meminfo, whose unit is KiB; 0 for one that is missing."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name in ("Dirty", "Writeback"):
            found[name] = int(rest.split()[0]) * 1024
    return PageCache(found.get("Dirty", 0), found.get("Writeback", 0))


def read_page_cache() -> PageCache:
    """The figures now.  Raises OSError where there is no proc file system."""
    with open("/proc/meminfo", encoding="ascii") as stream:
        return parse_page_cache(stream.read())
