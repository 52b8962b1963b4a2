"""The manager: bundles, shims and tasks of one state directory, which it shares with other managers.

Invariants: all that a manager starts belongs to its nursery, except shims and containers, which it leaves running;
what was begun to clean up is finished, within its budget, before the block is left; somebody else's task is touched
only when asked for by name, or by `load`.
"""

from __future__ import annotations

import os
import sys
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from shim.errors import DeadlineExceeded, NotFound, ShimError, Unavailable
from shim.kernel.children import open_children
from shim.manager.bundle import find_bundle
from shim.manager.config import ManagerConfig, TaskInputs, no_inputs
from shim.manager.connection import connect
from shim.manager.creation import Creation, NewTask, hold_log
from shim.manager.deprecated_mounts import DeprecatedClaims
from shim.manager.ending import bury, remove_bundle
from shim.manager.events import BACKLOG, EventFilter, EventHub
from shim.manager.eventsocket import EventSocket
from shim.manager.jobs import run_detached
from shim.manager.launch import Launcher, usual_address
from shim.manager.layout import disk_error
from shim.manager.listing import Listed, list_tasks
from shim.manager.loading import Loader, LoadReport, kill_shim
from shim.manager.locks import open_task_lock
from shim.manager.parts import Parts
from shim.manager.records import read_answer, read_binary, read_deleted
from shim.manager.runtimes import Runtimes
from shim.manager.steps import StepTimes
from shim.manager.tasks import Task, TaskExit
from shim.model.names import check_identifier
from shim.model.runtimes import DEFAULT_RUNTIME

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractContextManager

    from google.protobuf.any_pb2 import Any

    from shim.kernel.children import Children
    from shim.manager.bundle import Bundle
    from shim.manager.events import Subscription
    from shim.wire.proto.runtime_info_pb2 import RuntimeInfo

__all__ = ["Listed", "Manager", "ManagerConfig", "NewTask", "Task", "TaskExit", "TaskInputs", "open_manager"]


STOP_SECONDS: Final = 2.0
"""For handing on the events that were taken when the manager closes; longer than the server's own grace."""


class Manager:
    """One manager; made by `open_manager`."""

    def __init__(self, config: ManagerConfig, parts: Parts) -> None:
        self._parts: Final = parts
        self._runtimes: Final = Runtimes(parts.launcher, config.lookup, config.runtimes, config.require_known)
        self._deprecated: Final = DeprecatedClaims(self._runtimes.info)
        self.config: Final = config

    # -- making and finding tasks

    async def create(
        self,
        namespace: str,
        task_id: str,
        spec: bytes,
        *,
        runtime: str = DEFAULT_RUNTIME,
        runtime_options: Any | None = None,
        sandbox: str = "",
        checkpoint: str = "",
        prepare: Callable[[Bundle], TaskInputs] = no_inputs,
    ) -> Task:
        """Make a bundle, start a shim (or join that of its group), activate mounts and create the task.

        The arguments are those of `NewTask`.  AlreadyExists when the id is taken; NotFound, InvalidArgument or
        FailedPrecondition for the runtime; DeadlineExceeded for a shim that does not come up; whatever the mount
        manager, and the shim to Create, answer.
        """
        wanted = NewTask(namespace, task_id, spec, runtime, runtime_options, sandbox, checkpoint, prepare)
        return await Creation(self._parts, self._runtimes, self._deprecated, self.config.on_log, wanted).run()

    async def attach(self, namespace: str, task_id: str) -> Task:
        """The existing task of that id, its shim reached within the load budget; no other is touched.

        NotFound when there is no bundle of it; Unavailable, DataLoss or DeadlineExceeded when its shim cannot be found
        or does not answer.
        """
        bundle = find_bundle(self.config.layout, namespace, task_id)
        binary, answer = read_binary(bundle), read_answer(bundle)
        budget = self.config.budgets.load
        log = await hold_log(self._parts, bundle, self.config.on_log)
        try:
            with trio.move_on_after(budget.seconds):
                connection = await connect(self._parts.nursery, answer, namespace, task_id)
                task = Task(self._parts, bundle, binary, connection, StepTimes(), log)
                task.pid = task.ending.pid = (await connection.greet(task_id)).task_pid
                self._parts.nursery.start_soon(task.ending.run_watch, name=f"watch the shim of {task_id}")
                return task
            raise budget.exceeded("no answer to Connect")
        except BaseException:
            log.cancel()
            raise

    async def list_tasks(self, namespace: str = "") -> list[Listed]:
        """All tasks of `namespace`, or of all, each with its state or the reason why it has none; changes nothing."""
        return await list_tasks(self._parts, self._namespaces(namespace))

    async def load(self, namespace: str = "") -> LoadReport:
        """Take over what earlier managers left in `namespace`, or in all: see `shim.manager.loading`."""
        return await Loader(self._parts, self.config.on_log).run(self._namespaces(namespace))

    # -- ending tasks that may not answer

    async def delete(self, namespace: str, task_id: str, *, force: bool = False) -> TaskExit:
        """`Task.delete` for the task of that id, whether its shim answers or not; its exit.

        Without `force` a shim that does not answer is an error, unless the task was deleted before and only the rest
        was missing.
        """
        try:
            task = await self.attach(namespace, task_id)
        except NotFound:
            raise
        except ShimError:
            known = read_deleted(find_bundle(self.config.layout, namespace, task_id))
            if known is None and not force:
                raise
            return await self.remove_unanswering(namespace, task_id)
        try:
            return await task.delete(force=force)
        except (Unavailable, DeadlineExceeded):
            if not force:
                raise
            return await self.remove_unanswering(namespace, task_id)

    async def remove_unanswering(self, namespace: str, task_id: str) -> TaskExit:
        """Remove a task whose shim does not answer: its `delete` command, the shim's end, then the bundle; its exit.

        Its exit and deletion are published, unless that was done.
        """
        bundle = find_bundle(self.config.layout, namespace, task_id)
        grace = 3 * self.config.budgets.cleanup.seconds
        return await run_detached(self._parts.nursery, partial(self._remove, bundle), f"remove {task_id}", grace)

    async def _remove(self, bundle: Bundle) -> TaskExit:
        async with open_task_lock(self.config.layout, bundle.namespace, bundle.id, self.config.budgets.lock):
            find_bundle(self.config.layout, bundle.namespace, bundle.id)
            try:
                address = read_answer(bundle).address
            except ShimError:
                address = usual_address(self._parts.launcher, bundle)
            end = read_deleted(bundle)
            if end is None:
                try:
                    end, _ = await bury(self._parts, bundle, read_binary(bundle))
                except Unavailable:  # it was never started, so there is nothing but the bundle
                    end = TaskExit(0)
            await trio.to_thread.run_sync(kill_shim, self._parts, bundle, "", address)
            await remove_bundle(self._parts, bundle, address)
            return end

    # -- events and runtimes

    def subscribe(
        self, wanted: EventFilter | None = None, bound: int = BACKLOG
    ) -> AbstractContextManager[Subscription]:
        """A stream of the events that come while the block runs; what is not taken in time is dropped and counted."""
        return self._parts.hub.subscribe(wanted or EventFilter(), bound)

    async def wait_events(self) -> None:
        """Until events reach this manager: at once, unless another one listens and has not taken us on yet."""
        await self._parts.socket.standing.wait()

    async def runtime_info(self, runtime: str, options: Any | None = None) -> RuntimeInfo:
        """What a runtime says of itself (protocol.md 2.6), asked once for each program and options."""
        return await self._runtimes.info(runtime, options)

    async def open_runtimes(self) -> None:
        """Ask the runtimes that the configuration names; for `open_manager`."""
        await self._runtimes.ask_named()

    def _namespaces(self, namespace: str) -> list[str]:
        if namespace:
            check_identifier(namespace, "namespace")
            return [namespace] if os.path.isdir(self.config.layout.bundles(namespace)) else []
        return sorted(name for name in os.listdir(self.config.layout.tasks) if not name.startswith("."))


