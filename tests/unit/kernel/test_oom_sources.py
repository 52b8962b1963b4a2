"""What wakes an OOM watch: which source is chosen, what is refused, and that nothing stays open."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from shim.kernel import cgroup_events, native
from shim.kernel.cgroup_events import FileChanges, FilePriority, open_oom_source
from shim.kernel.fds import OwnedFd

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name in cgroup_events.UNIFIED_FILES:
        (tmp_path / name).write_text("")
    return tmp_path


async def test_changes_wake_once_and_closing_wakes_with_an_error(directory: Path) -> None:
    source = FileChanges(str(directory), cgroup_events.UNIFIED_FILES)
    (directory / "memory.events").write_text("x")
    (directory / "cgroup.events").write_text("y")
    with trio.fail_after(5):
        await source.wait()
    with trio.move_on_after(0):
        await source.wait()
        pytest.fail("woken again for what was seen")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_expect_closed, source.wait)
        await wait_all_tasks_blocked()
        source.close()
    source.close()
    await _expect_closed(source.wait)


async def _expect_closed(wait: Callable[[], Awaitable[None]]) -> None:
    with pytest.raises(trio.ClosedResourceError):
        await wait()


def test_missing_file_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("")
    with pytest.raises(FileNotFoundError, match=r"watch .*cgroup\.events"):
        FileChanges(str(tmp_path), cgroup_events.UNIFIED_FILES)
    with pytest.raises(FileNotFoundError):
        open_oom_source(str(tmp_path), unified=False)


def test_priority_is_refused_outside_of_kernfs(directory: Path) -> None:
    with pytest.raises(PermissionError):
        FilePriority(str(directory), cgroup_events.UNIFIED_FILES)


@pytest.mark.parametrize("code", sorted(cgroup_events.USED_UP))
def test_kernfs_stands_in_when_inotify_is_used_up(directory: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse() -> int:
        raise OSError(code, "used up")

    opened: list[str] = []
    monkeypatch.setattr(native, "watch_open", refuse)
    monkeypatch.setattr(cgroup_events, "FilePriority", lambda where, _names: opened.append(where))
    open_oom_source(str(directory), unified=True)
    assert opened == [str(directory)]


def test_any_other_refusal_of_inotify_is_told(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(native, "watch_open", refuse)
    with pytest.raises(OSError, match="no memory"):
        open_oom_source(str(directory), unified=True)


def test_watching_what_is_not_there_is_refused_with_its_name(tmp_path: Path) -> None:
    fd = OwnedFd(native.watch_open())
    with fd, pytest.raises(FileNotFoundError, match=f"watch {tmp_path}/gone"):
        native.watch_add(fd.fileno(), f"{tmp_path}/gone")
