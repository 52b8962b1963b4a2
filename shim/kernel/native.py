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
        raw = os.fsencode(value)
        if b"\0" in raw:
            raise ValueError(f"zero byte in {value!r}")
        pointer = ffi.new("char[]", raw)
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
        raise refusal(-result, subject.get(int(answer.stage), f"cannot start {argv[0]}"))
    return int(answer.pid), int(answer.pidfd)


def set_subreaper(enabled: bool) -> None:
    """Adopt (or stop adopting) the orphans among our descendants."""
    check(lib.process_set_subreaper(enabled), "cannot become subreaper")


def set_name(name: str) -> None:
    """Set the calling thread's command name; the kernel keeps the first 15 bytes."""
    check(lib.process_set_name(os.fsencode(name)), f"cannot take the name {name}")