@asynccontextmanager
async def open_manager(config: ManagerConfig) -> AsyncIterator[Manager]:
    """A manager for the block.

    Leaving it stops watching and hangs up; containers and their shims go on; clean-ups under way are finished.
    FailedPrecondition when a directory is somebody else's or cannot be written, ResourceExhausted on a full disk.
    """
    try:
        await trio.to_thread.run_sync(config.layout.prepare)
    except OSError as error:
        raise disk_error(error, "the directories of the manager cannot be prepared") from error
    failure: Exception | None = None
    async with trio.open_nursery() as outer:
        started: tuple[Parts, trio.CancelScope] = await outer.start(_run_background, config)
        parts, scope = started
        try:
            manager = Manager(config, parts)
            await manager.open_runtimes()
            yield manager
        except Exception as error:  # carried around the nursery, which would wrap it in a group
            failure = error
        finally:
            scope.cancel()
    if failure is not None:
        raise failure


async def _run_background(
    config: ManagerConfig,
    *,
    task_status: trio.TaskStatus[tuple[Parts, trio.CancelScope]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Children, connections, logs, events and jobs.  A cancelled block still needs them to clean up after itself.

    So they do not see a cancellation from outside; `open_manager` ends them when its block has ended.  Children are
    watched, and events taken, until the last job is done.
    """
    hub = EventHub(config.on_event)
    socket = EventSocket(config.layout, hub)
    with trio.CancelScope() as guarded:
        async with open_children() as children, trio.open_nursery() as events:
            await events.start(socket.run)
            guarded.shield = True  # its deadline is the end of the block, and of the jobs, which have theirs
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    launcher = _launcher(config, children)
                    task_status.started((Parts(launcher, nursery, hub, socket, config.activations), scope))
                    await trio.sleep_forever()
            with trio.move_on_after(STOP_SECONDS):
                await socket.stop()
            events.cancel_scope.cancel()


def _launcher(config: ManagerConfig, children: Children) -> Launcher:
    program = os.path.abspath(sys.argv[0] or sys.executable)
    return Launcher(children, config.layout, config.budgets, program, config.debug, config.env, config.socket_dir)
