"""The manager: bundles, shims and tasks of one state directory.

Invariants: all that a manager starts belongs to its nursery, except shims and containers, which it leaves running;
a creation that fails at any step, or is cancelled, is undone in the reverse order, each step within its own budget:
the task, the shim, the bundle; somebody else's task of the same id is never touched.
"""

from __future__ import annotations

import contextlib
import os
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import trio

from shim.errors import ShimError, Unavailable
from shim.kernel.children import open_children
from shim.manager.bootstrap import Answer, answer_to_json, parse_answer
from shim.manager.bundle import create_bundle, delete_bundle, find_bundle, write_private
from shim.manager.connection import ShimConnection, connect
from shim.manager.events import run_events
from shim.manager.launch import Launcher, run_delete, start_shim
from shim.manager.layout import Layout
from shim.manager.logs import open_log, run_log, to_logger
from shim.manager.lookup import ShimLookup
from shim.manager.sockets import BOOTSTRAP_FILE, remove_dead_socket
from shim.manager.spec import remapped_root_group
from shim.manager.steps import StepTimes
from shim.manager.tasks import Task
from shim.model.budgets import Budgets
from shim.model.runtimes import DEFAULT_RUNTIME
from shim.wire.proto.task_pb2 import CreateTaskRequest, CreateTaskResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from google.protobuf.any_pb2 import Any

    from shim.kernel.children import Children
    from shim.manager.bundle import Bundle
    from shim.wire.proto.envelope_pb2 import Envelope
    from shim.wire.proto.mount_pb2 import Mount

BINARY_FILE: Final = "shim-binary-path"
ADDRESS_FILE: Final = "address"


def _ignore_event(event: Envelope) -> None:
    """The callback used when none is given."""


T = TypeVar("T")


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


@attrs.frozen
class ManagerConfig:
    """What a manager is made with.  `on_event` and `on_log` are called on its loop and must not block."""

    layout: Layout = attrs.field(factory=Layout)
    budgets: Budgets = attrs.field(factory=Budgets)
    lookup: ShimLookup = attrs.field(factory=ShimLookup)
    debug: bool = False
    on_event: Callable[[Envelope], None] = _ignore_event
    on_log: Callable[[str, str], None] = to_logger


@attrs.frozen
class TaskInputs:
    """What a task is created with beside its specification; empty stream paths mean /dev/null."""

    rootfs: Sequence[Mount] = ()
    stdin: str = ""
    stdout: str = ""
    stderr: str = ""
    terminal: bool = False
    options: Any | None = None


def _no_inputs(bundle: Bundle) -> TaskInputs:
    return TaskInputs()


