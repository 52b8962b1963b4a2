"""The checks of tools/check_tree.py, each made to complain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tools.check_tree import LONGEST, ROOT, bad_fragments, long_files

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("name", "lines", "complaints"),
    [
        ("shim/task/service.py", LONGEST, 0),
        ("shim/task/service.py", LONGEST + 1, 1),
        ("native/mount.c", LONGEST + 1, 1),
        ("shim/wire/proto/task_pb2.py", LONGEST + 1, 0),
    ],
)
def test_length(tmp_path: Path, name: str, lines: int, complaints: int) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.write_text("x\n" * lines)
    assert len(long_files(tmp_path)) == complaints


@pytest.mark.parametrize(
    ("name", "text", "complaints"),
    [
        ("README.md", "anything", 0),
        ("added-first-slice.md", "The shim runs a container.\n", 0),
        ("first-slice.md", "The shim runs a container.\n", 1),
        ("added-x.md", "no sentence\n", 1),
        ("added-x.md", "Two.\n\nParagraphs.\n", 1),
        ("fixed-x.md", f"Long {'x' * 120}.\n", 1),
    ],
)
def test_fragment(tmp_path: Path, name: str, text: str, complaints: int) -> None:
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes" / name).write_text(text)
    assert len(bad_fragments(tmp_path)) == complaints


def test_this_tree_has_change_fragments_in_order() -> None:
    assert bad_fragments(ROOT) == []
