"""`shimctl run`: one container in the foreground, from nothing to nothing.

Three phases, and what a signal means in each: while the container is *made*, INT, TERM, HUP and QUIT give up, and what
was begun is undone; while it *runs*, signals are the container's (a second INT, a second or more after the first, kills
it: a PID 1 without a handler never sees INT); while it is *removed*, which takes bounded time, they are ignored.

Invariants: output is complete before the task is deleted; without `--keep` nothing is left, however the container
ended.
"""

from __future__ import annotations

import os
import resource
import signal
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

import attrs
import trio

from shim.cli.outcome import status_of_create
from shim.cli.report import RunReport, shim_memory
from shim.cli.rootfs import cache_directory, ensure_rootfs, find_busybox, overlay_on
from shim.cli.streams import OutputWriter, raw_terminal, read_some, window_size
from shim.errors import ConnectionClosed, NotFound, ShimError
from shim.kernel.children import open_children
from shim.manager.manager import Manager, TaskInputs
from shim.manager.spec import RunSpec, default_spec
from shim.manager.stdio import Stdio, copy_output, open_stdio, write_input

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from shim.kernel.fds import OwnedFd
    from shim.manager.bundle import Bundle
    from shim.manager.tasks import Task, TaskExit

SIGNALS: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
)
ENDING: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
INSIST_SECONDS: Final = 1.0
"""A second INT this long after the first is a person who insists; sooner it may be one key press seen twice."""


@attrs.frozen
class RunRequest:
    """What a person asked for."""

    namespace: str
    id: str
    command: tuple[str, ...]
    runtime: str
    rootfs: str | None = None
    remove: bool = True
    interactive: bool = False
    terminal: bool = False
    env: Mapping[str, str] = attrs.field(factory=dict)
    cwd: str = "/"


