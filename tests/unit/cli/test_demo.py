"""What a person may write as a size, and how figures are told."""

from __future__ import annotations

import pytest

from shim.cli.demo import parse_size
from shim.cli.demoview import in_words, mebibytes, summary, told
from shim.errors import InvalidArgument
from shim.verify.latency import Figures
from shim.verify.slowdelete import DELETE_ANSWERED, Trial


@pytest.mark.parametrize(
    ("text", "size"),
    [("512M", 512 << 20), ("1.5G", 1536 << 20), ("2 GiB", 2 << 30), ("64mb", 64 << 20), ("33554432", 32 << 20)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1G", "1T", "1,5G", "15M", "0"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_size(text)


def test_words() -> None:
    assert [in_words(seconds) for seconds in (0.0004, 0.25, 1.5)] == ["0.4 ms", "250.0 ms", "1.50 s"]
    assert [mebibytes(count) for count in (512 << 20, 3 << 29)] == ["512 MiB", "1.50 GiB"]
    some = Figures(count=9, timed_out=1, p50=0.001, p99=2.0, worst=2.0)
    assert (told(some.p50, some), told(some.worst, some), told(0.0, Figures())) == ("1.0 ms", "none in 2 s", "-")


def test_the_summary_has_a_line_for_each_shim() -> None:
    ours, other = Trial("io.containerd.trio.v2", "/ours"), Trial("io.containerd.runc.v2", "/other")
    ours.began_at = other.began_at = 0.0
    ours.during, ours.phases = Figures(300, 0, 0.0006, 0.002, 0.004), {DELETE_ANSWERED: 3.0}
    other.during, other.phases = Figures(300, 100, 1.5, 2.0, 2.0), {DELETE_ANSWERED: 3.1}
    lines = [line.split() for line in summary([ours, other])[-2:]]
    assert lines[0] == ["io.containerd.trio.v2", "300", "0", "0.6", "ms", "2.0", "ms", "4.0", "ms", "3.00", "s"]
    assert lines[1][:3] == ["io.containerd.runc.v2", "300", "100"]
    assert lines[1].count("none") == 2
