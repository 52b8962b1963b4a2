"""Transforms: what they make, that nothing is made outside of the roots, one image however many ask (S1, S9)."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
import trio

from shim.errors import FailedPrecondition, InvalidArgument, ShimError, Unimplemented, Unknown
from shim.kernel import native
from shim.kernel.children import PidfdChildren
from shim.model.mounts import Mount
from shim.model.transform_options import ImageRequest
from shim.mounts import images
from shim.mounts.apply import mount_all
from shim.mounts.transforms import Means
from shim.mounts.unwind import unmount_all
from tests.system.harness.mounting import loop_images, make_erofs, mounted, open_root, points

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

MKDIR: Final = "X-containerd.mkdir.path="
MKFS: Final = "X-containerd.mkfs."


@pytest.fixture
async def root(directory: Path) -> AsyncIterator[Path]:
    async with open_root(directory) as made:
        yield made


@pytest.fixture
def allowed(directory: Path) -> Path:
    made = directory / "allowed"
    made.mkdir()
    return made


@pytest.fixture
def means(allowed: Path, nursery: trio.Nursery) -> Means:
    return Means((str(allowed),), PidfdChildren(nursery))


def in_use(directory: Path) -> list[str]:
    return [image for image in loop_images().values() if image.startswith(f"{directory}/")]


def everything(directory: Path) -> list[str]:
    """All files and directories, with their modes: what must not change."""
    found = [directory, *directory.rglob("*")]
    return sorted(f"{path} {path.lstat().st_mode:o} {path.lstat().st_mtime_ns}" for path in found)


async def test_S1_an_overlay_over_a_made_image_and_an_erofs_layer(
    directory: Path, root: Path, allowed: Path, means: Means, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    real = native.mount

    def recorded(source: str, target: str, kind: str, flags: int, data: str) -> None:
        calls.append(f"{source} {kind} {data}")
        real(source, target, kind, flags, data)

    monkeypatch.setattr(native, "mount", recorded)
    image = allowed / "image"
    mounts = [
        Mount("mkfs/ext4", str(image), options=(f"{MKFS}size=16MiB", "loop")),
        Mount("erofs", str(make_erofs(directory / "layer"))),
        Mount(
            "format/mkdir/overlay",
            "overlay",
            options=(
                f"{MKDIR}{{{{ mount 0 }}}}/upper:0755",
                f"{MKDIR}{{{{ mount 0 }}}}/work",
                "lowerdir={{ overlay 1 1 }}",
                "upperdir={{ mount 0 }}/upper",
                "workdir={{ mount 0 }}/work",
            ),
        ),
    ]
    for text in ("first", "second"):
        await mount_all(mounts, str(root), means=means)
        assert [entry.type for entry in mounted(root)] == ["ext4", "erofs", "overlay"]
        assert (root / "file").read_text() == "layer"
        (root / text).write_text(text)
        await unmount_all(str(root))
        assert in_use(directory) == []
    assert not any("{{" in call or "X-containerd" in call for call in calls)
    shown = subprocess.run(["debugfs", "-R", "ls -p /upper", image], capture_output=True, text=True, check=True)
    assert {"first", "second"} <= {line.split("/")[5] for line in shown.stdout.split()}
    assert stat.S_IMODE(image.stat().st_mode) == 0o640
    assert os.listdir(allowed) == ["image"]


@pytest.mark.parametrize("failing", [0, 1, 2])
async def test_a_failure_at_any_step_leaves_no_mount_and_no_device(
    directory: Path, root: Path, allowed: Path, means: Means, failing: int
) -> None:
    layers = [
        Mount("mkfs/ext4", str(allowed / "image"), options=(f"{MKFS}size=4m", "loop")),
        Mount("erofs", str(make_erofs(directory / "layer"))),
        Mount("format/overlay", "overlay", options=("lowerdir={{ overlay 1 0 }}",)),
    ]
    bad = (
        Mount("mkfs/ext4", str(directory / "image"), options=(f"{MKFS}size=4m", "loop")),
        Mount("format/erofs", "{{ mount 1 }}"),
        Mount("format/overlay", "overlay", options=("lowerdir={{ overlay 0 2 }}",)),
    )
    layers[failing] = bad[failing]
    with pytest.raises(InvalidArgument):
        await mount_all(layers, str(root), means=means)
    assert mounted(root) == []
    assert in_use(directory) == []


async def test_a_name_means_its_mount_although_others_lie_on_it(root: Path, means: Means) -> None:
    mounts = [
        Mount("tmpfs", "first", options=("size=4k",)),
        Mount("format/mkdir/tmpfs", "{{ source 0 }}", options=("size=8k", f"{MKDIR}{{{{ mount 0 }}}}/made")),
        Mount("format/mkdir/bind", "{{ mount 0 }}/made", options=("rbind", f"{MKDIR}{{{{ mount 0 }}}}/made/in:0750")),
    ]
    await mount_all(mounts, str(root), means=means)
    assert points(root) == ["", "", ""]
    assert [entry.source for entry in mounted(root)] == ["first", "first", "first"]
    assert os.listdir(root) == ["in"]
    assert "size=4k" in mounted(root)[2].super_options
    await unmount_all(str(root))


async def test_S9_directories(root: Path, allowed: Path, means: Means) -> None:
    (allowed / "there").mkdir(mode=0o711)
    (allowed / "there").chmod(0o711)
    options = [
        "size=4k",
        f"{MKDIR}{allowed}/a",
        f"{MKDIR}{allowed}//a/b/:0755",
        f"{MKDIR}{allowed}/c:1777:0:0",
        f"{MKDIR}{allowed}/there:0711",
    ]
    before = os.umask(0o077)
    try:
        await mount_all([Mount("mkdir/tmpfs", "tmpfs", options=options)], str(root), means=means)
    finally:
        os.umask(before)
    modes = {name: stat.S_IMODE((allowed / name).stat().st_mode) for name in ("a", "a/b", "c", "there")}
    assert modes == {"a": 0o700, "a/b": 0o755, "c": 0o1777, "there": 0o711}
    await unmount_all(str(root))
    await mount_all([Mount("mkdir/tmpfs", "tmpfs", options=options)], str(root), means=means)  # all there by now
    await unmount_all(str(root))


BAD_DIRECTORIES: Final = [
    "",
    "relative",
    "{allowed}",
    "{directory}/outside/made",
    "/tmp/shim-made-outside",
    "{allowed}/../outside/made",
    "{allowed}/./made",
    "{allowed}/link/made",
    "{allowed}/absolute/made",
    "{allowed}/up/made",
    "{allowed}/loop/made",
    "{allowed}/missing/made",
    "{allowed}/file/made",
    "{allowed}/file",
    "{allowed}/link:0755",
    "{allowed}/there:0755",
    "{allowed}/there:0700:0:7",
    "{allowed}/made:0700:7:0",
    "{allowed}/made:abc",
    "{allowed}/made:0700:0",
    "{allowed}/made:0700:0:0:0",
    "{allowed}-not/made",
    "{allowed}/" + "n" * 256,
    "{allowed}/" + "n" * 256 + "/made",
    "/proc/self/root{directory}/outside/made",
]


@pytest.mark.parametrize("value", BAD_DIRECTORIES)
async def test_S9_nothing_is_made_outside(directory: Path, root: Path, allowed: Path, means: Means, value: str) -> None:
    for name in ("outside", "allowed-not", "allowed/there"):
        (directory / name).mkdir(mode=0o700)
    (allowed / "file").touch()
    (allowed / "link").symlink_to("../outside")
    (allowed / "absolute").symlink_to(directory / "outside")
    (allowed / "up").symlink_to("..")
    (allowed / "loop").symlink_to("loop")
    before = everything(directory)
    option = MKDIR + value.format(directory=directory, allowed=allowed)
    with pytest.raises(InvalidArgument):
        await mount_all([Mount("mkdir/tmpfs", "tmpfs", options=(option,))], str(root), means=means)
    assert everything(directory) == before
    assert not os.path.lexists("/tmp/shim-made-outside")
    assert mounted(root) == []


async def test_S9_without_allowed_roots_nothing_is_made(directory: Path, root: Path) -> None:
    mounts = [Mount("tmpfs", "tmpfs"), Mount("mkdir/tmpfs", "tmpfs", options=(f"{MKDIR}{directory}/made",))]
    with pytest.raises(InvalidArgument, match="outside of the allowed directories"):
        await mount_all(mounts, str(root))
    assert not (directory / "made").exists()
    assert mounted(root) == []


@pytest.mark.parametrize("options", [(), (f"{MKDIR[:-6]}.mode=0700",), ("X-containerd.other=1",)])
async def test_S9_unknown_keys_and_nothing_to_do(
    root: Path, means: Means, allowed: Path, options: tuple[str, ...]
) -> None:
    if options == ("X-containerd.other=1",):
        options = (*options, f"{MKDIR}{allowed}/made")
    with pytest.raises(InvalidArgument):
        await mount_all([Mount("mkdir/tmpfs", "tmpfs", options=options)], str(root), means=means)
    assert mounted(root) == []
    assert os.listdir(allowed) == []


@pytest.mark.parametrize(("fs", "size"), [("ext2", "1m"), ("ext3", "4m"), ("ext4", "4m"), ("xfs", "300m")])
async def test_images_of_each_kind(root: Path, allowed: Path, means: Means, fs: str, size: str) -> None:
    uuid = "01234567-89ab-cdef-0123-456789abcdef"
    image = allowed / "image"
    options = (f"{MKFS}size={size}", f"{MKFS}fs={fs}", f"{MKFS}uuid={uuid}", "loop")
    await mount_all([Mount(f"mkfs/{fs}", str(image), options=options)], str(root), means=means)
    assert mounted(root)[0].type == fs
    shown = subprocess.run(["blkid", "-p", "-o", "export", image], capture_output=True, text=True, check=True)
    assert {f"UUID={uuid}", f"TYPE={fs}"} <= set(shown.stdout.split())
    await unmount_all(str(root))
    assert image.stat().st_size == int(size[:-1]) << 20


@pytest.mark.parametrize("prepare", ["outside", "link", "directory", "fifo", "draft", "draft directory", "name"])
async def test_paths_of_images_that_are_refused(
    directory: Path, root: Path, allowed: Path, means: Means, prepare: str
) -> None:
    outside = directory / "outside"
    outside.mkdir()
    image = outside / "image" if prepare == "outside" else allowed / "image"
    if prepare == "name":
        image = allowed / ("n" * 252)
    things: dict[str, Callable[[], object]] = {
        "outside": lambda: None,
        "name": lambda: None,
        "link": lambda: image.symlink_to(outside / "target"),
        "directory": image.mkdir,
        "fifo": lambda: os.mkfifo(image),
        "draft directory": (allowed / ".image.mkfs").mkdir,
        "draft": lambda: (allowed / ".image.mkfs").symlink_to(outside / "target"),
    }
    things[prepare]()
    with pytest.raises(InvalidArgument):
        await mount_all([Mount("mkfs/ext4", str(image), options=(f"{MKFS}size=4m", "loop"))], str(root), means=means)
    assert os.listdir(outside) == []
    assert mounted(root) == []
    assert in_use(directory) == []


async def test_an_image_that_is_there_is_left_alone(root: Path, allowed: Path, means: Means) -> None:
    (allowed / "image").write_text("precious")
    mount = Mount("mkfs/ext4", str(allowed / "image"), options=(f"{MKFS}size=4m", "loop"))
    with pytest.raises(Unknown):
        await mount_all([mount], str(root), means=means)
    assert (allowed / "image").read_text() == "precious"
    assert os.listdir(allowed) == ["image"]


async def test_without_programs(root: Path, allowed: Path, means: Means, monkeypatch: pytest.MonkeyPatch) -> None:
    mount = Mount("mkfs/ext4", str(allowed / "image"), options=(f"{MKFS}size=4m", "loop"))
    cases: list[tuple[Means, type[ShimError]]] = [
        (Means(means.roots), Unimplemented),
        (means, FailedPrecondition),
    ]
    monkeypatch.setenv("PATH", str(allowed))
    for given, leaf in cases:
        with pytest.raises(leaf):
            await mount_all([mount], str(root), means=given)
        assert os.listdir(allowed) == []


async def test_a_program_that_fails_leaves_nothing(
    directory: Path, root: Path, allowed: Path, means: Means, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_program(directory, monkeypatch, "echo no such luck >&2; exit 3")
    mount = Mount("mkfs/ext4", str(allowed / "image"), options=(f"{MKFS}size=4m", "loop"))
    with pytest.raises(Unknown, match=r"mkfs\.ext4 ended with 3: no such luck"):
        await mount_all([mount], str(root), means=means)
    assert os.listdir(allowed) == []


def fake_program(directory: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Put a mkfs.ext4 of one's own before the real one."""
    place = directory / "programs"
    place.mkdir()
    program = place / "mkfs.ext4"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")


