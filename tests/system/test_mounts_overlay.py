"""Overlays with long lists of layers, each way to the kernel in turn, and with mapped ids (row S6)."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from shim.errors import InvalidArgument, Unknown
from shim.kernel import overlay
from shim.kernel.overlay import Way
from shim.model.mount_options import parse_options
from shim.model.mounts import Mount
from shim.mounts import handlers
from shim.mounts.apply import mount_all
from shim.mounts.unwind import unmount_all
from tests.system.harness.mounting import make_ext4, mounted, open_root

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

MAPPED: Final = ("uidmap=0:1000:10", "gidmap=0:2000:10")
EACH_WAY: Final = [Way.LAYERS, Way.DESCRIPTORS, Way.RELATIVE]


@pytest.fixture
async def root(directory: Path) -> AsyncIterator[Path]:
    async with open_root(directory) as made:
        yield made


@pytest.fixture(autouse=True)
def _no_working_directory_changes() -> Iterator[None]:
    def places() -> set[str]:
        return {os.readlink(f"/proc/self/task/{task}/cwd") for task in os.listdir("/proc/self/task")}

    before = places()
    yield
    assert places() == before == {os.getcwd()}


def make_layers(parent: Path, count: int, total: int) -> tuple[list[Path], list[str]]:
    """Layers and the options that name them, of exactly `total` bytes as mount(2) takes them.

    Each has a file of its own and one that all have, with its number.  The length is in the directory they share.
    """
    fixed = ["volatile", f"upperdir={parent}/upper", f"workdir={parent}/work"]
    for name in ("upper", "work"):
        (parent / name).mkdir()
    spare = total - len(",".join([*fixed, "lowerdir="])) - (count - 1)
    each, rest = divmod(spare, count)
    shared = "s" * (each - len(str(parent)) - 6)
    layers = [parent / shared / f"{number:0{5 if number < rest else 4}}" for number in range(count)]
    for number, layer in enumerate(layers):
        layer.mkdir(parents=True)
        (layer / f"file{number}").touch()
        (layer / "who").write_text(str(number))
    options = [*fixed, "lowerdir=" + ":".join(map(str, layers))]
    assert len(",".join(options)) == total
    return layers, options


def check_merged(root: Path, count: int) -> None:
    assert len(os.listdir(root)) == count + 1
    assert (root / "who").read_text() == "0"  # the first is on top
    (root / "written").write_text("x")


@pytest.mark.parametrize("total", [4095, 4096, 4097, 13000])
async def test_S6_a_hundred_layers_of_any_length(directory: Path, root: Path, total: int) -> None:
    _, options = make_layers(directory, 100, total)
    assert overlay.choose_way(parse_options(options)) is (Way.WHOLE if total < 4096 else Way.LAYERS)
    await mount_all([Mount("overlay", "overlay", options=options)], str(root))
    check_merged(root, 100)
    assert len(mounted(root)) == 1
    await unmount_all(str(root))
    assert (directory / "upper" / "written").exists()


@pytest.mark.parametrize("way", EACH_WAY)
@pytest.mark.parametrize("total", [4095, 4096, 4097, 13000])
async def test_S6_each_way(directory: Path, root: Path, monkeypatch: pytest.MonkeyPatch, total: int, way: Way) -> None:
    monkeypatch.setattr(overlay, "ORDER", (way,))
    layers, options = make_layers(directory, 100, total)
    await mount_all([Mount("overlay", "overlay", options=options)], str(root))
    check_merged(root, 100)
    shown = [option for option in mounted(root)[0].super_options if option.startswith(("lowerdir", "/proc"))]
    if way is Way.LAYERS:
        assert shown == [f"lowerdir+={layer}" for layer in layers]
    elif way is Way.DESCRIPTORS:
        assert all("/proc/self/fd/" in each for each in shown[0].split(":"))
    else:
        assert shown == ["lowerdir=" + ":".join(layer.name for layer in layers)]
    await unmount_all(str(root))


@pytest.mark.parametrize("way", [Way.WHOLE, *EACH_WAY])
async def test_S6_a_path_of_300_bytes(directory: Path, root: Path, monkeypatch: pytest.MonkeyPatch, way: Way) -> None:
    monkeypatch.setattr(overlay, "ORDER", (way,))
    long = directory / ("a" * 140) / ("b" * (297 - len(str(directory)) - 140))
    assert len(str(long)) == 299
    places = [long / name for name in ("l", "u", "w")]
    for place in places:
        place.mkdir(parents=True)
    (long / "l" / "file").touch()
    (directory / "short").mkdir()
    options = [f"lowerdir={long}/l:{directory}/short", f"upperdir={long}/u", f"workdir={long}/w"]
    await mount_all([Mount("overlay", "overlay", options=options)], str(root))
    (root / "written").touch()
    assert sorted(os.listdir(root)) == ["file", "written"]
    assert (long / "u" / "written").exists()
    await unmount_all(str(root))


@pytest.mark.parametrize("way", [Way.WHOLE, *EACH_WAY])
async def test_names_that_need_escapes(directory: Path, root: Path, monkeypatch: pytest.MonkeyPatch, way: Way) -> None:
    monkeypatch.setattr(overlay, "ORDER", (way,))
    for number, name in enumerate(("co:lon", "com,ma", "back\\slash", "u:p", "w,k")):
        (directory / name).mkdir()
        (directory / name / f"f{number}").touch()
    (directory / "w,k" / "f4").unlink()
    options = [
        f"lowerdir={directory}/co\\:lon:{directory}/com\\,ma:{directory}/back\\\\slash",
        f"upperdir={directory}/u\\:p",
        f"workdir={directory}/w\\,k",
    ]
    await mount_all([Mount("overlay", "overlay", options=options)], str(root))
    assert sorted(os.listdir(root)) == ["f0", "f1", "f2", "f3"]
    (root / "written").touch()
    assert (directory / "u:p" / "written").exists()
    await unmount_all(str(root))


@pytest.mark.parametrize("way", [Way.WHOLE, *EACH_WAY])
async def test_flags_hold_on_every_way(directory: Path, root: Path, monkeypatch: pytest.MonkeyPatch, way: Way) -> None:
    monkeypatch.setattr(overlay, "ORDER", (way,))
    for name in ("a", "b"):
        (directory / name).mkdir()
    options = [f"lowerdir={directory}/a:{directory}/b", "ro", "nosuid", "nodev", "noatime", "rshared"]
    await mount_all([Mount("overlay", "overlay", options=options)], str(root))
    entry = mounted(root)[0]
    assert {"ro", "nosuid", "nodev", "noatime"} <= set(entry.options)
    assert "ro" in entry.super_options
    assert entry.tags[0].startswith("shared:")
    await unmount_all(str(root))


async def test_layers_that_a_kernel_refuses_are_told_with_its_reason(directory: Path, root: Path) -> None:
    _, options = make_layers(directory, 501, 20000 + 501 * len(str(directory)))
    with pytest.raises(Unknown, match=r"failed to mount rootfs component: .*500"):
        await mount_all([Mount("overlay", "overlay", options=options)], str(root))
    assert mounted(root) == []


async def test_what_no_way_can_say_is_refused_before_any_mount(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlay, "ORDER", (Way.WHOLE, Way.DESCRIPTORS, Way.RELATIVE))  # as a kernel before 6.7
    made: list[str] = []
    monkeypatch.setattr(handlers, "make", lambda mount, *_, **__: made.append(mount.type))
    layers = ":".join(f"/{number}/snapshot/fs" for number in range(400))
    with pytest.raises(InvalidArgument, match="longer than 4095 bytes in every notation"):
        await mount_all(
            [Mount("tmpfs", "tmpfs"), Mount("overlay", "overlay", options=(f"lowerdir={layers}",))], str(root)
        )
    assert made == []


def owned(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_uid, found.st_gid


@pytest.mark.parametrize("detached", [True, False], ids=["detached", "attached"])
async def test_mapped_layers(directory: Path, root: Path, monkeypatch: pytest.MonkeyPatch, detached: bool) -> None:
    monkeypatch.setattr(overlay, "mount_overlay", functools.partial(overlay.mount_overlay, detached_layers=detached))
    for name in ("a", "b", "up", "work"):
        (directory / name).mkdir()
    (directory / "a" / "first").touch()
    (directory / "b" / "second").touch()
    os.chown(directory / "b" / "second", 3, 4)
    os.chown(directory / "up", 1000, 2000)
    options = [
        f"lowerdir={directory}/a:{directory}/b", f"upperdir={directory}/up", f"workdir={directory}/work", *MAPPED,
    ]  # fmt: skip
    await mount_all([Mount("overlay", "overlay", options=options)], str(root))
    assert owned(root / "first") == (1000, 2000)
    assert owned(root / "second") == (1003, 2004)
    (root / "second").write_text("copied up")
    assert owned(directory / "up" / "second") == (1003, 2004)
    assert owned(directory / "b" / "second") == (3, 4)
    assert len(mounted(root)) == 1
    assert not [entry for entry in mounted(Path("/run")) if "shim-layers" in entry.mount_point]
    assert list(Path("/run").glob("shim-layers-*")) == []
    await unmount_all(str(root))


async def test_a_long_list_of_mapped_layers(directory: Path, root: Path) -> None:
    _, options = make_layers(directory, 100, 13000)
    await mount_all([Mount("overlay", "overlay", options=[*options, *MAPPED])], str(root))
    check_merged(root, 100)
    assert owned(root / "file99") == (1000, 2000)
    await unmount_all(str(root))


async def test_binds_with_mapped_ids(directory: Path, root: Path) -> None:
    source = directory / "source"
    (source / "sub").mkdir(parents=True)
    (source / "file").touch()
    await mount_all([Mount("tmpfs", "tmpfs", "sub")], str(source))
    (source / "sub" / "inner").touch()
    await mount_all([Mount("bind", str(source), options=("rbind", "ro", "nosuid", *MAPPED))], str(root))
    assert owned(root / "file") == owned(root / "sub" / "inner") == (1000, 2000)
    assert {"ro", "nosuid", "idmapped"} <= set(mounted(root)[0].options)
    assert owned(source / "file") == (0, 0)
    await unmount_all(str(root))
    await mount_all([Mount("bind", str(source), options=("bind", *MAPPED))], str(root))
    assert os.listdir(root / "sub") == []
    await unmount_all(str(root))
    await unmount_all(str(source))


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
async def test_file_systems_with_mapped_ids(directory: Path, root: Path, kind: str) -> None:
    source = str(make_ext4(directory / "image")) if kind == "ext4" else "tmpfs"
    more = ("loop",) if kind == "ext4" else ("size=64k", "mode=750")
    await mount_all([Mount(kind, source, options=(*more, "nodev", *MAPPED))], str(root))
    assert owned(root) == (1000, 2000)
    assert {"nodev", "idmapped"} <= set(mounted(root)[0].options)
    if kind == "tmpfs":
        assert "size=64k" in mounted(root)[0].super_options
    await unmount_all(str(root))


async def test_several_ranges(directory: Path, root: Path) -> None:
    source = directory / "source"
    source.mkdir()
    for number in (0, 4, 11):
        (source / str(number)).touch()
        os.chown(source / str(number), number, number)
    maps = ("uidmap=0:1000:1,1:5000:10", "gidmap=0:2000:1,1:6000:10")
    await mount_all([Mount("bind", str(source), options=("rbind", *maps))], str(root))
    assert owned(root / "0") == (1000, 2000)
    assert owned(root / "4") == (5003, 6003)
    assert owned(root / "11") == (65534, 65534)  # in no range
    await unmount_all(str(root))


async def test_a_kind_that_cannot_be_mapped_says_so(root: Path) -> None:
    with pytest.raises(Unknown, match="map the ids of a mount: Invalid argument"):
        await mount_all([Mount("tmpfs", "tmpfs"), Mount("proc", "proc", options=MAPPED)], str(root))
    assert mounted(root) == []
