"""Start, Kill and Delete of a task's init process (protocol.md 3.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shim.errors import InvalidArgument
from shim.model.lifecycle import State, Verb
from shim.mounts.unwind import unmount_all
from shim.task import deletion
from shim.task.control import restore

if TYPE_CHECKING:
    from shim.model.exits import ExitRecord
    from shim.task.container import Container

MAX_SIGNAL: Final = 64
"""The last real-time signal, signal(7)."""


async def start(container: Container) -> None:
    """Let init run; readers wait meanwhile, and the start event precedes the exit event."""
    init = container.init
    async with init.starting():
        if init.state is State.CREATED_CHECKPOINT:
            await restore(container)
        else:
            if init.streams is not None:
                init.streams.let_input()
            await container.runtime.start(container.id)
        container.events.started(container.id, init.pid)


def check_signal(signum: int) -> None:
    """Raise InvalidArgument for a signal that does not exist."""
    if signum > MAX_SIGNAL:
        raise InvalidArgument(f"unknown signal {signum}: signals are 1 to {MAX_SIGNAL}")


async def kill(container: Container, signum: int, *, everyone: bool) -> None:
    """Signal init, or everyone; 0 only asks whether init is there.

    The guard is left before the runtime runs: a signal changes no state by itself, and a runtime that hangs must not
    hold up a Delete.
    """
    async with container.init.changing():
        container.init.next_state(Verb.KILL)
    if signum:
        await container.runtime.kill(container.id, signum, everyone=everyone)


async def delete(container: Container, deadline: float) -> ExitRecord | None:
    """Delete init and with it the task.  `deadline` (trio's clock) is the caller's, to which the drain bends."""

    async def unmount() -> None:
        if container.mounts:  # without any no thread is needed
            await unmount_all(str(container.rootfs))

    async with container.init.deletion():
        await deletion.dismantle(
            container.init,
            delete_runtime=lambda: container.runtime.delete(container.id),
            unmount=unmount,
            deadline=deadline,
        )
    container.events.deleted(container.id, container.init.exit)
    return container.init.exit
