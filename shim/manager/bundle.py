"""A bundle: the directory through which a manager and a shim know a task (protocol.md 9.1 and 2.10).

Invariants: a bundle is made new or not at all, and a task that is there already is never touched (AlreadyExists);
what was begun by a `create_bundle` that fails is undone; modes do not depend on the umask.  Deletion unmounts the root
file system first, then removes; a removal never goes through a mount: rootfs must be empty, and nothing may be
mounted anywhere below.  It can be repeated after any failure.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import TYPE_CHECKING

import attrs
import trio

from shim.errors import AlreadyExists, FailedPrecondition, NotFound, ShimError
from shim.kernel.mountinfo import at_or_below, read_mountinfo
from shim.manager.layout import disk_error, make_directory
from shim.manager.locks import try_task_lock
from shim.mounts.unwind import unmount_all

if TYPE_CHECKING:
    from shim.manager.layout import Layout


@attrs.frozen
class Bundle:
    """One task's directories; the paths are absolute."""

    namespace: str
    id: str
    path: str
    work_path: str

    @property
    def rootfs(self) -> str:
        """Where the shim mounts the root file system."""
        return f"{self.path}/rootfs"

    @property
    def log(self) -> str:
        """The fifo that a shim writes its log to."""
        return f"{self.path}/log"

    def file(self, name: str) -> str:
        """The path of the file `name` in the bundle."""
        return f"{self.path}/{name}"


def find_bundle(layout: Layout, namespace: str, task_id: str) -> Bundle:
    """The bundle of an existing task; NotFound when there is none."""
    bundle = Bundle(namespace, task_id, layout.bundle(namespace, task_id), layout.work(namespace, task_id))
    if not os.path.isdir(bundle.path):
        raise NotFound(f"task {task_id} in namespace {namespace}")
    return bundle


async def create_bundle(
    layout: Layout, namespace: str, task_id: str, spec: bytes | None, group: int | None = None
) -> Bundle:
    """Make the bundle of a new task.

    `spec` becomes config.json; `group` is the host's gid for gid 0 of the container's user namespace, which must be
    able to enter (None: no user namespace).  AlreadyExists when there is one; InvalidArgument for bad identifiers.
    """
    bundle = Bundle(namespace, task_id, layout.bundle(namespace, task_id), layout.work(namespace, task_id))
    try:
        await trio.to_thread.run_sync(_create, layout, bundle, spec, group)
    except OSError as error:
        raise disk_error(error, f"the bundle of {task_id} cannot be made") from error
    return bundle


def sweep_namespace(layout: Layout, namespace: str) -> None:
    """Remove what deletions left half done, and work directories that belong to no bundle.

    Blocks.  What belongs to a task that somebody is changing is left alone.
    """
    bundles, works = layout.bundles(namespace), layout.works(namespace)
    kept = set(os.listdir(bundles)) if os.path.isdir(bundles) else set()
    doomed = {name[1:]: f"{bundles}/{name}" for name in kept if name.startswith(".")}
    if os.path.isdir(works):
        doomed |= {name: f"{works}/{name}" for name in os.listdir(works) if name not in kept}
    for task_id, path in doomed.items():
        with contextlib.suppress(ShimError, OSError):
            lock = try_task_lock(layout, namespace, task_id)
            if lock is None:
                continue
            try:
                trash = os.path.basename(path).startswith(".")
                if trash or not os.path.lexists(f"{bundles}/{task_id}"):
                    _remove_tree(path)
            finally:
                lock.release()


async def delete_bundle(bundle: Bundle) -> None:
    """Unmount the root file system, then remove bundle and work directory; what is gone already is fine.

    FailedPrecondition when the root file system is not empty after its unmount, or something else is mounted below:
    the bundle stays, and the deletion can be tried again.
    """
    if await trio.to_thread.run_sync(os.path.isdir, bundle.rootfs):
        await unmount_all(bundle.rootfs)
    await trio.to_thread.run_sync(_remove, bundle)


def write_private(path: str, data: bytes, mode: int = 0o600) -> None:
    """Write a new file, or replace one, in one step, with exactly `mode`."""
    temporary = f"{path}.tmp-{os.getpid()}"
    file_fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(file_fd, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _create(layout: Layout, bundle: Bundle, spec: bytes | None, group: int | None) -> None:
    layout.prepare_namespace(bundle.namespace)
    try:
        os.mkdir(bundle.path, 0o700)
    except FileExistsError as error:
        raise AlreadyExists(f"task {bundle.id} in namespace {bundle.namespace} (bundle {bundle.path})") from error
    try:
        os.chmod(bundle.path, 0o700)
        if group is not None:
            os.chown(bundle.path, -1, group)
            os.chmod(bundle.path, 0o710)
        make_directory(bundle.rootfs, 0o711)
        _remove_tree(bundle.work_path)
        make_directory(bundle.work_path, 0o711)
        os.symlink(bundle.work_path, bundle.file("work"))
        if spec is not None:
            write_private(bundle.file("config.json"), spec)
    except BaseException:
        _remove(bundle)
        raise


def _remove(bundle: Bundle) -> None:
    """Rename first: a bundle that is half gone must not be met as a task by whoever looks at the directory."""
    trash = os.path.join(os.path.dirname(bundle.path), f".{bundle.id}")
    _remove_tree(trash)
    if os.path.isdir(bundle.path):
        try:
            os.rmdir(bundle.rootfs)
        except FileNotFoundError:
            pass  # a bundle that was never whole
        except OSError as error:
            raise FailedPrecondition(
                f"{bundle.rootfs} cannot be removed: {error.strerror} (is it mounted or written to?)"
            ) from error
        _refuse_mounts(bundle.path)
        os.rename(bundle.path, trash)
        _remove_tree(trash)
    _remove_tree(bundle.work_path)


def _remove_tree(path: str) -> None:
    """Remove `path` with all in it; FailedPrecondition when something is mounted below."""
    if not os.path.lexists(path):
        return
    if not os.path.isdir(path) or os.path.islink(path):
        os.unlink(path)
        return
    _refuse_mounts(path)
    shutil.rmtree(path)


def _refuse_mounts(path: str) -> None:
    mounted = at_or_below(read_mountinfo(), os.path.realpath(path))
    if mounted:
        raise FailedPrecondition(f"{mounted[0].mount_point} is still mounted: nothing below {path} is removed")
