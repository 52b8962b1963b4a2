"""Further processes in a container: Exec, Start, Kill, Delete (protocol.md 3.3, 3.6).

An exec is recorded first and run by its start.  When the runtime refuses to run it the exec stays *created*, whoever
waits for it is let go, and it can be deleted; its id is free again then.
"""

from __future__ import annotations

import contextlib
import json
import signal
from typing import TYPE_CHECKING, Final

import trio

from shim.errors import FailedPrecondition, InvalidArgument, NotFound
from shim.kernel import files
from shim.model import lifecycle
from shim.model.lifecycle import State, Verb
from shim.model.names import check_identifier
from shim.runc.runtime import forget_pid_file
from shim.task import deletion
from shim.task.creation import open_streams_of
from shim.task.process import Process, StdioPaths

if TYPE_CHECKING:
    from pathlib import Path

    from shim.model.exits import ExitRecord
    from shim.task.container import Container

END_SECONDS: Final = 2.0
"""How long a process whose start failed may take to end once it has been killed."""


class ExecProcess(Process):
    """An exec: a process of a container and what to run as it."""

    def __init__(self, container: Container, exec_id: str, stdio: StdioPaths, spec: bytes) -> None:
        super().__init__(exec_id, stdio, lifecycle.EXEC, self._exited)
        self.container = container
        self.spec = spec

    @property
    def status(self) -> int:
        """As of any process, but a running exec is paused while its container is."""
        if self.state is State.RUNNING and (self.container.init.pausing or self.container.init.state is State.PAUSED):
            return self.container.init.status
        return super().status

    async def ended(self) -> None:
        """Until it does not run: its start has settled and its exit, if it ran, is known."""
        await self.settled()
        if self.state is State.RUNNING:
            await self.wait_exit_known()

    def _exited(self, process: Process, record: ExitRecord) -> None:
        self.container.events.exited(self.container.id, process.id, record)


async def add(container: Container, exec_id: str, stdio: StdioPaths, spec: bytes) -> None:
    """Record an exec.  InvalidArgument for a bad id or spec, AlreadyExists for a taken id, else by init's state."""
    check_identifier(exec_id, "exec id")
    if exec_id == "init":
        raise InvalidArgument("exec id init is taken: init.pid in the bundle is the task's own")
    document = _with_terminal(spec, terminal=stdio.terminal)
    async with container.init.changing():
        container.init.next_state(Verb.EXEC)
        container.add_exec(ExecProcess(container, exec_id, stdio, document))
    container.events.exec_added(container.id, exec_id)


async def start(container: Container, process: ExecProcess) -> None:
    """Run an exec.  FailedPrecondition once init has ended, RuntimeFailure with the runtime's reason."""
    async with process.starting():
        _check_init(container)
        try:
            await _run(container, process)
        except BaseException:
            if process.streams is not None:
                await process.streams.aclose()
                process.streams = None
            process.release_waiters()
            raise
        container.events.exec_started(container.id, process.id, process.pid)


async def kill(process: ExecProcess, signum: int) -> None:
    """Signal an exec through its pidfd; 0 only asks whether it is there."""
    async with process.changing():
        process.next_state(Verb.KILL)
    if process.child is None or process.child.exit is not None:
        raise NotFound("process already finished")
    if signum:
        process.child.send_signal(signum)


async def delete(container: Container, process: ExecProcess, deadline: float) -> ExitRecord | None:
    """Forget an exec that has ended or never ran.  `deadline` (trio's clock) is the caller's."""
    async with process.deletion():
        await deletion.drain(process, deadline)
        await deletion.close_streams(process, deadline)
        forget_pid_file(_pid_file(container, process))
    del container.execs[process.id]
    return process.exit


async def _run(container: Container, process: ExecProcess) -> None:
    streams = await open_streams_of(container, process)
    document = container.bundle / f".{process.id}.process.json"
    pid_file = _pid_file(container, process)
    files.write_atomic(document, _with_size(process), mode=0o600)
    forget_pid_file(pid_file)  # of an earlier start that failed
    mark = container.children.mark()
    try:
        try:
            await container.runtime.run_exec(
                container.id,
                process=str(document),
                pid_file=str(pid_file),
                console_socket=streams.console_socket,
                stdio=streams.child_fds,
                on_spawn=streams.release_child_ends,
            )
        finally:
            document.unlink(missing_ok=True)
        await streams.connected()
    except BaseException:
        await _end_unknown(container, pid_file, mark)
        raise
    container.adopt(process, pid_file, mark)


async def _end_unknown(container: Container, pid_file: Path, mark: int) -> None:
    """End a process that runs although its start failed: without its terminal, or behind a runtime that gave up."""
    with contextlib.suppress(OSError, ValueError, NotFound):
        child = container.children.adopt(int(files.read_text(pid_file)), mark)
        child.send_signal(signal.SIGKILL)
        with trio.move_on_after(END_SECONDS, shield=True):
            await child.wait()
    forget_pid_file(pid_file)


def _check_init(container: Container) -> None:
    init = container.init
    if init.child is not None and init.child.exit is not None:
        raise FailedPrecondition(f"container {container.id} init process is not running")
    init.next_state(Verb.EXEC)


def _pid_file(container: Container, process: ExecProcess) -> Path:
    return container.bundle / f"{process.id}.pid"


def _with_size(process: ExecProcess) -> bytes:
    """The process document with the size that its terminal was given before there was one, for its first look."""
    if process.size is None or not process.stdio.terminal:
        return process.spec
    width, height = process.size
    document = json.loads(process.spec)
    document["consoleSize"] = {"width": width & 0xFFFF, "height": height & 0xFFFF}
    return json.dumps(document).encode()


def _with_terminal(spec: bytes, *, terminal: bool) -> bytes:
    """The process document with the request's word on the terminal, with which the runtime must agree."""
    try:
        document = json.loads(spec)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"the exec's spec is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidArgument(f"the exec's spec must be an object, not {type(document).__name__}")
    document["terminal"] = terminal
    return json.dumps(document).encode()
