from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shim.errors import InvalidArgument, NotFound
from shim.manager.lookup import ShimLookup, find_shim, search_directories

if TYPE_CHECKING:
    from pathlib import Path


def program(directory: Path, name: str, mode: int = 0o755) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return path


def test_the_first_directory_wins_and_plain_files_are_passed_over(tmp_path: Path) -> None:
    program(tmp_path / "a", "containerd-shim-trio-v2", 0o644)
    (tmp_path / "b" / "containerd-shim-trio-v2").mkdir(parents=True)
    wanted = program(tmp_path / "c", "containerd-shim-trio-v2")
    program(tmp_path / "d", "containerd-shim-trio-v2")
    directories = [str(tmp_path / name) for name in "abcd"]
    assert find_shim("io.containerd.trio.v2", directories) == str(wanted)


def test_an_absolute_path_is_used_as_it_is(tmp_path: Path) -> None:
    path = program(tmp_path, "anything")
    assert find_shim(str(path), []) == str(path)
    with pytest.raises(NotFound, match="binary not installed"):
        find_shim(f"{path}-not", [])


def test_a_miss_says_what_to_do() -> None:
    with pytest.raises(NotFound, match=r'"containerd-shim-trio-v2": file does not exist \(looked in /nowhere; install'):
        find_shim("io.containerd.trio.v2", ["/nowhere"])


def test_a_relative_path_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="relative path"):
        find_shim("bin/containerd-shim-trio-v2", ["/"])


def test_the_current_directory_is_searched_only_when_asked() -> None:
    assert search_directories("/a::.:rel:/b:/a")[:2] == ("/a", "/b")
    assert not {"", ".", "rel"} & set(search_directories("/a::.:rel:/b"))
    assert search_directories("/a", "/work")[:2] == ("/work", "/a")


def test_what_was_found_is_kept_but_not_a_miss(tmp_path: Path) -> None:
    lookup = ShimLookup((str(tmp_path),))
    with pytest.raises(NotFound):
        lookup.find("a.b")
    path = program(tmp_path, "containerd-shim-a-b")
    assert lookup.find("a.b") == str(path)
    path.unlink()
    assert lookup.find("a.b") == str(path)
