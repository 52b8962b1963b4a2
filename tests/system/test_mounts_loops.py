"""Loop devices: freed with their last user, never somebody else's (rows T5, T6); and EROFS files (row S10)."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from shim.errors import InvalidArgument, Unknown
from shim.kernel import erofs, native
from shim.kernel.loops import KeptLoop, free_loop, keep_loop, open_loop
from shim.kernel.threads import Threads
from shim.model.mounts import Mount
from shim.mounts.apply import mount_all
from shim.mounts.loop_points import make_loop_point, take_loop_point
from shim.mounts.unwind import unmount_all
from tests.system.harness.mounting import loop_images, make_erofs, make_ext4, mounted, open_root

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def root(directory: Path) -> AsyncIterator[Path]:
    async with open_root(directory) as made:
        yield made


def in_use(directory: Path) -> list[str]:
    """The images below `directory` that a loop device is in use for; others' devices come and go."""
    return [image for image in loop_images().values() if image.startswith(f"{directory}/")]


async def test_T5_a_hundred_in_use_eight_at_a_time(directory: Path, root: Path) -> None:
    threads = Threads("test", 8)
    first = make_ext4(directory / "image0", "1M")
    images = [first, *(directory / f"image{number}" for number in range(1, 100))]
    for image in images[1:]:
        shutil.copyfile(first, image)
    foreign = directory / "foreign"
    shutil.copyfile(first, foreign)
    kept = keep_loop(str(foreign), read_only=False)
    errors: list[Exception] = []

    async def each(number: int, work: str) -> None:
        place = root / str(number)
        try:
            if work == "mount":
                await mount_all([Mount("ext4", str(images[number]), options=("loop",))], str(place), threads=threads)
            else:
                await unmount_all(str(place), threads=threads)
        except Exception as error:
            errors.append(error)

    for number in range(100):
        (root / str(number)).mkdir()
    try:
        for work in ("mount", "unmount"):
            async with trio.open_nursery() as nursery:
                for number in range(100):
                    nursery.start_soon(each, number, work)
            assert errors == []
            assert len(mounted(root)) == (100 if work == "mount" else 0)
            assert sorted(in_use(directory)) == sorted(map(str, [*images, foreign] if work == "mount" else [foreign]))
        assert loop_images()[f"loop{kept.number}"] == str(foreign)
    finally:
        free_loop(kept)
    assert in_use(directory) == []


async def test_T5_mounting_and_unmounting_at_the_same_time(directory: Path, root: Path) -> None:
    images = [make_ext4(directory / f"image{number}", "1M") for number in range(8)]

    async def again_and_again(number: int) -> None:
        place = root / str(number)
        place.mkdir()
        for _ in range(10):
            await mount_all([Mount("ext4", str(images[number]), options=("loop",))], str(place))
            (place / "file").write_text(str(number))
            await unmount_all(str(place))

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(again_and_again, number)
    assert in_use(directory) == []
    for number, image in enumerate(images):
        shown = subprocess.run(["debugfs", "-R", "cat file", image], capture_output=True, check=True)
        assert shown.stdout == str(number).encode()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda image: image.write_bytes(b""),
        lambda image: image.write_bytes(b"x" * 100),
        lambda image: image.write_bytes(bytes(1 << 20)),
        lambda image: os.truncate(make_ext4(image), 2 << 20),
    ],
    ids=["empty", "less than a sector", "zeroes", "cut off"],
)
async def test_T6_an_image_that_is_no_file_system(directory: Path, root: Path, spoil: object) -> None:
    assert callable(spoil)
    image = directory / "image"
    spoil(image)
    for options in (("loop",), ("loop", "ro"), ("loop", "direct-io")):
        with pytest.raises(Unknown, match="failed to mount rootfs component"):
            await mount_all([Mount("tmpfs", "tmpfs"), Mount("ext4", str(image), options=options)], str(root))
        assert mounted(root) == []
        assert in_use(directory) == []


async def test_T6_what_is_no_image_at_all(directory: Path, root: Path) -> None:
    os.mkfifo(directory / "fifo")
    for name, leaf in (("fifo", InvalidArgument), ("missing", Unknown), ("rootfs", Unknown)):
        with pytest.raises(leaf):
            await mount_all([Mount("ext4", str(directory / name), options=("loop",))], str(root))
    assert mounted(root) == []
    assert in_use(directory) == []


@pytest.mark.parametrize("options", [("loop",), ("loop", "direct-io"), ("loop", "ro"), ("loop", "ro", "direct-io")])
@pytest.mark.parametrize("more", [0, 1, 511, 512, 4095])
async def test_an_image_that_ends_inside_a_block(
    directory: Path, root: Path, more: int, options: tuple[str, ...]
) -> None:
    image = make_ext4(directory / "image", "4M")
    with open(image, "ab") as stream:
        stream.write(b"x" * more)
    await mount_all([Mount("ext4", str(image), options=options)], str(root))
    assert (root / "lost+found").is_dir()
    if "ro" not in options:
        (root / "file").write_text("kept")
    await unmount_all(str(root))
    assert image.stat().st_size == (4 << 20) + more
    assert in_use(directory) == []


async def test_read_only_and_direct_io_reach_the_device(directory: Path, root: Path) -> None:
    image = make_ext4(directory / "image")
    image.chmod(0o400)
    await mount_all([Mount("ext4", str(image), options=("loop", "ro", "direct-io"))], str(root))
    (device,) = [name for name, backing in loop_images().items() if backing == str(image)]
    settings = Path("/sys/block", device)
    assert (settings / "ro").read_text() == (settings / "loop/autoclear").read_text() == "1\n"
    assert (settings / "loop/dio").read_text() == ("1\n" if direct_io_works(directory) else "0\n")
    await unmount_all(str(root))


