"""Bundles and directories: modes whatever the umask (Y3), user namespaces (Y1), never somebody else's (M5)."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shim.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted
from shim.manager.bundle import create_bundle, delete_bundle, find_bundle, write_private
from shim.manager.layout import TASK_DIR, Layout

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(str(tmp_path / "deep" / "state"), str(tmp_path / "root"))
    made.prepare()
    return made


def mode(path: str) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


async def test_modes_do_not_depend_on_the_umask(umask: int, tmp_path: Path) -> None:
    layout = Layout(str(tmp_path / "deep" / "state"), str(tmp_path / "root"))
    layout.prepare()
    bundle = await create_bundle(layout, "ns", "t1", b"{}")
    found = {
        "deep": mode(str(tmp_path / "deep")),
        "state": mode(layout.state),
        "tasks": mode(f"{layout.state}/{TASK_DIR}"),
        "namespace": mode(layout.bundles("ns")),
        "bundle": mode(bundle.path),
        "rootfs": mode(bundle.rootfs),
        "config": mode(bundle.file("config.json")),
        "root": mode(layout.root),
        "temporary": mode(layout.temporary),
        "work": mode(bundle.work_path),
    }
    assert found == {
        "deep": 0o711,
        "state": 0o711,
        "tasks": 0o711,
        "namespace": 0o711,
        "bundle": 0o700,
        "rootfs": 0o711,
        "config": 0o600,
        "root": 0o700,
        "temporary": 0o700,
        "work": 0o711,
    }
    assert os.readlink(bundle.file("work")) == bundle.work_path
    assert oct(umask)


async def test_directories_of_ours_that_were_wider_are_narrowed(layout: Layout) -> None:
    for path in (layout.state, layout.root, layout.temporary):
        os.chmod(path, 0o777)
    layout.prepare()
    assert [mode(path) for path in (layout.state, layout.root, layout.temporary)] == [0o711, 0o700, 0o700]


def test_a_directory_of_others_is_not_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("x")
    tmp_path.chmod(0o755)
    with pytest.raises(FailedPrecondition, match="name a directory of its own"):
        Layout(str(tmp_path), str(tmp_path / "root")).prepare()
    assert mode(str(tmp_path)) == 0o755


@pytest.mark.parametrize("path", ["relative", "/", "/a/../b", "/a/", ""])
def test_only_plain_absolute_directories_are_taken(path: str) -> None:
    with pytest.raises(InvalidArgument):
        Layout(path, "/r")


def test_a_state_directory_that_is_too_long_for_a_socket_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    state = tmp_path / ("x" * 100)
    with pytest.raises(InvalidArgument, match="too long"):
        Layout(str(state), str(tmp_path / "root")).prepare()
    assert not state.exists()


async def test_the_group_of_a_user_namespace_may_enter(layout: Layout) -> None:
    bundle = await create_bundle(layout, "ns", "t1", b"{}", group=os.getegid())
    assert (mode(bundle.path), os.stat(bundle.path).st_gid) == (0o710, os.getegid())


async def test_an_existing_bundle_is_refused_and_untouched(layout: Layout) -> None:
    bundle = await create_bundle(layout, "ns", "t1", b"first")
    Path(bundle.work_path, "kept").touch()
    with pytest.raises(AlreadyExists, match="task t1 in namespace ns"):
        await create_bundle(layout, "ns", "t1", b"second")
    assert Path(bundle.file("config.json")).read_bytes() == b"first"
    assert Path(bundle.work_path, "kept").exists()


async def test_an_abandoned_work_directory_is_wiped(layout: Layout) -> None:
    Path(layout.work("ns", "t1"), "old").mkdir(parents=True)
    bundle = await create_bundle(layout, "ns", "t1", None)
    assert os.listdir(bundle.work_path) == []


async def test_a_creation_that_fails_leaves_nothing(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "symlink", refuse)
    with pytest.raises(ResourceExhausted, match="No space"):
        await create_bundle(layout, "ns", "t1", b"{}")
    assert os.listdir(layout.bundles("ns")) == os.listdir(layout.works("ns")) == []


@pytest.mark.parametrize(("namespace", "task_id"), [("..", "t"), ("ns", "../x"), ("ns", ""), ("", "t"), ("ns", ".t")])
async def test_names_become_paths_only_when_they_are_identifiers(layout: Layout, namespace: str, task_id: str) -> None:
    with pytest.raises(InvalidArgument):
        await create_bundle(layout, namespace, task_id, None)


async def test_deletion_removes_both_sides_and_can_be_repeated(layout: Layout) -> None:
    bundle = await create_bundle(layout, "ns", "t1", b"{}")
    Path(bundle.work_path, "data").write_text("x")
    await delete_bundle(bundle)
    await delete_bundle(bundle)
    assert os.listdir(layout.bundles("ns")) == os.listdir(layout.works("ns")) == []
    with pytest.raises(NotFound):
        find_bundle(layout, "ns", "t1")


async def test_a_root_file_system_with_something_in_it_is_never_removed(layout: Layout) -> None:
    bundle = await create_bundle(layout, "ns", "t1", b"{}")
    precious = Path(bundle.rootfs, "precious")
    precious.write_text("x")
    with pytest.raises(FailedPrecondition, match="cannot be removed"):
        await delete_bundle(bundle)
    assert precious.exists()
    assert find_bundle(layout, "ns", "t1") == bundle
    precious.unlink()
    await delete_bundle(bundle)
    assert os.listdir(layout.bundles("ns")) == []


async def test_a_deletion_that_was_interrupted_after_the_rename_is_finished(layout: Layout) -> None:
    bundle = await create_bundle(layout, "ns", "t1", b"{}")
    os.rename(bundle.path, f"{layout.bundles('ns')}/.t1")
    await delete_bundle(bundle)
    assert os.listdir(layout.bundles("ns")) == os.listdir(layout.works("ns")) == []


async def test_a_work_link_that_was_redirected_removes_nothing_elsewhere(layout: Layout, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").touch()
    bundle = await create_bundle(layout, "ns", "t1", b"{}")
    os.unlink(bundle.file("work"))
    os.symlink(elsewhere, bundle.file("work"))
    await delete_bundle(bundle)
    assert (elsewhere / "precious").exists()


def test_a_private_file_is_replaced_whole_and_never_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("x")
    path = tmp_path / "file"
    path.symlink_to(victim)
    write_private(str(path), b"new", 0o644)
    assert (path.read_bytes(), mode(str(path)), victim.read_text()) == (b"new", 0o644, "x")
    assert sorted(os.listdir(tmp_path)) == ["file", "victim"]
