"""All tasks at a glance: each shim is asked for the state of its task, and nothing is changed (field fault R1).

Invariants: one that does not answer within the state budget is listed without a state and holds up nobody; a task that
is being made or removed meanwhile is listed as far as it can be seen, or not at all.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import attrs
import trio

from shim.errors import ShimError
from shim.manager.bundle import find_bundle
from shim.manager.connection import connect
from shim.manager.records import TaskExit, read_answer, read_binary, read_deleted, read_sandbox
from shim.wire.proto.task_pb2 import StateRequest, StateResponse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shim.manager.bundle import Bundle
    from shim.manager.parts import Parts


@attrs.define
class Listed:
    """One task; `state` None and `error` why when its shim does not answer; `deleted` when only leftovers are there."""

    namespace: str
    id: str
    binary: str = ""
    sandbox: str = ""
    shim_pid: int = 0
    state: StateResponse | None = None
    error: ShimError | None = None
    deleted: TaskExit | None = None


async def list_tasks(parts: Parts, namespaces: Sequence[str]) -> list[Listed]:
    """The tasks of `namespaces`, sorted; all shims are asked at once."""
    found: list[Listed] = []
    async with trio.open_nursery() as nursery:
        for namespace in namespaces:
            for name in os.listdir(parts.layout.bundles(namespace)):
                if not name.startswith("."):
                    nursery.start_soon(_look, parts, namespace, name, found)
    return sorted(found, key=lambda entry: (entry.namespace, entry.id))


async def _look(parts: Parts, namespace: str, name: str, found: list[Listed]) -> None:
    try:
        bundle = find_bundle(parts.layout, namespace, name)
    except ShimError:
        return
    entry = Listed(namespace, name)
    try:
        entry.deleted, entry.sandbox = read_deleted(bundle), read_sandbox(bundle)
        entry.binary = read_binary(bundle)
        await _ask(parts, bundle, entry)
    except ShimError as error:
        entry.error = error
        if not await trio.to_thread.run_sync(os.path.isdir, bundle.path):
            return
    except OSError as error:
        entry.error = ShimError(f"{error.strerror}: {error.filename}")
    found.append(entry)


async def _ask(parts: Parts, bundle: Bundle, entry: Listed) -> None:
    budget = parts.budgets.state
    with trio.move_on_after(budget.seconds):
        connection = await connect(parts.nursery, read_answer(bundle), bundle.namespace, bundle.id)
        try:
            entry.shim_pid = connection.pid
            entry.state = await connection.call("State", StateRequest(id=bundle.id), StateResponse)
        finally:
            connection.close()
        return
    raise budget.exceeded("its shim is not answering: no State")