def direct_io_works(directory: Path) -> bool:
    """Whether the file system below the tests takes direct I/O; a loop device does without where it does not."""
    try:
        os.close(os.open(directory / "image", os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


async def test_a_block_device_needs_no_loop_device_before_it(directory: Path, root: Path) -> None:
    image = make_ext4(directory / "image")
    with open_loop(str(image), read_only=False) as device:
        await mount_all([Mount("ext4", device.path, options=("loop",))], str(root))
        assert len(in_use(directory)) == 1
        assert mounted(root)[0].source == device.path
        await unmount_all(str(root))
    assert in_use(directory) == []


def test_a_kept_device_stays_and_only_its_own_is_freed(directory: Path) -> None:
    image, other = make_ext4(directory / "image", "1M"), make_ext4(directory / "other", "1M")
    kept = keep_loop(str(image), read_only=True)
    assert loop_images()[f"loop{kept.number}"] == str(image)
    assert free_loop(kept)
    assert not free_loop(kept)
    device = open_loop(str(other), read_only=True)
    with device:
        number, image_device, image_inode = native.loop_identify(device.fd.fileno())
        assert image_inode == other.stat().st_ino
        # The number was given out again: what was remembered of the first one must not hit the second.
        assert not free_loop(KeptLoop(number, image_device, kept.image_inode))
        assert loop_images()[f"loop{number}"] == str(other)
    assert in_use(directory) == []
    assert not free_loop(KeptLoop(4000, 0, 0))


def test_a_loop_device_with_a_place(directory: Path) -> None:
    image, point = make_ext4(directory / "image", "1M"), directory / "point"
    kept = make_loop_point(Mount("loop", str(image), options=("ro",)), str(point))
    assert os.readlink(point) == kept.path
    assert loop_images()[f"loop{kept.number}"] == str(image)
    with pytest.raises(FileExistsError):
        make_loop_point(Mount("loop", str(image)), str(point))
    assert len(in_use(directory)) == 1
    assert take_loop_point(kept, str(point))
    assert not take_loop_point(kept, str(point))
    assert not os.path.lexists(point)
    for bad in (Mount("loop", str(image), options=("X-containerd.a=1",)), Mount("ext4", str(image))):
        with pytest.raises(InvalidArgument):
            make_loop_point(bad, str(point))
    assert in_use(directory) == []


async def test_a_loop_device_as_a_mount_of_its_own(directory: Path, root: Path) -> None:
    image = make_ext4(directory / "image")
    mounts = [Mount("loop", str(image)), Mount("format/ext4", "{{ mount 0 }}")]
    await mount_all(mounts, str(root))
    assert len(mounted(root)) == len(in_use(directory)) == 1
    await unmount_all(str(root))
    assert in_use(directory) == []
    await mount_all(mounts[:1], str(root))  # nobody uses it
    assert in_use(directory) == []


@pytest.mark.parametrize("by_file", [True, False], ids=["file", "loop"])
@pytest.mark.parametrize("options", [(), ("loop",), ("ro", "loop"), ("rw",)])
async def test_S10_erofs_with_and_without_a_loop_device(
    directory: Path, root: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], by_file: bool
) -> None:
    monkeypatch.setattr(erofs, "mount_erofs", functools.partial(erofs.mount_erofs, by_file=by_file))
    image = make_erofs(directory / "image")
    await mount_all([Mount("erofs", str(image), options=options)], str(root))
    assert (root / "file").read_text() == "image"
    assert "ro" in mounted(root)[0].options
    assert len(in_use(directory)) == (0 if by_file else 1)
    with pytest.raises(OSError, match="Read-only file system"):
        (root / "new").touch()
    await unmount_all(str(root))
    assert in_use(directory) == []


@pytest.mark.parametrize("by_file", [True, False], ids=["file", "loop"])
async def test_S10_further_devices(directory: Path, root: Path, monkeypatch: pytest.MonkeyPatch, by_file: bool) -> None:
    monkeypatch.setattr(erofs, "mount_erofs", functools.partial(erofs.mount_erofs, by_file=by_file))
    blobs = directory / "blobs"
    image = make_erofs(directory / "image", f"--blobdev={blobs}", "--chunksize=4096")
    await mount_all([Mount("erofs", str(image), options=(f"device={blobs}",))], str(root))
    assert (root / "file").read_text() == "image"
    assert len(in_use(directory)) == (0 if by_file else 2)
    await unmount_all(str(root))
    with pytest.raises(Unknown):
        await mount_all([Mount("erofs", str(image), options=(f"device={directory}/missing",))], str(root))
    assert in_use(directory) == []


@pytest.mark.parametrize("by_file", [True, False], ids=["file", "loop"])
async def test_S10_no_erofs_at_all(directory: Path, root: Path, monkeypatch: pytest.MonkeyPatch, by_file: bool) -> None:
    monkeypatch.setattr(erofs, "mount_erofs", functools.partial(erofs.mount_erofs, by_file=by_file))
    (directory / "image").write_bytes(bytes(1 << 20))
    for name in ("image", "missing"):
        with pytest.raises(Unknown):
            await mount_all([Mount("erofs", str(directory / name))], str(root))
    assert mounted(root) == []
    assert in_use(directory) == []
