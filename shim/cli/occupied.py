"""What to tell a person whose id is taken: what is there, and how to get rid of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shim.errors import ShimError
from shim.wire.proto.task_types_pb2 import Status

if TYPE_CHECKING:
    from shim.manager.manager import Manager


async def describe_occupant(manager: Manager, namespace: str, task_id: str, remover: str) -> str:
    """One sentence about the task that has the id; `remover` is the command line that removes a stopped one."""
    what = f"task {task_id} in namespace {namespace} is there already"
    force = remover.replace(" delete ", " delete --force ")
    try:
        task = await manager.attach(namespace, task_id)
        state = await task.state()
    except ShimError as error:
        return f"{what}, but its shim does not answer ({error.message}): remove what is left with {force}"
    if state.status == Status.STOPPED:
        return f"{what}: stopped with status {state.exit_status}; remove it with {remover}, or use another --id"
    name = Status.Name(state.status).lower()
    return f"{what}: {name} with pid {state.pid}; end and remove it with {force}, or use another --id"
