"""The slow part of a deletion: {drain output} beside {runtime delete}, then streams, then mounts (design section 5).

Runs inside `Process.deletion`, whose guard is free meanwhile.  Every wait has an end: the drain bends to the caller's
deadline so that runtime state and mounts are gone even when a stray process keeps the pipe open.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

import trio

from shim.model.exits import KILLED_STATUS, ExitRecord

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shim.task.process import Process

_log = logging.getLogger("shim.task.deletion")

DRAIN_SECONDS: Final = 10.0
"""Longest wait for output (protocol.md 7.3)."""
AFTER_DRAIN_SECONDS: Final = 1.0
"""Left of the caller's time for closing and unmounting."""
EXIT_SECONDS: Final = 5.0
"""How long the kernel may take to report the end of an init that the runtime has just killed."""


async def dismantle(
    process: Process,
    *,
    delete_runtime: Callable[[], Awaitable[None]],
    unmount: Callable[[], Awaitable[object]],
    deadline: float,
) -> None:
    """Take down what a task has outside this process; raises the first failure, and may be called again after it."""
    failure: list[Exception] = []

    async def delete() -> None:
        try:
            await delete_runtime()
            await _exit_of(process)
        except Exception as error:
            failure.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(delete)
        nursery.start_soon(drain, process, deadline)
    if failure:
        raise failure[0]
    await close_streams(process, deadline)
    await unmount()


async def drain(process: Process, deadline: float) -> None:
    """Wait until all output has been handed over, within the budget and the caller's time."""
    if process.streams is None:
        return
    until = max(trio.current_time(), min(trio.current_time() + DRAIN_SECONDS, deadline - AFTER_DRAIN_SECONDS))
    with trio.move_on_at(until) as scope:
        await process.streams.drained()
    if scope.cancelled_caught:
        _log.warning("output of %s was not read to its end in time: what is left is dropped", process.id)


async def close_streams(process: Process, deadline: float) -> None:
    """End the copying; a logger may take its time within the caller's."""
    if process.streams is not None:
        await process.streams.aclose(patience_until=deadline - AFTER_DRAIN_SECONDS)


async def _exit_of(process: Process) -> None:
    """Wait for the exit of a process that the runtime has just killed, so that exit precedes delete."""
    if process.child is None:
        return
    with trio.move_on_after(EXIT_SECONDS) as scope:
        await process.wait_exit_known()
    if scope.cancelled_caught:
        _log.error("the kernel has not reported the end of %s (pid %d)", process.id, process.pid)
        process.exit_seen(ExitRecord(pid=process.pid, status=KILLED_STATUS, exited_at_ns=time.time_ns()))
