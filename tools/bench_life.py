"""One life of a task, each step of it timed: by a shim, and by the bare runtime as the floor below it.

Invariants: every figure is in seconds and is the caller's view (call sent, answer read); the same specification, root
and caller for all subjects; a life that fails is undone and fails the run, for a figure without its pair is worth
nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections import defaultdict
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

import attrs
import trio
from google.protobuf.any_pb2 import Any
from google.protobuf.empty_pb2 import Empty

from shim.errors import ConnectionClosed, ShimError, Unknown
from shim.kernel.children import Command
from shim.kernel.commands import run_uncaptured
from shim.manager.bundle import create_bundle, delete_bundle
from shim.manager.connection import connect
from shim.manager.launch import Launcher, run_delete, start_shim
from shim.manager.logs import open_log, run_log
from shim.manager.spec import RunSpec, default_spec
from shim.wire.proto.task_pb2 import (
    CreateTaskRequest,
    CreateTaskResponse,
    DeleteRequest,
    DeleteResponse,
    ExecProcessRequest,
    KillRequest,
    ShutdownRequest,
    StartRequest,
    StartResponse,
    StateRequest,
    StateResponse,
    WaitRequest,
    WaitResponse,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from shim.manager.bootstrap import Answer
    from shim.manager.bundle import Bundle
    from shim.manager.connection import ShimConnection
    from shim.wire.proto.mount_pb2 import Mount

PROCESS_URL: Final = "types.containerd.io/opencontainers/runtime-spec/1/Process"
STATES: Final = 200
"""State round trips of one life, after a tenth as many that are not counted."""

START_COMMAND: Final = "start command"
START_COLD: Final = "start command, cold"
"""Without a template: what the first start on a machine takes, or one that differs from all before."""
CREATE: Final = "Create"
START: Final = "Start"
EXEC_START: Final = "exec Start"
KILL_WAIT: Final = "Kill to Wait"
DELETE: Final = "Delete"
SHUTDOWN: Final = "Shutdown to gone"
STATE: Final = "State"


@attrs.define
class Stopwatch:
    """The samples of one subject, by figure."""

    samples: dict[str, list[float]] = attrs.field(factory=lambda: defaultdict(list))

    @contextmanager
    def timed(self, figure: str) -> Iterator[None]:
        """Time the block; one that raises is no sample."""
        began = trio.current_time()
        yield
        self.samples[figure].append(trio.current_time() - began)


@attrs.frozen
class Bench:
    """What all subjects share: where bundles are, who starts children, the root file system."""

    launcher: Launcher
    nursery: trio.Nursery
    namespace: str
    rootfs: str

    def spec(self, task_id: str, args: Sequence[str], *, mounted: bool = False) -> bytes:
        """The specification: on the shared root, read-only, unless the task brings a mounted one."""
        root = "rootfs" if mounted else self.rootfs
        return default_spec(RunSpec(self.namespace, task_id, args, root_path=root, readonly=not mounted))


@attrs.frozen
class BenchTask:
    """A task of a shim, with just the calls that are timed."""

    shim: ShimConnection
    bundle: Bundle

    @property
    def id(self) -> str:
        """Its id."""
        return self.bundle.id

    async def create(self, rootfs: Sequence[Mount] = ()) -> int:
        """Create; its pid."""
        request = CreateTaskRequest(id=self.id, bundle=self.bundle.path, rootfs=rootfs)
        return (await self.shim.call("Create", request, CreateTaskResponse)).pid

    async def exec(self, exec_id: str, args: Sequence[str]) -> None:
        """Add an exec."""
        spec = Any(type_url=PROCESS_URL, value=_process(args).encode())
        await self.shim.call("Exec", ExecProcessRequest(id=self.id, exec_id=exec_id, spec=spec), Empty)

    async def start(self, exec_id: str = "") -> None:
        """Start it, or an exec."""
        await self.shim.call("Start", StartRequest(id=self.id, exec_id=exec_id), StartResponse)

    async def state(self) -> None:
        """Ask for its state."""
        await self.shim.call("State", StateRequest(id=self.id), StateResponse)

    async def wait(self, exec_id: str = "") -> None:
        """Wait for its end."""
        await self.shim.call("Wait", WaitRequest(id=self.id, exec_id=exec_id), WaitResponse)

    async def kill(self) -> None:
        """SIGKILL."""
        await self.shim.call("Kill", KillRequest(id=self.id, signal=signal.SIGKILL), Empty)

    async def kill_and_wait(self) -> None:
        """SIGKILL, with somebody waiting already; returns when both were answered."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.wait)
            await trio.lowlevel.checkpoint()
            nursery.start_soon(self.kill)

    async def delete(self, exec_id: str = "") -> None:
        """Delete it, or an exec."""
        await self.shim.call("Delete", DeleteRequest(id=self.id, exec_id=exec_id), DeleteResponse)


async def time_exec(task: BenchTask, exec_id: str, watch: Stopwatch) -> None:
    """A whole exec, its Start timed."""
    await task.exec(exec_id, ["true"])
    with watch.timed(EXEC_START):
        await task.start(exec_id)
    await task.wait(exec_id)
    await task.delete(exec_id)


