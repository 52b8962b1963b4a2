"""The two figures of /proc/meminfo."""

from __future__ import annotations

import pytest

from shim.kernel.meminfo import PageCache, parse_page_cache, read_page_cache

TEXT = """MemTotal:       24683052 kB
Dirty:            517656 kB
Writeback:           128 kB
AnonPages:        123456 kB
WritebackTmp:          7 kB
HugePages_Total:       0
"""


def test_kibibytes_become_bytes() -> None:
    assert parse_page_cache(TEXT) == PageCache(517656 * 1024, 128 * 1024)


@pytest.mark.parametrize("text", ["", "MemTotal: 1 kB\n", "WritebackTmp: 7 kB\n"])
def test_what_is_missing_counts_nothing(text: str) -> None:
    assert parse_page_cache(text) == PageCache(0, 0)


def test_the_kernel_has_both() -> None:
    found = read_page_cache()
    assert found.dirty >= 0
    assert found.writeback >= 0
