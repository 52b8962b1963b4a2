"""Making a task: bundle, shim, mounts, task, in this order, and all of it undone when any step fails.

One exit stack covers the whole window.  Its order is that of the making but for one thing: mounts are undone only after
the shim was stopped, which may still use them.  So their undoing is entered before the shim is started.

Invariants: after a failure or a cancellation nothing of it is left, whatever step it came in, each step of the undoing
having its own budget; what somebody else made (a task of that id, a shim that serves others, an activation that was
there) is left alone; the task's lock is held throughout.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import trio

from shim.errors import Unavailable
from shim.manager.bundle import create_bundle
from shim.manager.capabilities import claims_of
from shim.manager.config import TaskInputs, no_inputs
from shim.manager.connection import connect
from shim.manager.ending import remove_bundle
from shim.manager.groups import find_leader, inherit
from shim.manager.launch import start_shim
from shim.manager.locks import open_task_lock
from shim.manager.logs import open_log, run_log
from shim.manager.records import write_start
from shim.manager.runtimes import preferred_options
from shim.manager.spec import remapped_root_group
from shim.manager.steps import StepTimes
from shim.manager.task_mounts import TaskMounts
from shim.manager.tasks import Task
from shim.model.runtimes import DEFAULT_RUNTIME
from shim.wire.proto.task_pb2 import CreateTaskRequest, CreateTaskResponse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from google.protobuf.any_pb2 import Any

    from shim.manager.bootstrap import Answer
    from shim.manager.bundle import Bundle
    from shim.manager.connection import ShimConnection
    from shim.manager.deprecated_mounts import DeprecatedClaims
    from shim.manager.parts import Parts
    from shim.manager.runtimes import Runtimes
    from shim.model.capabilities import MountClaims
    from shim.wire.proto.mount_pb2 import Mount

LOG: Final = logging.getLogger("shim.manager")
T = TypeVar("T")


@attrs.frozen
class NewTask:
    """What is asked for.

    `prepare` is called once the bundle is there: it makes what the task needs in it and says how it is used.
    `sandbox` names the group whose shim is to be joined; without it the annotations of `spec` do.
    """

    namespace: str
    id: str
    spec: bytes
    runtime: str = DEFAULT_RUNTIME
    runtime_options: Any | None = None
    sandbox: str = ""
    checkpoint: str = ""
    prepare: Callable[[Bundle], TaskInputs] = no_inputs


class Creation:
    """One creation; `run` once."""

    def __init__(
        self,
        parts: Parts,
        runtimes: Runtimes,
        deprecated: DeprecatedClaims,
        on_log: Callable[[str, str], None],
        wanted: NewTask,
    ) -> None:
        self._parts: Final = parts
        self._runtimes: Final = runtimes
        self._deprecated: Final = deprecated
        self._on_log: Final = on_log
        self._wanted: Final = wanted
        self._times: Final = StepTimes()
        self._address = ""

    async def run(self) -> Task:
        """See `Manager.create`."""
        wanted = self._wanted
        binary = self._runtimes.find(wanted.runtime)
        layout, budgets = self._parts.layout, self._parts.budgets
        # Checked before there is a bundle to lock: the lock's own name is made of the identifiers.
        async with open_task_lock(layout, wanted.namespace, wanted.id, budgets.lock), AsyncExitStack() as stack:
            group = remapped_root_group(wanted.spec)
            bundle = await create_bundle(layout, wanted.namespace, wanted.id, wanted.spec, group)
            self._undo_with(stack, f"remove {wanted.id}", partial(self._remove, bundle))
            inputs = wanted.prepare(bundle)
            log = await hold_log(self._parts, bundle, self._on_log)
            stack.callback(log.cancel)
            mounts = TaskMounts(self._parts.activations, bundle)
            self._undo_with(stack, f"deactivate the mounts of {wanted.id}", mounts.undo)
            with self._times.timed("shim"):
                connection, answer = await self._reach_shim(bundle, binary, inputs)
            task = Task(self._parts, bundle, binary, connection, self._times, log)
            stack.callback(connection.close)
            stack.push_async_callback(task.ending.stop_shim)
            await self._runtimes.check_spec(wanted.runtime, wanted.spec, wanted.runtime_options, inputs.options)
            rootfs = await self._activate(mounts, inputs.rootfs, answer)
            stack.push_async_callback(task.ending.end_task)
            with self._times.timed("create"):
                task.pid = task.ending.pid = await self._create(task, inputs, rootfs)
            stack.pop_all()
        self._parts.nursery.start_soon(task.ending.run_watch, name=f"watch the shim of {wanted.id}")
        return task

    async def _reach_shim(self, bundle: Bundle, binary: str, inputs: TaskInputs) -> tuple[ShimConnection, Answer]:
        """The group's shim, where there is one that answers, else one that is started."""
        leader = await trio.to_thread.run_sync(find_leader, bundle, binary, self._wanted.sandbox)
        if leader is not None:
            budget = self._parts.budgets.load
            try:
                with trio.move_on_after(budget.seconds):
                    connection = await connect(self._parts.nursery, leader.answer, bundle.namespace, bundle.id)
                    try:
                        write_start(bundle, binary, leader.answer, leader.group)
                    except BaseException:
                        connection.close()
                        raise
                    return connection, leader.answer
                raise budget.exceeded(f"no answer from the shim of group {leader.group}")
            except Unavailable as error:
                LOG.debug("the shim of group %s is gone, another is started: %s", leader.group, error)

        async def use(answer: Answer) -> tuple[ShimConnection, Answer]:
            self._address = answer.address
            known = await trio.to_thread.run_sync(inherit, bundle, answer)
            connection = await connect(self._parts.nursery, known, bundle.namespace, bundle.id)
            try:
                write_start(bundle, binary, known)
            except BaseException:
                connection.close()
                raise
            return connection, known

        options = preferred_options(self._wanted.runtime_options, inputs.options)
        return await start_shim(self._parts.launcher, bundle, binary, options, use)

    async def _activate(self, mounts: TaskMounts, rootfs: Sequence[Mount], answer: Answer) -> Sequence[Mount]:
        if self._parts.activations is None or not rootfs:
            return rootfs
        claims: MountClaims | None = claims_of(answer)
        if claims is None:
            claims = await self._deprecated.claims(self._wanted.runtime)
        return await mounts.activate(rootfs, claims)

    async def _create(self, task: Task, inputs: TaskInputs, rootfs: Sequence[Mount]) -> int:
        options = inputs.options if inputs.options is not None and inputs.options.value else None
        request = CreateTaskRequest(
            id=task.id,
            bundle=task.bundle.path,
            rootfs=rootfs,
            terminal=inputs.terminal,
            stdin=inputs.stdin,
            stdout=inputs.stdout,
            stderr=inputs.stderr,
            checkpoint=self._wanted.checkpoint,
            options=options if options is not None else self._wanted.runtime_options,
        )
        # A Create whose caller goes away is not undone by every shim: it must be over, for good or bad, before the
        # task is given up, or the runtime would go on making what is being removed (seen with the Go shims).
        grace = self._parts.budgets.cleanup.seconds
        answer = await finish_when_cancelled(lambda: task.shim.call("Create", request, CreateTaskResponse), grace)
        return answer.pid

    async def _remove(self, bundle: Bundle) -> None:
        await remove_bundle(self._parts, bundle, self._address)

    def _undo_with(self, stack: AsyncExitStack, name: str, step: Callable[[], Awaitable[object]]) -> None:
        async def undo() -> None:
            await self._parts.try_step(name, step)

        stack.push_async_callback(undo)


async def hold_log(parts: Parts, bundle: Bundle, on_log: Callable[[str, str], None]) -> trio.CancelScope:
    """Open the bundle's log and copy it line by line until the scope is cancelled."""
    scope = await parts.nursery.start(run_log, open_log(bundle.log), bundle.id, on_log)
    assert isinstance(scope, trio.CancelScope)
    return scope


async def finish_when_cancelled(call: Callable[[], Awaitable[T]], grace: float) -> T:
    """What `call` returns; a cancellation from outside reaches it only after `grace` seconds more, then goes on."""
    results: list[T] = []
    failures: list[Exception] = []
    scope = trio.CancelScope(shield=True)  # its deadline is set below, when somebody cancels

    async def watch() -> None:
        try:
            await trio.sleep_forever()
        finally:
            scope.deadline = trio.current_time() + grace

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        with scope:
            try:
                results.append(await call())
            except Exception as error:  # carried around the nursery, which would wrap it in a group
                failures.append(error)
        nursery.cancel_scope.cancel()
    if failures:
        raise failures[0]
    await trio.lowlevel.checkpoint_if_cancelled()
    return results[0]
