"""Pause, Resume, Update, Checkpoint and restore of a task (protocol.md 3.3, 8.3)."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from shim.errors import InvalidArgument, ShimError
from shim.kernel import files
from shim.model.lifecycle import Verb
from shim.runc.arguments import CheckpointOptions
from shim.runc.failures import RuntimeFailure
from shim.task import creation
from shim.wire.proto.runc_options_pb2 import CheckpointOptions as WireCheckpointOptions
from shim.wire.typeurl import unpack

if TYPE_CHECKING:
    from google.protobuf.any_pb2 import Any

    from shim.task.container import Container
    from shim.task.streams import Streams

_log = logging.getLogger("shim.task.control")

CRIU_LOG: Final = "dump.log"
CRIU_LOG_LIMIT: Final = 16 * 1024 * 1024


async def pause(container: Container) -> None:
    """Freeze the task; State says PAUSING while the runtime is at it."""
    init = container.init
    async with init.transition(Verb.PAUSE):
        init.pausing = True
        try:
            await container.runtime.pause(container.id)
        finally:
            init.pausing = False
    container.events.paused(container.id)


async def resume(container: Container) -> None:
    """Thaw the task."""
    async with container.init.transition(Verb.RESUME):
        await container.runtime.resume(container.id)
    container.events.resumed(container.id)


async def update(container: Container, resources: bytes) -> None:
    """Change limits; `resources` is LinuxResources as JSON, InvalidArgument when it is none."""
    try:
        document = json.loads(resources)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"resources are no JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidArgument(f"resources must be an object, not {type(document).__name__}")
    async with container.init.transition(Verb.UPDATE):
        await container.runtime.update(container.id, resources)


async def checkpoint(container: Container, path: str, value: Any | None) -> None:
    """Write the task's processes to `path`; whether they go on is in the options.

    InvalidArgument for options of another type or no path, RuntimeFailure with the first line that CRIU logged.
    """
    options = WireCheckpointOptions() if value is None or not value.type_url else unpack(value, WireCheckpointOptions)
    if not path:
        raise InvalidArgument("a checkpoint needs a path for its image")
    own_work = not options.work_path
    work = Path(options.work_path) if options.work_path else container.bundle / "work" / "criu-work"
    words = CheckpointOptions(
        image_path=path,
        work_path=str(work),
        parent_path=options.parent_path,
        leave_running=not options.exit,
        open_tcp=options.open_tcp,
        external_unix_sockets=options.external_unix_sockets,
        terminal=options.terminal,
        file_locks=options.file_locks,
        empty_namespaces=list(options.empty_namespaces),
    )
    async with container.init.transition(Verb.CHECKPOINT):
        try:
            await container.runtime.checkpoint(container.id, words)
        except RuntimeFailure as error:
            raise _with_criu_words(container, work, error) from error
        finally:
            if own_work:
                shutil.rmtree(work, ignore_errors=True)


async def restore(container: Container) -> None:
    """Start a task that was created from a checkpoint; one that fails leaves nothing and may be tried again."""
    try:
        await _restore(container, await creation.open_streams_of(container, container.init))
    except BaseException:
        with trio.move_on_after(creation.ROLL_BACK_SECONDS, shield=True):
            await creation.take_back(container)
        raise


async def _restore(container: Container, streams: Streams) -> None:
    work = container.options.criu_work_path or str(container.bundle / "work")
    mark = container.children.mark()
    container.runtime_began = True
    await container.runtime.restore(
        container.id,
        creation.create_options(container),
        image_path=container.checkpoint,
        work_path=work,
        parent_path="",
        stdio=streams.child_fds,
        on_spawn=streams.release_child_ends,
    )
    await streams.connected()
    container.adopt(container.init, container.bundle / "init.pid", mark)


def _with_criu_words(container: Container, work: Path, error: RuntimeFailure) -> ShimError:
    """The failure as people know it: CRIU's log is kept in the bundle, and its place is named."""
    kept = container.bundle / "criu-dump.log"
    try:
        files.write_atomic(kept, files.read_bounded(work / CRIU_LOG, limit=CRIU_LOG_LIMIT), mode=0o600)
    except (OSError, ShimError) as missing:
        _log.warning("container %s: no log of CRIU: %s", container.id, missing)
    lines = str(error).splitlines()
    return RuntimeFailure(f"{lines[0] if lines else 'checkpoint failed'} path= {kept}")
