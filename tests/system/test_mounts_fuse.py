"""Kinds that a helper program makes: how it is run, and that a bad one leaves nothing (protocol.md 9.7)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import pytest
import trio

from shim.errors import FailedPrecondition, InvalidArgument, Unimplemented, Unknown
from shim.kernel.children import PidfdChildren
from shim.model.mounts import Mount
from shim.mounts.apply import mount_all
from shim.mounts.transforms import Means
from shim.mounts.unwind import unmount_all
from tests.system.harness.mounting import mounted, open_root, points

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

MOUNT_TMPFS: Final = 'mount -t tmpfs -o size=4k "helped" "$2"'


@pytest.fixture
async def root(directory: Path) -> AsyncIterator[Path]:
    async with open_root(directory) as made:
        yield made


@pytest.fixture
def means(nursery: trio.Nursery) -> Means:
    return Means(children=PidfdChildren(nursery))


def helper(directory: Path, monkeypatch: pytest.MonkeyPatch, body: str, name: str = "mount.fuse3") -> Path:
    """A helper of that name before all others; it logs its arguments, one a line."""
    place = directory / "programs"
    place.mkdir(exist_ok=True)
    log = directory / "log"
    (place / name).write_text(f'#!/bin/sh\nfor each in "$0" "$@"; do echo "$each"; done >> {log}\n{body}\n')
    (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    return log


@pytest.mark.parametrize(("kind", "name"), [("fuse.a", "mount.fuse"), ("fuse3.b.c", "mount.fuse3")])
async def test_the_helper_is_told_everything(
    directory: Path, root: Path, means: Means, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    log = helper(directory, monkeypatch, MOUNT_TMPFS, name)
    (root / "in").mkdir()
    (root / "link").symlink_to("/in")
    await mount_all([Mount(kind, "some:source", "link", ("ro", "allow_other", "a=b"))], str(root), means=means)
    assert points(root) == ["/in"]
    program, *words = log.read_text().splitlines()
    assert os.path.basename(program) == name
    assert words == [
        "some:source", f"{root}/in", "-o", "ro", "-o", "allow_other", "-o", "a=b", "-t", kind.split(".", 1)[1]
    ]  # fmt: skip
    await unmount_all(str(root))
    assert mounted(root) == []


async def test_a_template_names_what_the_helper_can_see(
    directory: Path, root: Path, means: Means, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = helper(directory, monkeypatch, f'ls "$1" > {directory}/seen\n{MOUNT_TMPFS}')
    (directory / "source").mkdir()
    (directory / "source" / "file").touch()
    mounts = [Mount("bind", str(directory / "source"), options=("rbind",)), Mount("format/fuse3.x", "{{ mount 0 }}")]
    await mount_all(mounts, str(root), means=means)
    assert (directory / "seen").read_text() == "file\n"
    assert "{{" not in log.read_text()
    await unmount_all(str(root))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("echo it is broken >&2; exit 4", r"mount\.fuse3 ended with 4: it is broken"),
        (f"{MOUNT_TMPFS}; echo half; exit 1", r"ended with 1: half"),
        ("exit 0", r"ended well and mounted nothing"),
        ("kill -9 $$", r"ended with 137"),
    ],
)
async def test_a_bad_helper_leaves_nothing(
    directory: Path, root: Path, means: Means, monkeypatch: pytest.MonkeyPatch, body: str, reason: str
) -> None:
    helper(directory, monkeypatch, body)
    with pytest.raises(Unknown, match=reason):
        await mount_all([Mount("tmpfs", "tmpfs"), Mount("fuse3.x", "source")], str(root), means=means)
    assert mounted(root) == []


async def test_a_later_failure_takes_the_helpers_mount_off(
    directory: Path, root: Path, means: Means, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper(directory, monkeypatch, MOUNT_TMPFS)
    with pytest.raises(Unknown):
        await mount_all([Mount("fuse3.x", "source"), Mount("tmpfs", "tmpfs", "missing")], str(root), means=means)
    assert mounted(root) == []


@pytest.mark.parametrize("before", ["", f"{MOUNT_TMPFS};"], ids=["", "mounted"])
async def test_a_caller_that_goes_takes_the_helper_with_it(
    directory: Path, root: Path, means: Means, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    os.mkfifo(directory / "begun")
    helper(directory, monkeypatch, f"{before} echo x > {directory}/begun; exec sleep 1000")
    begun = os.open(directory / "begun", os.O_RDWR | os.O_NONBLOCK)

    async def ask() -> None:
        await mount_all([Mount("tmpfs", "tmpfs"), Mount("fuse3.x", "source")], str(root), means=means)

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            with trio.fail_after(10):
                await trio.lowlevel.wait_readable(begun)
            nursery.cancel_scope.cancel()
    finally:
        os.close(begun)
    assert mounted(root) == []
    assert means.children is not None
    assert means.children.processes() == ()


async def test_what_cannot_be_run(directory: Path, root: Path, means: Means, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(directory))
    with pytest.raises(FailedPrecondition, match=r"mount\.fuse3 is not installed"):
        await mount_all([Mount("fuse3.x", "source")], str(root), means=means)
    with pytest.raises(Unimplemented, match="no helper programs can be run here"):
        await mount_all([Mount("tmpfs", "tmpfs"), Mount("fuse3.x", "source")], str(root))
    for mount in (
        Mount("fuse3.", "source"),
        Mount("fuse.x", "-o"),
        Mount("fuse.x", "source", options=("X-containerd.mkdir.path=/a",)),
        Mount("fuse.x", "{{ mount 0 }}"),
    ):
        with pytest.raises(InvalidArgument):
            await mount_all([mount], str(root), means=means)
    assert mounted(root) == []
