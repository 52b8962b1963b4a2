"""Create: mounts, streams, `runtime create`, in the order of protocol.md 3.4; and undoing it.

`create` leaves whatever it made when it fails; its caller must then `roll_back`, which knows from the container how far
it came.  A task from a checkpoint has no process until its start.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import trio

from shim import convert
from shim.errors import AlreadyExists, NotFound, ShimError
from shim.kernel import files
from shim.model.lifecycle import State
from shim.model.spec import SpecFacts, spec_facts
from shim.mounts.apply import mount_all
from shim.mounts.unwind import unmount_all
from shim.runc.arguments import CreateOptions
from shim.runc.runtime import forget_pid_file
from shim.task.loggers import Owner
from shim.task.stdio import open_streams

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from shim.task.container import Container
    from shim.task.process import Process
    from shim.task.streams import Streams

_log = logging.getLogger("shim.task.creation")

ROLL_BACK_SECONDS: Final = 30.0
"""Budget of undoing a failed or abandoned Create: killing and forgetting takes milliseconds, an unmount may not."""


async def create(container: Container) -> None:
    """Make the container, up to an init that waits for its start.

    Raises NotFound for a missing bundle, AlreadyExists when the runtime has something under the id, RuntimeFailure with
    the runtime's reason, InvalidArgument for a sink that nobody knows, and the errors of the mounts.
    """
    if not container.bundle.is_dir():
        raise NotFound(f"bundle {container.bundle}: no such directory")
    if container.runtime.knows(container.id):
        # Somebody else's, or left by a crash: in neither case may a failed create of ours take it down.
        raise AlreadyExists(f"OCI runtime create failed: container with id exists in {container.runtime.root}")
    _write_options(container)
    container.facts = _read_spec(container)
    if container.mounts:
        container.rootfs.mkdir(mode=0o711, exist_ok=True)
        await mount_all(container.mounts, str(container.rootfs))
    if container.checkpoint:
        container.init.state = State.CREATED_CHECKPOINT
        return
    streams = await open_streams_of(container, container.init)
    streams.hold_input()
    mark = container.children.mark()
    container.runtime_began = True
    await container.runtime.create(
        container.id, create_options(container), stdio=streams.child_fds, on_spawn=streams.release_child_ends
    )
    await streams.connected()
    container.adopt(container.init, container.bundle / "init.pid", mark)


async def open_streams_of(container: Container, process: Process) -> Streams:
    """The streams of init or an exec, being copied."""
    streams = await open_streams(
        process.stdio,
        children=container.children,
        owner=Owner(process.id, container.namespace, str(container.bundle)),
        pipe_owner=(container.options.io_uid, container.options.io_gid),
    )
    process.attach(streams)
    streams.start(container.nursery)
    return streams


def create_options(container: Container) -> CreateOptions:
    """What the runtime is told beside the id."""
    return CreateOptions(
        bundle=str(container.bundle),
        pid_file=str(container.bundle / "init.pid"),
        console_socket=container.init.streams.console_socket if container.init.streams else "",
        no_pivot=container.options.no_pivot_root,
        no_new_keyring=container.options.no_new_keyring,
    )


async def roll_back(container: Container) -> None:
    """Undo a Create that failed or lost its caller: runtime state, streams, mounts; never raises."""
    with trio.move_on_after(ROLL_BACK_SECONDS, shield=True):
        await take_back(container)
        if container.mounts:  # without any no thread is needed
            await _step(container, unmount_all(str(container.rootfs)))
    container.leave()


async def take_back(container: Container) -> None:
    """Undo what the runtime made of init, or began to: its state, the streams, the pid file; for a shielded caller."""
    if container.runtime_began:
        await _step(container, container.runtime.delete(container.id, force=True))
    if container.init.streams is not None:
        await container.init.streams.aclose()
        container.init.streams = None
    forget_pid_file(container.bundle / "init.pid")


async def _step(container: Container, step: Awaitable[object]) -> None:
    try:
        await step
    except (ShimError, OSError) as error:
        _log.warning("roll back of %s: %s", container.id, error)


def _write_options(container: Container) -> None:
    options = container.options
    files.write_atomic(container.bundle / "options.json", convert.options_to_json(options), mode=0o600)
    files.write_atomic(container.bundle / "runtime", options.binary_name.encode(), mode=0o600)


def _read_spec(container: Container) -> SpecFacts:
    try:
        return spec_facts(files.read_bounded(container.bundle / "config.json", limit=SPEC_LIMIT))
    except (OSError, ShimError):
        return SpecFacts()


SPEC_LIMIT: Final = 16 * 1024 * 1024
"""Bytes of a `config.json`: four times what fits into a request."""
