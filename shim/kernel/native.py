"""Typed front of `shim._native`: Python values in, Python values or an `OSError` out.

The only module of the package that touches C data, and so the only one where a type may be unknown.  The C side
answers 0 or -errno; each refusal becomes an `OSError` (its subclass chosen by errno) whose text says what was tried.
Refuses a spawn with an empty argv or more than 1,024 mapped descriptors.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from shim._native import ffi, lib  # noqa: TID251 - the one front of it

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_MAPPED_FDS: Final = 1024
_STAGE_CHDIR: Final = 3
_STAGE_EXEC: Final = 4


def refusal(code: int, what: str) -> OSError:
    """The error for errno `code` (positive) with the text of what was tried."""
    return OSError(code, f"{what}: {os.strerror(code)}")


def check(result: int, what: str) -> None:
    """Raise the error that a native `result` below zero stands for."""
    if result < 0:
        raise refusal(-result, what)


def spawn(
    paths: Sequence[str],
    argv: Sequence[str],
    env: Mapping[str, str],
    fds: Mapping[int, int],
    *,
    cwd: str | None,
    umask: int | None,
    new_group: bool,
    new_session: bool,
    death_signal: int,
) -> tuple[int, int]:
    """Start a program and return (pid, pidfd).

    `paths` are tried in order after the chdir; `fds` maps a descriptor of the child to one of ours, -1 standing for
    /dev/null; all others are closed in the child.  Signal mask and dispositions start clean.  The calling thread stands
    still until the program runs or could not; a failure to exec is the error of this call and leaves no child.
    """
    if not argv or not paths:
        raise ValueError("nothing to run")
    if len(fds) > MAX_MAPPED_FDS:
        raise ValueError(f"{len(fds)} descriptors for one child, at most {MAX_MAPPED_FDS} are allowed")
    alive: list[object] = []  # C memory that the request points into

    def text(value: str) -> object:
        pointer = ffi.new("char[]", _c_text(value))
        alive.append(pointer)
        return pointer

    def strings(values: Sequence[str]) -> object:
        array = ffi.new("char *[]", [*(text(value) for value in values), ffi.NULL])
        alive.append(array)
        return array

    targets = sorted(fds)
    request = ffi.new("struct spawn_request *")
    request.paths = strings(paths)
    request.argv = strings(argv)
    request.envp = strings([f"{name}={value}" for name, value in env.items()])
    request.cwd = ffi.NULL if cwd is None else text(cwd)
    source_array = ffi.new("int[]", [fds[target] for target in targets])
    target_array = ffi.new("int[]", targets)
    request.source = source_array
    request.target = target_array
    request.fd_count = len(targets)
    request.mask = -1 if umask is None else umask
    request.new_group = new_group
    request.new_session = new_session
    request.death_signal = death_signal
    answer = ffi.new("struct spawn_result *")
    result = lib.process_spawn(request, answer)
    if result < 0:
        subject = {_STAGE_CHDIR: f"cannot enter {cwd}", _STAGE_EXEC: f"cannot run {argv[0]}"}
        raise refusal(-result, subject.get(answer.stage, f"cannot start {argv[0]}"))
    return answer.pid, answer.pidfd


def _c_text(value: str) -> bytes:
    raw = os.fsencode(value)
    if b"\0" in raw:
        raise ValueError(f"zero byte in {value!r}")
    return raw


def mount(source: str, target: str, kind: str, flags: int, data: str) -> None:
    """mount(2); an empty `source`, `kind` or `data` is passed as none.  Raises OSError."""
    result = lib.mount_attach(
        _c_text(source) or ffi.NULL, _c_text(target), _c_text(kind) or ffi.NULL, flags, _c_text(data) or ffi.NULL
    )
    check(result, f"mount {kind or 'none'} {source or 'none'} on {target}")


def unmount(target: str, flags: int) -> None:
    """umount2(2).  Raises OSError."""
    check(lib.mount_detach(_c_text(target), flags), f"unmount {target}")


def sync_unmount(target: str, flags: int, sync_first: bool) -> tuple[int, int, int, int]:
    """Sync if asked, then umount2; (sync ns, unmount ns, sync errno, unmount errno), the errors not raised."""
    report = ffi.new("struct sync_report *")
    lib.sync_unmount(_c_text(target), flags, sync_first, report)
    return report.sync_ns, report.unmount_ns, -report.sync_result, -report.unmount_result


def open_in_root(root_fd: int, path: str) -> int:
    """An O_PATH descriptor of `path` with `root_fd` as its "/"; no symlink leads out.  Raises OSError."""
    opened = ffi.new("int *")
    check(lib.mount_open_in_root(root_fd, _c_text(path), opened), f"find {path} in its root")
    return opened[0]


def open_beneath(root_fd: int, path: str, flags: int) -> int:
    """A descriptor of `path`, which must stay below `root_fd`.  Raises OSError, EXDEV where it leads out."""
    opened = ffi.new("int *")
    check(lib.mount_open_beneath(root_fd, _c_text(path), flags, opened), f"find {path} in its root")
    return opened[0]


def mount_from(directory_fd: int, source: str, target: str, kind: str, flags: int, data: str) -> None:
    """`mount` with `directory_fd` as where relative names in it begin.  Raises OSError."""
    result = lib.mount_attach_from(
        directory_fd, _c_text(source) or ffi.NULL, _c_text(target), _c_text(kind), flags, _c_text(data) or ffi.NULL
    )
    check(result, f"mount {kind} {source or 'none'} on {target}")


def tree_copy(path: str, *, recursive: bool) -> int:
    """A detached copy of the mount at `path`.  Raises OSError."""
    opened = ffi.new("int *")
    check(lib.mountfd_copy(_c_text(path), recursive, opened), f"copy the mount at {path}")
    return opened[0]


def tree_change(tree_fd: int, *, set_flags: int, clear: int = 0, recursive: bool = False, userns_fd: int = -1) -> None:
    """Change MOUNT_ATTR_* of a detached mount.  Raises OSError."""
    change = ffi.new("struct mountfd_change *")
    change.set = set_flags
    change.clear = clear
    change.recursive = recursive
    change.userns_fd = userns_fd
    what = "map the ids of a mount" if userns_fd >= 0 else "change a mount"
    check(lib.mountfd_change(tree_fd, change), what)


def tree_attach(tree_fd: int, place_fd: int) -> None:
    """Attach a detached mount to what `place_fd` has open.  Raises OSError."""
    check(lib.mountfd_attach(tree_fd, place_fd), "attach a mount")


def context_open(kind: str) -> int:
    """A file system of `kind` to be configured.  Raises OSError, ENODEV where the kernel has no such kind."""
    opened = ffi.new("int *")
    check(lib.mountfd_open_context(_c_text(kind), opened), f"mount {kind}")
    return opened[0]


def context_set(context_fd: int, key: str, value: str | int | None) -> None:
    """One option: a flag (None), a text, or a file by its descriptor.  Raises OSError."""
    if value is None:
        result = lib.mountfd_set_flag(context_fd, _c_text(key))
    elif isinstance(value, int):
        result = lib.mountfd_set_file(context_fd, _c_text(key), value)
    else:
        result = lib.mountfd_set_text(context_fd, _c_text(key), _c_text(value))
    check(result, f"mount option {key}")


def context_create(context_fd: int, attributes: int) -> int:
    """Make the configured file system; a detached mount of it.  Raises OSError."""
    opened = ffi.new("int *")
    check(lib.mountfd_create(context_fd, attributes, opened), "make a file system")
    return opened[0]


def userns_open(uid_map: str, gid_map: str) -> int:
    """A user namespace with these maps, in the notation of /proc/PID/uid_map.  Raises OSError."""
    opened = ffi.new("int *")
    check(lib.userns_open(_c_text(uid_map), _c_text(gid_map), opened), "make a user namespace")
    return opened[0]


def loop_attach(image_fd: int, name: str, *, read_only: bool, direct_io: bool, autoclear: bool) -> tuple[int, int]:
    """Put a free loop device before an image; (N of /dev/loopN, its descriptor).  Raises OSError, nothing is left."""
    text = ffi.new("char[]", _c_text(name))
    request = ffi.new("struct loop_request *")
    request.image_fd = image_fd
    request.name = text
    request.read_only = read_only
    request.direct_io = direct_io
    request.autoclear = autoclear
    device = ffi.new("struct loop_device *")
    check(lib.loop_attach(request, device), f"set up a loop device for {name}")
    return device.number, device.fd


def loop_identify(fd: int) -> tuple[int, int, int]:
    """The number of a loop device, device and inode of its image.  Raises OSError, ENXIO when it is not in use."""
    identity = ffi.new("struct loop_identity *")
    check(lib.loop_identify(fd, identity), "ask a loop device")
    return identity.number, identity.device, identity.inode


def loop_detach(fd: int) -> None:
    """Free a loop device that is ours, now or when its last user ends.  Raises OSError."""
    check(lib.loop_detach(fd), "free a loop device")


def watch_open() -> int:
    """A descriptor of inotify(7), non-blocking.  Raises OSError, EMFILE when this user has as many as are allowed."""
    opened = ffi.new("int *")
    check(lib.watch_open(opened), "watch files")
    return opened[0]


def watch_add(fd: int, path: str) -> None:
    """Have changes of the content of `path` seen.  Raises OSError."""
    check(lib.watch_add(fd, _c_text(path)), f"watch {path}")


def drain_console(master_fd: int, sink_fd: int, wake_fd: int, timeout_ms: int) -> tuple[int, int, int]:
    """Empty a terminal into a pipe; (bytes handed over, bytes lost, why it ended, see console.h).  Raises OSError."""
    report = ffi.new("struct console_report *")
    check(lib.console_drain(master_fd, sink_fd, wake_fd, timeout_ms, report), "drain a terminal")
    return report.bytes, report.lost, report.ending


def set_subreaper(enabled: bool) -> None:
    """Adopt (or stop adopting) the orphans among our descendants."""
    check(lib.process_set_subreaper(enabled), "cannot become subreaper")


def set_name(name: str) -> None:
    """Set the calling thread's command name; the kernel keeps the first 15 bytes."""
    check(lib.process_set_name(os.fsencode(name)), f"cannot take the name {name}")
