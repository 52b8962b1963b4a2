"""The `delete` command: what containerd runs for a task whose shim it lost (protocol.md 2.9).

Facts first, from the bundle; then the runtime is told to kill and forget, what is left of init is killed, the root file
system comes off in a process of its own, the socket goes if nobody listens; then the answer.  Each fact may be missing
and each step may fail: that is a warning on standard error, and the rest is done all the same, inside the time after
which the daemon kills us.
The bundle is the daemon's and keeps its files, so a second run finds the same and succeeds again.
Touches only this task: others in the same shim, and a shim that still answers, are left alone (field-faults P6).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from typing import TYPE_CHECKING, Final

import attrs
import trio

from shim import convert
from shim.boot import sockets, unmounting
from shim.boot.orphans import hold_init
from shim.boot.start import ADDRESS_FILE, SOCKET_DIR_LINK, read_annotations
from shim.boot.stdio import write_fd, write_stdout
from shim.boot.version import PROGRAM
from shim.errors import ShimError
from shim.kernel.children import open_children
from shim.kernel.files import read_bounded, read_text
from shim.model import grouping
from shim.model.exits import KILLED_STATUS, ExitRecord
from shim.model.options import RuncOptions
from shim.runc.runtime import Runtime
from shim.wire.proto.task_pb2 import DeleteResponse
from shim.wire.times import timestamp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shim.boot.flags import Flags
    from shim.kernel.fds import OwnedFd

RUNTIME_SECONDS: Final = 2.5
KILL_SECONDS: Final = 0.5
UNMOUNT_SECONDS: Final = 1.0
LOCK_SECONDS: Final = 0.3
"""All of these together stay below the 5 s after which the daemon kills this command (protocol.md 9.6)."""
PID_FILE: Final = "init.pid"
_BOOTSTRAP_FILE: Final = "bootstrap.json"
_MAX_PID: Final = 1 << 22


@attrs.frozen
class Bundle:
    """What the files in a bundle say, defaults for those that are missing or make no sense."""

    path: str
    options: RuncOptions
    pid: int
    record: ExitRecord | None
    sockets: tuple[str, ...]


def run_delete(flags: Flags) -> None:
    """Clean up after the task and print its DeleteResponse.  Raises InvalidArgument for odd names."""
    flags.check_identity()
    bundle = read_bundle(_bundle_path(flags), flags)
    killed_at_ns = trio.run(clean_up, bundle, flags)  # noqa: TID251 - this command's one run
    if trouble := unmounting.unmount_apart(os.path.join(bundle.path, "rootfs"), UNMOUNT_SECONDS):
        warn(trouble)
    for path in bundle.sockets:
        with _tolerated():
            sockets.remove_dead_socket(path, lock_seconds=LOCK_SECONDS)
    record = bundle.record or ExitRecord(bundle.pid, KILLED_STATUS, killed_at_ns)
    response = DeleteResponse(pid=record.pid, exit_status=record.status, exited_at=timestamp(record.exited_at_ns))
    write_stdout(response.SerializeToString(deterministic=True))


def read_bundle(path: str, flags: Flags) -> Bundle:
    """Gather what the bundle says; a file that cannot be used is as good as missing, with a warning if it is there."""
    options = RuncOptions()
    with _tolerated():
        options = convert.options_from_json(read_bounded(os.path.join(path, "options.json")))
    with _tolerated():
        if binary := read_text(os.path.join(path, "runtime")).strip():
            options = attrs.evolve(options, binary_name=binary)
    record: ExitRecord | None = None
    with _tolerated():
        record = believable(convert.exit_record_from_json(read_bounded(os.path.join(path, "exit.json"))), flags)
    pid = _read_pid(path) or _pid_in_runtime(f"{options.runtime_root(flags.namespace)}/{flags.id}")
    return Bundle(path, options, pid, record, tuple(dict.fromkeys(_socket_paths(path, flags))))


def believable(record: ExitRecord, flags: Flags) -> ExitRecord | None:
    """The record if it is sane and of this task; the Go shim's records name no task."""
    named = not record.id or (record.id, record.namespace) == (flags.id, flags.namespace)
    fits = record.pid <= _MAX_PID and record.status <= 255
    return record if record.is_sane and fits and named else None