class Manager:
    """One manager; made by `open_manager`."""

    def __init__(self, config: ManagerConfig, children: Children, nursery: trio.Nursery) -> None:
        self._nursery: Final = nursery
        self._launcher: Final = Launcher(
            children, config.layout, config.budgets, os.path.abspath(sys.argv[0] or sys.executable), config.debug
        )
        self.config: Final = config

    async def create(
        self,
        namespace: str,
        task_id: str,
        spec: bytes,
        *,
        runtime: str = DEFAULT_RUNTIME,
        prepare: Callable[[Bundle], TaskInputs] = _no_inputs,
    ) -> Task:
        """Make a bundle, start a shim and create the task.

        `prepare` is called once the bundle is there: it makes what the task needs in it and says how it is used.
        AlreadyExists when the id is taken; NotFound or InvalidArgument for the runtime; DeadlineExceeded for a shim
        that does not come up; whatever the shim answers to Create.
        """
        binary = self.config.lookup.find(runtime)
        times = StepTimes()
        bundle = await create_bundle(self.config.layout, namespace, task_id, spec, remapped_root_group(spec))
        log = trio.CancelScope()
        try:
            inputs = prepare(bundle)
            log = await self._hold_log(bundle)
            with times.timed("shim"):
                connection = await self._start(bundle, binary, inputs.options)
        except BaseException:
            log.cancel()
            await self._undo_bundle(bundle)
            raise
        task = Task(self._launcher, bundle, binary, connection, times, log)
        try:
            with times.timed("create"):
                task.pid = await self._create_task(task, inputs)
        except BaseException:
            await task.give_up()
            raise
        return task

    async def attach(self, namespace: str, task_id: str) -> Task:
        """The existing task of that id, its shim reached within the load budget; nothing is changed.

        NotFound when there is no bundle of it; Unavailable or DeadlineExceeded when its shim does not answer.
        """
        bundle = find_bundle(self.config.layout, namespace, task_id)
        binary, answer = _read_bootstrap(bundle)
        budget = self.config.budgets.load
        log = await self._hold_log(bundle)
        try:
            with trio.move_on_after(budget.seconds) as scope:
                connection = await connect(self._nursery, answer, namespace, task_id)
                task = Task(self._launcher, bundle, binary, connection, StepTimes(), log)
                task.pid = (await connection.greet(task_id)).task_pid
                return task
        except BaseException:
            log.cancel()
            raise
        assert scope.cancelled_caught
        log.cancel()
        raise budget.exceeded("no answer to Connect")

    async def remove_unanswering(self, namespace: str, task_id: str) -> None:
        """Remove a task whose shim does not answer: its `delete` command, then the bundle."""
        bundle = find_bundle(self.config.layout, namespace, task_id)
        with contextlib.suppress(ShimError):
            binary, answer = _read_bootstrap(bundle)
            await remove_dead_socket(answer.address)
            await run_delete(self._launcher, bundle, binary)
        await delete_bundle(bundle)

    async def _start(self, bundle: Bundle, binary: str, options: Any | None) -> ShimConnection:
        async def use(answer: Answer) -> ShimConnection:
            write_private(bundle.file(BINARY_FILE), binary.encode())
            connection = await connect(self._nursery, answer, bundle.namespace, bundle.id)
            try:
                write_private(bundle.file(BOOTSTRAP_FILE), answer_to_json(answer), 0o644)
            except BaseException:
                connection.close()
                raise
            return connection

        return await start_shim(self._launcher, bundle, binary, options, use)

    async def _create_task(self, task: Task, inputs: TaskInputs) -> int:
        request = CreateTaskRequest(
            id=task.id,
            bundle=task.bundle.path,
            rootfs=inputs.rootfs,
            terminal=inputs.terminal,
            stdin=inputs.stdin,
            stdout=inputs.stdout,
            stderr=inputs.stderr,
            options=inputs.options,
        )
        # A Create whose caller goes away is not undone by every shim: it must be over, for good or bad, before the
        # task is given up, or the runtime would go on making what is being removed (seen with the Go shims).
        grace = self.config.budgets.cleanup.seconds
        answer = await finish_when_cancelled(lambda: task.shim.call("Create", request, CreateTaskResponse), grace)
        return answer.pid

    async def _hold_log(self, bundle: Bundle) -> trio.CancelScope:
        scope = await self._nursery.start(run_log, open_log(bundle.log), bundle.id, self.config.on_log)
        assert isinstance(scope, trio.CancelScope)
        return scope

    async def _undo_bundle(self, bundle: Bundle) -> None:
        with trio.move_on_after(self.config.budgets.cleanup.seconds, shield=True):
            with contextlib.suppress(ShimError, OSError):
                await delete_bundle(bundle)


@asynccontextmanager
async def open_manager(config: ManagerConfig) -> AsyncIterator[Manager]:
    """A manager for the block.  Leaving it stops watching and hangs up; containers and their shims go on."""
    await trio.to_thread.run_sync(config.layout.prepare)
    failure: Exception | None = None
    async with trio.open_nursery() as outer:
        started: tuple[Children, trio.Nursery, trio.CancelScope] = await outer.start(_run_background, config)
        children, nursery, scope = started
        try:
            yield Manager(config, children, nursery)
        except Exception as error:  # carried around the nursery, which would wrap it in a group
            failure = error
        finally:
            scope.cancel()
    if failure is not None:
        raise failure


async def _run_background(
    config: ManagerConfig,
    *,
    task_status: trio.TaskStatus[tuple[Children, trio.Nursery, trio.CancelScope]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Children, connections, logs and events.  A cancelled block still needs them to clean up after itself.

    So they do not see a cancellation from outside; `open_manager` ends them when its block has ended.
    """
    with trio.CancelScope() as scope:
        async with open_children() as children, trio.open_nursery() as nursery:
            await nursery.start(run_events, config.layout, config.on_event)
            scope.shield = True  # its deadline is the end of the block
            task_status.started((children, nursery, scope))
            await trio.sleep_forever()


def _read_bootstrap(bundle: Bundle) -> tuple[str, Answer]:
    """The shim's program and where it listens, from the bundle's files; Unavailable when they are not (all) there."""
    try:
        with open(bundle.file(BINARY_FILE), "rb") as file:
            binary = os.fsdecode(file.read())
        path = bundle.file(BOOTSTRAP_FILE)
        with open(path if os.path.exists(path) else bundle.file(ADDRESS_FILE), "rb") as file:
            return binary, parse_answer(file.read())
    except FileNotFoundError as error:
        raise Unavailable(f"task {bundle.id} was never started: {error.filename} is missing") from error
    except ShimError as error:
        raise Unavailable(f"task {bundle.id}: {error.message}") from error
