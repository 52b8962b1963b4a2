"""A small root file system for containers that were given none: the host's static busybox and links to it.

Made once for each busybox, in a cache directory, under a temporary name and renamed: two runs that make it at once both
get a whole one.  Containers get it as the lower layer of an overlay, so that what one writes no other sees.

Refuses a busybox that is not static (nothing in the root file system could load its libraries).
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import struct
import tempfile
from typing import TYPE_CHECKING, Final

import trio

from shim.errors import InvalidArgument, NotFound
from shim.kernel.children import Command
from shim.kernel.commands import run
from shim.kernel.mountinfo import read_mountinfo
from shim.wire.proto.mount_pb2 import Mount

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shim.kernel.children import Children
    from shim.manager.bundle import Bundle

SYSTEM_CACHE: Final = "/var/cache/shimctl"
_MAKING: Final = ".making-"
_PT_INTERP: Final = 3
_DIRECTORIES: Final = ("bin", "dev", "etc", "home", "proc", "root", "run", "sys", "usr", "usr/bin", "var")
_STICKY_DIRECTORIES: Final = ("tmp", "var/tmp")
_FILES: Final = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/hosts": "127.0.0.1\tlocalhost\n::1\tlocalhost\n",
}


def cache_directory(environment: Mapping[str, str]) -> str:
    """Where root file systems are kept: XDG_CACHE_HOME when it is set and absolute, else the system's."""
    home = environment.get("XDG_CACHE_HOME", "")
    return f"{home}/shimctl" if os.path.isabs(home) else SYSTEM_CACHE


def find_busybox(path: str) -> str:
    """The busybox on PATH; NotFound, saying what to do, when there is none or it needs libraries."""
    found = shutil.which("busybox", path=path)
    if found is None:
        raise NotFound("no busybox on PATH to make a root file system of: install busybox-static, or give --rootfs DIR")
    found = os.path.realpath(found)
    if _needs_interpreter(found):
        raise NotFound(f"{found} is not a static program: install busybox-static, or give --rootfs DIR")
    return found


async def ensure_rootfs(children: Children, cache: str, busybox: str) -> str:
    """The directory of the root file system for `busybox`, made when it is not there yet."""
    wanted = await trio.to_thread.run_sync(_place_of, cache, busybox)
    if not await trio.to_thread.run_sync(os.path.isdir, wanted):
        listed = await run(children, Command([busybox, "--list"]))
        if listed.exit.status:
            raise NotFound(f"{busybox} --list failed: give --rootfs DIR")
        await trio.to_thread.run_sync(make_rootfs, wanted, busybox, listed.stdout.decode().split())
    return wanted


def make_rootfs(wanted: str, busybox: str, applets: Sequence[str]) -> None:
    """Make the directory `wanted` whole; when another run makes it first, theirs is as good."""
    cache = os.path.dirname(wanted)
    os.makedirs(cache, mode=0o755, exist_ok=True)
    _remove_abandoned(cache)
    made = tempfile.mkdtemp(prefix=f"{_MAKING}{os.getpid()}-", dir=cache)
    try:
        fill_rootfs(made, busybox, applets)
        os.rename(made, wanted)
    except OSError as error:
        shutil.rmtree(made, ignore_errors=True)
        if error.errno not in {errno.EEXIST, errno.ENOTEMPTY}:
            raise
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def fill_rootfs(directory: str, busybox: str, applets: Sequence[str]) -> None:
    """Put busybox, a link for each of `applets` and what programs expect into `directory`; modes whatever the umask."""
    os.chmod(directory, 0o755)
    for name in _DIRECTORIES:
        _make(directory, name, 0o755)
    for name in _STICKY_DIRECTORIES:
        _make(directory, name, 0o1777)
    program = f"{directory}/bin/busybox"
    shutil.copyfile(busybox, program)
    os.chmod(program, 0o755)
    for applet in applets:
        # The list names busybox itself; and a name with a slash would leave the directory.
        if applet != "busybox" and "/" not in applet:
            os.symlink("busybox", f"{directory}/bin/{applet}")
    for name, text in _FILES.items():
        with open(f"{directory}/{name}", "w", encoding="ascii") as file:
            file.write(text)
        os.chmod(f"{directory}/{name}", 0o644)


def overlay_on(rootfs: str, bundle: Bundle) -> Mount:
    """A mount that shows `rootfs` and keeps what the container writes with its bundle.

    In the work directory, on disk, where that file system can be an upper layer; an overlay cannot, then in the bundle.
    InvalidArgument for a path that the options of an overlay cannot carry.
    """
    place = bundle.path if _type_at(bundle.work_path) == "overlay" else bundle.work_path
    upper, work = f"{place}/upper", f"{place}/overlay"
    for path in (rootfs, upper):
        if set(path) & set(":,\\"):
            raise InvalidArgument(f"{path} cannot be part of an overlay: it has a colon, comma or backslash in it")
    for directory in (upper, work):
        os.mkdir(directory, 0o755)
        os.chmod(directory, 0o755)
    return Mount(
        type="overlay", source="overlay", options=[f"lowerdir={rootfs}", f"upperdir={upper}", f"workdir={work}"]
    )


def _make(directory: str, name: str, mode: int) -> None:
    os.mkdir(f"{directory}/{name}")
    os.chmod(f"{directory}/{name}", mode)


def _type_at(path: str) -> str:
    """The type of the file system that `path` is on: that of the longest mount point above it, the latest of equals."""
    real = os.path.realpath(path)
    above = [entry for entry in read_mountinfo() if (real + "/").startswith(entry.mount_point.rstrip("/") + "/")]
    return max(reversed(above), key=lambda entry: len(entry.mount_point)).type if above else ""


def _place_of(cache: str, busybox: str) -> str:
    """By content: a busybox that was upgraded gets a root file system of its own."""
    with open(busybox, "rb") as file:
        return f"{cache}/busybox-{hashlib.file_digest(file, 'sha256').hexdigest()[:16]}"


def _remove_abandoned(cache: str) -> None:
    """Remove what a run that was killed while making it left."""
    for name in os.listdir(cache):
        maker = name.removeprefix(_MAKING).partition("-")[0]
        if name.startswith(_MAKING) and maker.isdecimal() and not os.path.exists(f"/proc/{maker}"):
            shutil.rmtree(f"{cache}/{name}", ignore_errors=True)


def _needs_interpreter(path: str) -> bool:
    """Whether an ELF program has a PT_INTERP header: a loader and libraries that it cannot run without."""
    with open(path, "rb") as file:
        head = file.read(64)
        if head[:4] != b"\x7fELF" or len(head) < 64:
            return True
        order = "<" if head[5] == 1 else ">"
        if head[4] == 2:
            (offset,), (size, count) = (
                struct.unpack_from(order + "Q", head, 32),
                struct.unpack_from(order + "HH", head, 54),
            )
        else:
            (offset,), (size, count) = (
                struct.unpack_from(order + "I", head, 28),
                struct.unpack_from(order + "HH", head, 42),
            )
        file.seek(offset)
        table = file.read(size * count)
    return any(
        struct.unpack_from(order + "I", table, at)[0] == _PT_INTERP for at in range(0, len(table) - 3, max(size, 4))
    )
