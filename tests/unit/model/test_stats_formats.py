"""The formats of cgroup files: what the kernel writes, what it might write one day, and rubbish."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim.model import metrics
from shim.model.metrics import DeviceLine, Pressure


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12\n", 12),
        ("max\n", metrics.WORD_MAX),
        ("18446744073709551615", metrics.WORD_MAX),
        ("18446744073709551616", None),
        ("-1", 0),
        ("", None),
        ("-", None),
        ("1_000", None),
        ("٣", None),
        ("9" * 5000, None),
        ("1 2", None),
    ],
)
def test_a_number_is_64_bits_or_none(text: str, value: int | None) -> None:
    assert metrics.number(text) == value


def test_flat_keeps_what_it_understands() -> None:
    assert metrics.flat("low 1\nhigh 2 3\nmax max\nodd x\ncut") == {"low": 1, "max": metrics.WORD_MAX}


def test_nested_gives_the_figures_to_the_last_name_before_them() -> None:
    text = "7:0 \n253:0 254:0 rbytes=1 wbytes=2\nmlx4_0 hca_handle=2 hca_object=max\nodd a=b\n"
    assert metrics.nested(text) == [
        ("254:0", {"rbytes": 1, "wbytes": 2}),
        ("mlx4_0", {"hca_handle": 2, "hca_object": metrics.WORD_MAX}),
    ]


def test_pressure_lines() -> None:
    text = "some avg10=1.50 avg60=0.25 avg300=nan total=7\nfull avg10=x total=18446744073709551616\nodd\n"
    assert metrics.pressures(text) == {
        "some": Pressure(1.5, 0.25, 0.0, 7),
        "full": Pressure(),
    }


def test_device_lines_with_and_without_operation() -> None:
    text = "8:0 Read 5\n8:16 7\nTotal 12\nodd\n8: 4\n"
    assert metrics.device_lines(text) == [DeviceLine(8, 0, "Read", 5), DeviceLine(8, 16, "", 7)]


@pytest.mark.parametrize(
    ("directory", "size"),
    [
        ("hugepages-64kB", (64, "64KB")),
        ("hugepages-2048kB", (2048, "2MB")),
        ("hugepages-1048576kB", (1048576, "1GB")),
        ("hugepages-", None),
        ("other", None),
    ],
)
def test_page_sizes_as_cgroup_files_write_them(directory: str, size: tuple[int, str] | None) -> None:
    assert metrics.page_size(directory) == size


@given(st.text())
def test_no_reader_raises(text: str) -> None:
    for read in (
        metrics.number,
        metrics.numbers,
        metrics.flat,
        metrics.nested,
        metrics.device,
        metrics.pressures,
        metrics.device_lines,
        metrics.page_size,
    ):
        read(text)