async def time_life(bench: Bench, binary: str, task_id: str, watch: Stopwatch) -> None:
    """A shim's whole life with one task."""
    async with open_shim(bench, binary, task_id, ["sleep", "1000"], watch) as task:
        with watch.timed(CREATE):
            await task.create()
        with watch.timed(START):
            await task.start()
        for number in range(STATES + STATES // 10):
            began = trio.current_time()
            await task.state()
            if number >= STATES // 10:
                watch.samples[STATE].append(trio.current_time() - began)
        await time_exec(task, "e", watch)
        with watch.timed(KILL_WAIT):
            await task.kill_and_wait()
        with watch.timed(DELETE):
            await task.delete()
        with watch.timed(SHUTDOWN):
            await shut_down(task)


async def time_cold_start(bench: Bench, binary: str, task_id: str, watch: Stopwatch) -> None:
    """Our program's start command with the template turned off."""
    launcher = attrs.evolve(bench.launcher, env={"TRIO_SHIM_TEMPLATE": "off"})
    once = Stopwatch()
    async with open_shim(attrs.evolve(bench, launcher=launcher), binary, task_id, ["true"], once) as task:
        await shut_down(task)
    watch.samples[START_COLD] += once.samples[START_COMMAND]


async def shut_down(task: BenchTask) -> None:
    """Ask the shim to leave, and wait until it has."""
    with contextlib.suppress(ConnectionClosed):
        await task.shim.call("Shutdown", ShutdownRequest(id=task.id), Empty)
    await task.shim.wait_ended()


@asynccontextmanager
async def open_shim(
    bench: Bench, binary: str, task_id: str, args: Sequence[str], watch: Stopwatch, *, mounted: bool = False
) -> AsyncIterator[BenchTask]:
    """A shim for a task that is not created yet; if it still runs at the end it is killed, and all is taken away."""
    bundle = await create_bundle(
        bench.launcher.layout, bench.namespace, task_id, bench.spec(task_id, args, mounted=mounted)
    )
    log = await bench.nursery.start(run_log, open_log(bundle.log), task_id, _ignore_line)
    began = trio.current_time()

    async def use(answer: Answer) -> ShimConnection:
        watch.samples[START_COMMAND].append(trio.current_time() - began)
        return await connect(bench.nursery, answer, bench.namespace, task_id)

    try:
        shim = await start_shim(bench.launcher, bundle, binary, None, use)
        try:
            yield BenchTask(shim, bundle)
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 30):
                if shim.kill():
                    await shim.wait_ended()
                    with contextlib.suppress(ShimError):
                        await run_delete(bench.launcher, bundle, binary)
            shim.close()
    finally:
        log.cancel()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 30):
            await delete_bundle(bundle)


async def time_floor(bench: Bench, task_id: str, watch: Stopwatch) -> None:
    """The same by the runtime alone: the kill in one container, the exec in another.

    Nobody reaps an exec that its runtime left behind but the machine's init, in its own time, and a container's end
    waits for that.
    """
    await _floor_life(bench, f"{task_id}-kill", watch, with_exec=False)
    await _floor_life(bench, f"{task_id}-exec", watch, with_exec=True)


async def _floor_life(bench: Bench, task_id: str, watch: Stopwatch, *, with_exec: bool) -> None:
    bundle = await create_bundle(
        bench.launcher.layout, bench.namespace, task_id, bench.spec(task_id, ["sleep", "1000"])
    )
    root = f"{bundle.work_path}/runc"
    process = bundle.file("process.json")
    await trio.Path(process).write_text(_process(["true"]))

    async def runtime(*words: str) -> None:
        command = Command(["runc", "--root", root, *words], cwd=bundle.path)
        ended = await run_uncaptured(bench.launcher.children, command, on_spawn=lambda: None)
        if ended.status:
            raise Unknown(f"runc {words[0]} failed with {ended.status}")

    try:
        with watch.timed(CREATE):
            await runtime("create", "--bundle", bundle.path, "--pid-file", bundle.file("pid"), task_id)
        pidfd = os.pidfd_open(int(await trio.Path(bundle.file("pid")).read_text()))
        try:
            with watch.timed(START):
                await runtime("start", task_id)
            if with_exec:
                with watch.timed(EXEC_START):
                    await runtime("exec", "--detach", "--process", process, task_id)
            with nullcontext() if with_exec else watch.timed(KILL_WAIT):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                await trio.lowlevel.wait_readable(pidfd)
        finally:
            os.close(pidfd)
        with watch.timed(DELETE):
            await runtime("delete", task_id)
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 30):
            with contextlib.suppress(ShimError):
                await runtime("delete", "--force", task_id)
            await delete_bundle(bundle)


def _process(args: Sequence[str]) -> str:
    return json.dumps({"args": list(args), "cwd": "/", "user": {"uid": 0, "gid": 0}, "env": ["PATH=/bin"]})


def _ignore_line(task_id: str, line: str) -> None:
    """Shims' logs are nobody's business here."""
