"""Processes as a test sees them: run one to its end, wait for somebody else's, read what the kernel tells.

A process is waited for by its pidfd, so an orphan that PID 1 has not reaped yet counts as ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import trio

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@attrs.frozen
class Completed:
    """What a program that has ended left behind; `output` is stdout, with stderr in it if they were joined."""

    status: int
    output: bytes
    errors: bytes

    @property
    def text(self) -> str:
        """`output` as text, trimmed."""
        return self.output.decode(errors="replace").strip()


async def run_program(
    argv: Sequence[str | Path],
    *,
    stdin: bytes = b"",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    join: bool = False,
    timeout: float = 30,
    umask: int = -1,
    pass_fds: Sequence[int] = (),
) -> Completed:
    """Run to the end within `timeout` seconds, else fail; `join` puts stderr into stdout, as `start` is run."""
    with trio.fail_after(timeout):
        run = partial(
            trio.run_process,
            [str(part) for part in argv],
            stdin=stdin,
            capture_stdout=True,
            check=False,
            cwd=cwd,
            env=env,
            umask=umask,
            pass_fds=pass_fds,
            process_group=0,
        )
        done = await (run(stderr=subprocess.STDOUT) if join else run(capture_stderr=True))
    return Completed(done.returncode, done.stdout or b"", done.stderr or b"")


async def wait_ended(pid: int, *, timeout: float) -> None:
    """Return when the process has ended, reaped or not; TooSlowError after `timeout` seconds."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        with trio.fail_after(timeout):
            await trio.lowlevel.wait_readable(pidfd)
    finally:
        os.close(pidfd)


def is_running(pid: int) -> bool:
    """Whether the process exists and has not ended (a zombie has)."""
    return process_state(pid) not in {"", "Z", "X"}


def process_state(pid: int) -> str:
    """The state letter of /proc/PID/stat, empty when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return text.rpartition(")")[2].split()[0]


def parent_of(pid: int) -> int:
    """The parent's pid, 0 when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(text.rpartition(")")[2].split()[1])


def all_pids() -> list[int]:
    """Every process there is now."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def children_of(pid: int) -> list[int]:
    """The direct children, ended ones included."""
    return [child for child in all_pids() if parent_of(child) == pid]


def command_line(pid: int) -> str:
    """The arguments, joined by spaces; empty for a zombie or a kernel thread."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def open_files(pid: int) -> dict[int, str]:
    """fd number -> what it is open on."""
    found: dict[int, str] = {}
    directory = Path(f"/proc/{pid}/fd")
    for name in os.listdir(directory):
        try:
            found[int(name)] = os.readlink(directory / name)
        except FileNotFoundError:
            continue
    return found


def environment_of(pid: int) -> list[str]:
    """The `KEY=value` strings that the process was started with."""
    return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").rstrip("\0").split("\0")


def kill_now(pid: int) -> None:
    """SIGKILL, and no complaint when it is gone already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