async def clean_up(bundle: Bundle, flags: Flags) -> int:
    """Kill and forget the container; the time of its end (Unix, ns).  Never raises for a failure."""
    init = hold_init(bundle.pid, os.path.join(bundle.path, PID_FILE))
    try:
        await _delete_in_runtime(bundle, flags)
        if init is not None:
            with trio.move_on_after(KILL_SECONDS):
                await _kill(init)
    finally:
        if init is not None:
            init.close()
    return time.time_ns()


async def _delete_in_runtime(bundle: Bundle, flags: Flags) -> None:
    with trio.move_on_after(RUNTIME_SECONDS) as scope:
        try:
            async with open_children() as children:
                runtime = Runtime(
                    children,
                    binary=bundle.options.binary,
                    root=bundle.options.runtime_root(flags.namespace),
                    bundle=bundle.path,
                    systemd_cgroup=False,
                )
                await runtime.delete(flags.id, force=True)
        except* (ShimError, OSError) as group:
            for error in group.exceptions:
                warn(str(error))
    if scope.cancelled_caught:
        warn(f"{bundle.options.binary} delete did not end within {RUNTIME_SECONDS:g} s")


async def _kill(init: OwnedFd) -> None:
    """What the runtime did not end, since its state is elsewhere or it is not there itself."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(init.fileno(), signal.SIGKILL)
    await trio.lowlevel.wait_readable(init.fileno())


def _bundle_path(flags: Flags) -> str:
    """The task's bundle: as given, or beside the working directory, which may be that of a sibling."""
    if flags.bundle:
        return os.path.abspath(flags.bundle)
    return os.path.join(os.path.dirname(os.getcwd()), flags.id)


def _read_pid(bundle: str) -> int:
    with _tolerated():
        pid = int(read_text(os.path.join(bundle, PID_FILE), limit=64))
        if 0 < pid <= _MAX_PID:
            return pid
    return 0


def _pid_in_runtime(state: str) -> int:
    """What runc itself noted in its state directory, where the pid file is lost."""
    with _tolerated():
        pid = json.loads(read_bounded(os.path.join(state, "state.json")))["init_process_pid"]
        if isinstance(pid, int) and 0 < pid <= _MAX_PID:
            return pid
    return 0


def _socket_paths(bundle: str, flags: Flags) -> Iterator[str]:
    """Where the task's shim may have listened: computed as `start` does, and as noted in the bundle."""
    annotations: dict[str, str] = {}
    with _tolerated():
        annotations = read_annotations(bundle)
    directories = [grouping.DEFAULT_SOCKET_DIR]
    with _tolerated():
        directories.append(os.readlink(os.path.join(bundle, SOCKET_DIR_LINK)))
    for directory in directories:
        with _tolerated():
            group = grouping.group_id(annotations, flags.id)
            yield grouping.socket_path(directory, flags.address, flags.namespace, group)
    with _tolerated():
        yield from _unix_path(read_text(os.path.join(bundle, ADDRESS_FILE)))
    with _tolerated():
        yield from _unix_path(json.loads(read_bounded(os.path.join(bundle, _BOOTSTRAP_FILE)))["address"])


def _unix_path(address: object) -> Iterator[str]:
    path = str(address).strip().removeprefix(grouping.SCHEME)
    if path.startswith("/"):
        yield path


@contextlib.contextmanager
def _tolerated() -> Iterator[None]:
    """A fact that is missing or makes no sense is not known; only one that is there and unreadable is worth a word."""
    try:
        yield
    except FileNotFoundError:
        return
    except (ShimError, OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        warn(str(error))


def warn(text: str) -> None:
    """Say what went wrong; the daemon logs it."""
    with contextlib.suppress(OSError):
        write_fd(2, f"{PROGRAM}: {text}\n".encode(errors="backslashreplace"))
