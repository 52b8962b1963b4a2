"""The transform `mkfs`: an image with an empty file system, made once however many ask for it.

It is formatted under a temporary name beside its own and renamed when it is whole, so an image under its own name is
always a good one, and one that is there is left alone.  The temporary file carries the lock: it is the one of that name
in that directory, whatever the path to it, and the program that formats it holds the lock too, so that after a kill of
ours nobody else begins before that program has ended.  What a killed one left under the temporary name is formatted
anew.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
from typing import TYPE_CHECKING, Final

import trio

from shim.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, Unimplemented, Unknown
from shim.kernel.children import Command
from shim.kernel.commands import run
from shim.kernel.fds import OwnedFd
from shim.kernel.locks import try_lock
from shim.mounts.room import room_threads
from shim.mounts.roots import Entry, find_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shim.kernel.children import Children
    from shim.kernel.threads import Threads
    from shim.model.transform_options import ImageRequest

MODE: Final = 0o640
LOCK_SECONDS: Final = 120.0
"""How long to wait for another who formats the same image."""
UNDO_SECONDS: Final = 5.0
_PAUSE: Final = 0.02
_STDERR_LIMIT: Final = 4096


async def make_image(
    path: str,
    request: ImageRequest,
    roots: Sequence[str],
    *,
    children: Children | None,
    threads: Threads | None = None,
) -> None:
    """Make the image at `path` unless it is there.

    Raises InvalidArgument for a path that is not allowed or is no file, DeadlineExceeded when another one formats it
    for too long, FailedPrecondition without the mkfs program, Unknown with its words when it fails, OSError.
    """
    pool = room_threads() if threads is None else threads
    entry = await pool.run(
        f"find {path}", lambda _: find_entry(path, roots, "mkfs"), undo=lambda made: made.parent.close()
    )
    with entry:
        if _is_there(entry):
            return
        if children is None:
            raise Unimplemented("mkfs: no programs can be run here")
        draft = await _lock_draft(entry)
        if draft is None:
            return
        with draft:
            try:
                await _format(entry, draft, request, children, pool)
            except BaseException:
                _remove_draft(entry, draft)
                raise


def _is_there(entry: Entry) -> bool:
    """Whether there is an image; InvalidArgument for something else under its name."""
    found = _stat(entry, entry.name)
    if found is None:
        return False
    if not stat.S_ISREG(found.st_mode):
        raise InvalidArgument(f"mkfs {entry.path}: exists and is no file")
    return True


def _draft_name(entry: Entry) -> str:
    return f".{entry.name}.mkfs"


async def _lock_draft(entry: Entry) -> OwnedFd | None:
    """The temporary file, locked; None when the image is there by now."""
    deadline = trio.current_time() + LOCK_SECONDS
    while True:
        draft = _open_draft(entry)
        try:
            while not try_lock(draft):
                if trio.current_time() > deadline:
                    raise DeadlineExceeded(
                        f"mkfs {entry.path}: another one formats it for more than {LOCK_SECONDS:g} s"
                    )
                await trio.sleep(_PAUSE)
            ours = _is_draft(entry, draft)
            if _is_there(entry):
                _remove_draft(entry, draft)
                draft.close()
                return None
            if ours:
                return draft
            draft.close()  # the one who had it finished, or gave up: look again
            await trio.lowlevel.checkpoint()
        except BaseException:
            draft.close()
            raise


def _open_draft(entry: Entry) -> OwnedFd:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        draft = OwnedFd(os.open(_draft_name(entry), flags, 0o600, dir_fd=entry.parent.fileno()))
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.EISDIR, errno.ENAMETOOLONG}:
            raise InvalidArgument(f"mkfs {entry.path}: {_draft_name(entry)}: {error.strerror}") from error
        raise
    if not stat.S_ISREG(os.fstat(draft.fileno()).st_mode):
        draft.close()
        raise InvalidArgument(f"mkfs {entry.path}: {_draft_name(entry)} exists and is no file")
    return draft


def _is_draft(entry: Entry, draft: OwnedFd) -> bool:
    """Whether the locked file is still the one under the temporary name."""
    found = _stat(entry, _draft_name(entry))
    return found is not None and os.path.samestat(found, os.fstat(draft.fileno()))


def _stat(entry: Entry, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=entry.parent.fileno(), follow_symlinks=False)
    except FileNotFoundError:
        return None


def _remove_draft(entry: Entry, draft: OwnedFd) -> None:
    if _is_draft(entry, draft):
        os.unlink(_draft_name(entry), dir_fd=entry.parent.fileno())


async def _format(entry: Entry, draft: OwnedFd, request: ImageRequest, children: Children, pool: Threads) -> None:
    await _in_thread(pool, f"size {entry.path}", lambda: _resize(entry, draft, request.size))
    program = f"mkfs.{request.fs}"
    uuid = () if not request.uuid else ("-m", f"uuid={request.uuid}") if request.fs == "xfs" else ("-U", request.uuid)
    command = Command([program, "-q", *uuid, "/proc/self/fd/3"], fds={3: draft.fileno()}, death_signal=signal.SIGKILL)
    try:
        done = await run(children, command, stderr_limit=_STDERR_LIMIT)
    except FileNotFoundError as error:
        raise FailedPrecondition(f"mkfs {entry.path}: {program} is not installed") from error
    if done.exit.status != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise Unknown(f"mkfs {entry.path}: {program} ended with {done.exit.status}: {said}")
    await _in_thread(pool, f"finish {entry.path}", lambda: _finish(entry, draft))


async def _in_thread(pool: Threads, what: str, work: Callable[[], None]) -> None:
    """Not left before it is done: what it works on is removed next.  Bounded, for it may hang in the kernel."""
    with trio.move_on_after(UNDO_SECONDS, shield=True) as scope:
        await pool.run(what, lambda _: work())
    if scope.cancelled_caught:
        raise DeadlineExceeded(f"{what} takes longer than {UNDO_SECONDS:g} s")
    await trio.lowlevel.checkpoint_if_cancelled()


def _resize(entry: Entry, draft: OwnedFd, size: int) -> None:
    os.ftruncate(draft.fileno(), 0)
    os.fchmod(draft.fileno(), MODE)
    try:
        os.ftruncate(draft.fileno(), size)
    except OSError as error:
        raise InvalidArgument(f"mkfs {entry.path}: {size} bytes: {error.strerror}") from error


def _finish(entry: Entry, draft: OwnedFd) -> None:
    os.fsync(draft.fileno())
    parent = entry.parent.fileno()
    os.rename(_draft_name(entry), entry.name, src_dir_fd=parent, dst_dir_fd=parent)