async def test_one_image_however_many_ask(
    directory: Path, allowed: Path, means: Means, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = directory / "log"
    fake_program(directory, monkeypatch, f'echo run >> {log}; exec /sbin/mkfs.ext4 "$@"')
    (directory / "other").symlink_to(allowed)  # another way to the same directory
    request = ImageRequest(8 << 20)
    roots = (str(allowed), str(directory / "other"))

    async def ask(place: str) -> None:
        await images.make_image(f"{place}/image", request, roots, children=means.children)

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(ask, roots[number % 2])
    assert log.read_text() == "run\n"
    assert os.listdir(allowed) == ["image"]


async def test_a_caller_that_goes_leaves_no_half_image(
    directory: Path, allowed: Path, means: Means, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(directory / "begun")
    fake_program(directory, monkeypatch, f"echo x > {directory}/begun; exec sleep 1000")
    begun = os.open(directory / "begun", os.O_RDWR | os.O_NONBLOCK)

    async def ask() -> None:
        await images.make_image(f"{allowed}/image", ImageRequest(8 << 20), means.roots, children=means.children)

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            with trio.fail_after(10):
                await trio.lowlevel.wait_readable(begun)
            assert os.listdir(allowed) == [".image.mkfs"]
            nursery.cancel_scope.cancel()
    finally:
        os.close(begun)
    assert os.listdir(allowed) == []
    assert means.children is not None
    assert means.children.processes() == ()


KILLED: Final = """
import sys, trio
from shim.kernel.children import open_children
from shim.model.transform_options import ImageRequest
from shim.mounts.images import make_image

async def main() -> None:
    async with open_children() as children:
        await make_image(sys.argv[1] + "/image", ImageRequest(8 << 20), (sys.argv[1],), children=children)

trio.run(main)
"""


@pytest.mark.parametrize("survivor", [False, True], ids=["", "program goes on"])
async def test_a_half_formatted_image_is_never_taken_for_a_good_one(
    directory: Path, root: Path, allowed: Path, means: Means, monkeypatch: pytest.MonkeyPatch, survivor: bool
) -> None:
    """Kill the process while the program runs; with `survivor` the program is not told, as one stuck in the kernel."""
    begun = directory / "begun"
    os.mkfifo(begun)
    body = f"echo half >&3; echo $$ > {begun}; exec sleep 1000"
    if survivor:
        body = f"(echo half >&3; exec sleep 1000) & echo $! > {begun}; wait"
    with monkeypatch.context() as patched:
        fake_program(directory, patched, body)
        reader = os.open(begun, os.O_RDWR | os.O_NONBLOCK)
        killed = subprocess.Popen([sys.executable, "-c", KILLED, str(allowed)], cwd=Path(__file__).parents[2])
        with trio.fail_after(20):
            await trio.lowlevel.wait_readable(reader)
        pid = int(os.read(reader, 100))
        os.close(reader)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    assert os.listdir(allowed) == [".image.mkfs"]
    mount = Mount("mkfs/ext4", str(allowed / "image"), options=(f"{MKFS}size=8m", "loop"))
    if survivor:
        with pytest.raises(trio.TooSlowError), trio.fail_after(0.2):
            await mount_all([mount], str(root), means=means)
        assert os.listdir(allowed) == [".image.mkfs"]
        os.kill(pid, signal.SIGKILL)
    with trio.fail_after(20):
        await mount_all([mount], str(root), means=means)
    assert (root / "lost+found").is_dir()
    await unmount_all(str(root))
    assert os.listdir(allowed) == ["image"]
