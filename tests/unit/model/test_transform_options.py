"""Options of mkdir and mkfs: what they ask for, and everything that is refused (row S9)."""

from __future__ import annotations

import pytest

from shim.errors import InvalidArgument
from shim.model.transform_options import DirectoryRequest, ImageRequest, parse_mkdir, parse_mkfs, parse_size

MKDIR = "X-containerd.mkdir."
MKFS = "X-containerd.mkfs."
UUID = "01234567-89ab-cdef-0123-456789ABCDEF"


def test_directories() -> None:
    options = ["ro", f"{MKDIR}path=/a", f"{MKDIR}path=/b:0755", "index=off", f"{MKDIR}path=/c:1777:0:5"]
    assert parse_mkdir(options) == (
        (DirectoryRequest("/a", 0o700), DirectoryRequest("/b", 0o755), DirectoryRequest("/c", 0o1777, (0, 5))),
        ("ro", "index=off"),
    )


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["ro"],
        [f"{MKDIR}mode=0700"],
        [f"{MKDIR}path=/a", f"{MKDIR}paths=/b"],
        [f"{MKDIR}path=/a:"],
        [f"{MKDIR}path=/a:rwx"],
        [f"{MKDIR}path=/a:0o755"],
        [f"{MKDIR}path=/a:888"],
        [f"{MKDIR}path=/a:77777"],
        [f"{MKDIR}path=/a:-700"],
        [f"{MKDIR}path=/a:7"],
        [f"{MKDIR}path=/a:0700:0"],
        [f"{MKDIR}path=/a:0700:0:"],
        [f"{MKDIR}path=/a:0700:0:0:0"],
        [f"{MKDIR}path=/a:0700:root:root"],
        [f"{MKDIR}path=/a:0700:-1:0"],
        [f"{MKDIR}path=/a:0700:4294967295:0"],
        [f"{MKDIR}path=/a:0700:0:99999999999"],
    ],
)
def test_bad_directories(options: list[str]) -> None:
    with pytest.raises(InvalidArgument):
        parse_mkdir(options)


def test_images() -> None:
    assert parse_mkfs(["loop", f"{MKFS}size=10MiB"]) == (ImageRequest(10 << 20), ("loop",))
    full = [f"{MKFS}uuid={UUID}", f"{MKFS}fs=xfs", f"{MKFS}size=1g", "ro"]
    assert parse_mkfs(full) == (ImageRequest(1 << 30, "xfs", UUID), ("ro",))


@pytest.mark.parametrize(
    "options",
    [
        [],
        [f"{MKFS}fs=ext4"],
        [f"{MKFS}size="],
        [f"{MKFS}size"],
        [f"{MKFS}size=0"],
        [f"{MKFS}size=-1m"],
        [f"{MKFS}size=big"],
        [f"{MKFS}size=1m1"],
        [f"{MKFS}size=1x"],
        [f"{MKFS}size=10k"],
        [f"{MKFS}size=9999999999999999999"],
        [f"{MKFS}size=9223372036854775808"],
        [f"{MKFS}size=99999p"],
        [f"{MKFS}size=16m", f"{MKFS}fs=xfs"],
        [f"{MKFS}size=16m", f"{MKFS}size=16m"],
        [f"{MKFS}size=16m", f"{MKFS}fs=btrfs"],
        [f"{MKFS}size=16m", f"{MKFS}fs="],
        [f"{MKFS}size=16m", f"{MKFS}fs=../ext4"],
        [f"{MKFS}size=16m", f"{MKFS}uuid="],
        [f"{MKFS}size=16m", f"{MKFS}uuid=random"],
        [f"{MKFS}size=16m", f"{MKFS}uuid={UUID} -F"],
        [f"{MKFS}size=16m", f"{MKFS}label=x"],
    ],
)
def test_bad_images(options: list[str]) -> None:
    with pytest.raises(InvalidArgument):
        parse_mkfs(options)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512", 512),
        ("1k", 1024),
        ("1K", 1024),
        ("1kb", 1024),
        ("1KiB", 1024),
        ("2m", 2 << 20),
        ("1.5g", 3 << 29),
        ("1 t", 1 << 40),
        ("0.5p", 1 << 49),
        ("3b", 3),
    ],
)
def test_sizes_count_by_1024(text: str, size: int) -> None:
    assert parse_size(text) == size