class Interrupted(ShimError):
    """A signal came before the container was there; `signal` is its number."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}: what was begun is undone")
        self.signal = number


class CommandFailed(ShimError):
    """The container could not be made or started; `status` is what shimctl exits with."""

    def __init__(self, error: ShimError) -> None:
        super().__init__(str(error))
        self.status = status_of_create(error)


class Run:
    """One run; `run` may be called once."""

    def __init__(self, manager: Manager, request: RunRequest) -> None:
        self.report: Final = RunReport()
        self._manager: Final = manager
        self._request: Final = request
        self._making: Final = trio.CancelScope()
        self._task: Task | None = None
        self._stdio: Stdio | None = None
        self._writers: list[OutputWriter] = []
        self._outputs_ended: Final = trio.Event()
        self._interrupted_at: float | None = None
        self._gave_up_on = 0
        self._kill_wanted: Final = trio.Event()

    async def run(self) -> int:
        """Run the container to its end and return the exit status; raises what made that impossible."""
        failure: Exception | None = None
        status = 0
        with trio.open_signal_receiver(*SIGNALS) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_signals, signals)
                nursery.start_soon(self._watch_kill)
                try:
                    status = await self._run(nursery)
                except Exception as error:  # carried around the nursery, which would wrap it in a group
                    failure = error
                nursery.cancel_scope.cancel()
        if self._stdio is not None:
            self._stdio.close()
        if failure is not None:
            raise failure
        return status

    async def _run(self, nursery: trio.Nursery) -> int:
        task = await self._make(nursery)
        self._task = task
        request = self._request
        with raw_terminal(0) if request.terminal and request.interactive else nullcontext():
            try:
                await self._resize()
                try:
                    await task.start()
                except ShimError as error:
                    if self._gave_up_on:  # the signal ended init before its start
                        raise Interrupted(self._gave_up_on) from error
                    raise CommandFailed(error) from error
                self._gave_up_on = 0
                await self._resize()
                self.report.memory = await trio.to_thread.run_sync(shim_memory, task.shim.pid)
                if self._stdio is not None and self._stdio.stdin is not None:
                    nursery.start_soon(self._copy_input, task, self._stdio.stdin)
                ended = await task.wait()
                await self._finish_outputs()
            except BaseException:
                await self._remove(task)
                raise
            finally:
                self._task = None
        if request.remove or ended.shim_lost:
            ended = await self._delete(task, ended)
        self.report.fill(task, ended, [writer.written for writer in self._writers])
        return ended.status

    async def _make(self, nursery: trio.Nursery) -> Task:
        request = self._request
        with self._making:
            rootfs = await self._root()
            spec = default_spec(
                RunSpec(
                    request.namespace,
                    request.id,
                    request.command,
                    root_path=request.rootfs or "rootfs",
                    terminal=request.terminal,
                    env=request.env,
                    cwd=request.cwd,
                    open_files_limit=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
                )
            )
            try:
                task = await self._manager.create(
                    request.namespace,
                    request.id,
                    spec,
                    runtime=request.runtime,
                    prepare=lambda bundle: self._prepare(nursery, bundle, rootfs),
                )
            except ShimError as error:
                if type(error) is ShimError or error.code == 2:
                    raise CommandFailed(error) from error
                raise
            if not self._making.cancel_called:
                return task
            await self._remove(task)
        raise Interrupted(self._gave_up_on)

    async def _root(self) -> str:
        """The lower layer for the container; empty when it runs on a directory as it is."""
        if self._request.rootfs is not None:
            return ""
        busybox = find_busybox(os.environ.get("PATH", os.defpath))
        async with open_children() as children:
            return await ensure_rootfs(children, cache_directory(os.environ), busybox)

    def _prepare(self, nursery: trio.Nursery, bundle: Bundle, rootfs: str) -> TaskInputs:
        request = self._request
        mounts = (overlay_on(rootfs, bundle),) if rootfs else ()
        stdio = open_stdio(bundle.path, stdin=request.interactive, terminal=request.terminal)
        self._stdio = stdio
        nursery.start_soon(self._copy_outputs, stdio)
        return TaskInputs(mounts, stdio.stdin_path, stdio.stdout_path, stdio.stderr_path, request.terminal)

    async def _copy_outputs(self, stdio: Stdio) -> None:
        async with trio.open_nursery() as nursery:
            for fd, source in ((1, stdio.stdout), (2, stdio.stderr)):
                if source is not None:
                    writer = OutputWriter(fd, lambda error: self._kill_wanted.set())
                    self._writers.append(writer)
                    nursery.start_soon(copy_output, source, writer.write)
        self._outputs_ended.set()

    async def _finish_outputs(self) -> None:
        """Wait for the end of the outputs: as long as somebody reads ours, however slowly, else the drain budget."""
        budget = self._manager.config.budgets.drain.seconds
        while not self._outputs_ended.is_set():
            before = [writer.written for writer in self._writers]
            with trio.move_on_after(budget):
                await self._outputs_ended.wait()
            moved = before != [writer.written for writer in self._writers]
            if not (moved or any(writer.busy for writer in self._writers)):
                return

    async def _copy_input(self, task: Task, target: OwnedFd) -> None:
        try:
            while data := await read_some(0):
                await write_input(target, data)
            target.close()
            await task.close_stdin()
        except (NotFound, ConnectionClosed):
            return  # it has ended; whoever waits for it says so

    async def _delete(self, task: Task, ended: TaskExit) -> TaskExit:
        deleted = await task.delete()
        return attrs.evolve(deleted, status=ended.status if not deleted.shim_lost else deleted.status)

    async def _remove(self, task: Task) -> None:
        """Remove a task that is not wanted any more, in bounded time whatever its shim does."""
        budgets = self._manager.config.budgets
        with trio.move_on_after(budgets.drain.seconds + budgets.cleanup.seconds, shield=True):
            try:
                await task.delete(force=True)
            except ShimError:
                pass
            else:
                return
        await task.give_up()

    async def _watch_signals(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            task = self._task
            if task is None:
                if number in ENDING and not self._making.cancel_called:
                    self._gave_up_on = number
                    self._making.cancel()
                continue
            if number == signal.SIGWINCH and self._request.terminal:
                await self._resize()
                continue
            if number in ENDING:
                self._gave_up_on = number
            if number == signal.SIGINT and self._insists():
                self._kill_wanted.set()
                continue
            await self._send(task, number)

    def _insists(self) -> bool:
        now = trio.current_time()
        if self._interrupted_at is None:
            self._interrupted_at = now
            return False
        return now - self._interrupted_at >= INSIST_SECONDS

    async def _watch_kill(self) -> None:
        """End the container when nobody wants it any more, also when that is known before it was there."""
        await self._kill_wanted.wait()
        if self._task is not None:
            await self._send(self._task, signal.SIGKILL)

    async def _send(self, task: Task, number: int) -> None:
        try:
            await task.kill(number)
        except ShimError:
            return  # it has ended, or is not running yet and its shim refuses: whoever waits for it says so

    async def _resize(self) -> None:
        size = window_size(0) if self._request.terminal else None
        if size is not None and self._task is not None:
            try:
                await self._task.resize(*size)
            except ShimError:
                return
