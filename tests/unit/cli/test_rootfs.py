from __future__ import annotations

import os
import shutil
import stat
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from shim.cli.rootfs import SYSTEM_CACHE, cache_directory, ensure_rootfs, find_busybox, make_rootfs, overlay_on
from shim.errors import InvalidArgument, NotFound
from shim.kernel.children import open_children
from shim.manager.bundle import Bundle

if TYPE_CHECKING:
    from pathlib import Path


def elf(path: Path, *segments: int) -> Path:
    """A program with these program headers, and nothing else."""
    head = (
        b"\x7fELF\x02\x01\x01"
        + bytes(9)
        + struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, 0, 64, 0, 0, 64, 56, len(segments), 0, 0, 0)
    )
    path.write_bytes(head + b"".join(struct.pack("<I", kind) + bytes(52) for kind in segments))
    path.chmod(0o755)
    return path


def test_the_cache_is_the_users_when_he_names_one() -> None:
    assert cache_directory({"XDG_CACHE_HOME": "/home/x/.cache"}) == "/home/x/.cache/shimctl"
    assert cache_directory({"XDG_CACHE_HOME": "relative"}) == cache_directory({}) == SYSTEM_CACHE


def test_busybox_must_be_there_and_static(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="install busybox-static, or give --rootfs"):
        find_busybox(str(tmp_path))
    path = elf(tmp_path / "busybox", 1, 3)
    with pytest.raises(NotFound, match="not a static program"):
        find_busybox(str(tmp_path))
    elf(path, 1, 1)
    assert find_busybox(str(tmp_path)) == str(path)
    path.write_text("#!/bin/sh\n")
    with pytest.raises(NotFound):
        find_busybox(str(tmp_path))


def test_applets_are_links_and_busybox_is_none_to_itself(tmp_path: Path) -> None:
    busybox = elf(tmp_path / "busybox", 1)
    before = os.umask(0o077)
    try:
        make_rootfs(str(tmp_path / "cache" / "made"), str(busybox), ["[", "busybox", "sh", "../../evil"])
    finally:
        os.umask(before)
    made = tmp_path / "cache" / "made"
    assert sorted(path.name for path in (made / "bin").iterdir()) == ["[", "busybox", "sh"]
    assert not (made / "bin" / "busybox").is_symlink()
    assert os.readlink(made / "bin" / "sh") == "busybox"
    assert stat.S_IMODE((made / "tmp").stat().st_mode) == 0o1777
    assert stat.S_IMODE(made.stat().st_mode) == stat.S_IMODE((made / "etc").stat().st_mode) == 0o755
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["made"]


def test_many_runs_at_once_make_one_whole_root_file_system(tmp_path: Path) -> None:
    busybox = elf(tmp_path / "busybox", 1)
    wanted = tmp_path / "cache" / "made"
    applets = [f"a{number}" for number in range(200)]
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(make_rootfs, str(wanted), str(busybox), applets) for _ in range(16)]:
            done.result()
    assert len(list((wanted / "bin").iterdir())) == 201
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["made"]


def test_what_a_killed_run_left_is_removed_and_what_a_living_one_makes_is_not(tmp_path: Path) -> None:
    busybox = elf(tmp_path / "busybox", 1)
    cache = tmp_path / "cache"
    ended = subprocess.Popen(["true"])
    ended.wait()
    (cache / f".making-{ended.pid}-x").mkdir(parents=True)
    (cache / f".making-{os.getppid()}-x").mkdir()
    make_rootfs(str(cache / "made"), str(busybox), [])
    assert sorted(path.name for path in cache.iterdir()) == [f".making-{os.getppid()}-x", "made"]


async def test_the_hosts_busybox_gives_a_root_file_system_once(tmp_path: Path) -> None:
    if shutil.which("busybox") is None:
        pytest.skip("this machine has no busybox")
    busybox = find_busybox(os.environ["PATH"])
    async with open_children() as children:
        made = await ensure_rootfs(children, str(tmp_path), busybox)
        inode = os.stat(made).st_ino
        assert await ensure_rootfs(children, str(tmp_path), busybox) == made
    assert os.stat(made).st_ino == inode
    assert os.path.exists(f"{made}/bin/sh")


def test_a_path_that_an_overlay_cannot_carry_is_refused(tmp_path: Path) -> None:
    bundle = Bundle("ns", "t1", str(tmp_path), str(tmp_path))
    with pytest.raises(InvalidArgument, match="colon, comma or backslash"):
        overlay_on("/cache/a:b", bundle)
    mount = overlay_on("/cache/ab", bundle)
    assert list(mount.options) == [
        "lowerdir=/cache/ab",
        f"upperdir={tmp_path}/upper",
        f"workdir={tmp_path}/overlay",
    ]
