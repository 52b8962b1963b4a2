"""A caller that goes away, or whose deadline passes, at every moment of every changing call; with the real runtime.

After each moment the task must be either rolled back or whole, the next Create of its id must work, and nothing may be
left: mounts, loop devices, runtime states, processes, descriptors of the shim.  The root file system is an image, so
that each Create has a loop device to lose.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import attrs
import pytest
import trio

from shim import errors
from shim.rpc.client import open_unix_client
from shim.wire.proto import task_pb2
from tests.system.harness.loops import copy_image, image_mount, loops_below, make_root_image
from tests.system.harness.processes import children_of, is_running, open_files
from tests.system.harness.slowdisk import is_mounted
from tests.system.harness.task import CREATED, RUNNING, STOPPED, Process, Task

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from pathlib import Path

    from google.protobuf.message import Message

    from tests.system.harness.bundles import Bundle
    from tests.system.harness.driver import Driver
    from tests.system.harness.sink import Sink
    from tests.system.harness.task import Shim

pytestmark = [
    pytest.mark.better_than_peer("the Go shim does not undo what a lost caller began"),
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

MOMENTS: Final = 20
BEYOND: Final = 1.2
"""The last moment is a little after the call would have been answered."""
SETTLE: Final = 15.0
"""Seconds within which everything is over: liveness, not speed."""
WAYS: Final = ("hang up", "deadline")


@attrs.define
class Sweep:
    """One shim with a task that stays, so that it lives on, and the id that is made and lost again and again."""

    driver: Driver
    shim: Shim
    bundle: Bundle
    image: Path
    base_fds: Mapping[int, str] = attrs.field(factory=dict)
    base_children: frozenset[int] = frozenset()

    async def create(self) -> Task:
        """The task, on a connection that stays."""
        task = await self.shim.create(self.bundle, rootfs=[image_mount(self.image)])
        task.bundle = self.bundle
        return task

    def create_request(self) -> task_pb2.CreateTaskRequest:
        return task_pb2.CreateTaskRequest(
            id=self.bundle.id,
            bundle=str(self.bundle.path),
            rootfs=[image_mount(self.image)],
            options=self.shim.options,
        )

    async def lose(self, method: str, request: Message, moment: float, way: str) -> None:
        """Send the call, and lose it `moment` seconds later."""
        async with open_unix_client(self.shim.answer.address) as client:
            timeout = max(moment, 1e-6) if way == "deadline" else None
            with trio.move_on_after(moment if way == "hang up" else SETTLE):
                try:
                    await client.call(
                        self.shim.service, method, request, timeout=timeout, namespace=self.shim.namespace
                    )
                except errors.DeadlineExceeded:
                    assert way == "deadline"

    async def known(self) -> task_pb2.StateResponse | None:
        """What State says; None when it knows no such task."""
        try:
            return await self.shim.known(self.bundle.id).state()
        except errors.NotFound:
            return None

    async def end(self) -> None:
        """Whatever became of the task: killed, waited for, deleted."""
        process = self.shim.known(self.bundle.id)
        state = await self.known()
        if state is None:
            return
        assert state.status in {CREATED, RUNNING, STOPPED}
        try:
            if state.status != STOPPED:
                await kill(process)
                assert (await process.wait()).exit_status == 137
            await process.delete()
        except errors.NotFound:  # a Delete that lost its caller goes on
            assert await self.known() is None

    async def check(self) -> None:
        """The next Create of the id works and starts; after its end nothing is left."""
        task = await self.create_again()
        pid = await task.start()
        assert is_running(pid)
        await self.end()
        with trio.fail_after(SETTLE):
            while self.left():  # noqa: ASYNC110 - what ends tells the kernel, not us
                await trio.sleep(0.02)

    async def create_again(self) -> Task:
        """Create, as soon as what was given up is undone: until then the id is taken."""
        with trio.fail_after(SETTLE):
            while True:
                try:
                    return await self.create()
                except errors.AlreadyExists:
                    assert await self.known() is None
                    await trio.sleep(0.02)

    def left(self) -> list[str]:
        """What the shim has or made that was not there at first."""
        found = [f"loop device on {file}" for file in loops_below(self.driver.directory).values()]
        if is_mounted(self.bundle.path):
            found.append("a mount")
        found += [f"runtime state {path}" for path in self.driver.runc_root.glob(f"*/{self.bundle.id}")]
        found += [f"child {pid}" for pid in set(children_of(self.shim.pid)) - self.base_children]
        fds = open_files(self.shim.pid)
        if len(fds) > len(self.base_fds):
            found.append(f"descriptors {sorted(set(fds.values()) - set(self.base_fds.values()))}")
        return found


@pytest.fixture
async def sweep(driver: Driver) -> AsyncIterator[Sweep]:
    image = make_root_image(driver.directory / "root.img", driver.rootfs)
    first = await driver.run(["sleep", "1000"])
    await first.start()
    bundle = driver.bundle(["sleep", "1000"], root="rootfs", readonly=False)
    copy = copy_image(image, driver.directory / "mine.img")
    made = Sweep(driver, first.shim, bundle, copy)
    await made.create()  # once, for what is made once
    await made.end()
    made.base_fds = open_files(made.shim.pid)
    made.base_children = frozenset(children_of(made.shim.pid))
    yield made
    first.shim.tasks.pop(bundle.id, None)


async def kill(process: Process) -> None:
    """SIGKILL; one that has ended is fine."""
    try:
        await process.kill(9)
    except errors.NotFound:
        return


async def end_exec(process: Process) -> None:
    """Delete an exec whose Start was lost: one that was read only after its connection had gone may still begin."""
    try:
        await process.delete()
    except errors.FailedPrecondition:
        assert is_running((await process.state()).pid)
        await kill(process)
        assert (await process.wait()).exit_status == 137
        await process.delete()


async def timed(call: Callable[[], Awaitable[object]]) -> float:
    """How long one undisturbed call takes."""
    began = trio.current_time()
    await call()
    return trio.current_time() - began


def moments(seconds: float) -> list[float]:
    """From nothing to a little after the end."""
    return [seconds * BEYOND * number / (MOMENTS - 1) for number in range(MOMENTS)]


@pytest.mark.parametrize("way", WAYS)
async def test_create(sweep: Sweep, way: str) -> None:
    seconds = await timed(sweep.create)
    await sweep.end()
    outcomes: set[str] = set()
    for moment in moments(seconds):
        await sweep.lose("Create", sweep.create_request(), moment, way)
        outcomes.add("rolled back" if await sweep.known() is None else "whole")
        await sweep.end()
        await sweep.check()
    assert "rolled back" in outcomes


@pytest.mark.parametrize("way", WAYS)
async def test_start(sweep: Sweep, way: str) -> None:
    seconds = await timed((await sweep.create()).start)
    await sweep.end()
    for moment in moments(seconds):
        await sweep.create_again()
        await sweep.lose("Start", task_pb2.StartRequest(id=sweep.bundle.id), moment, way)
        state = await sweep.known()
        assert state is not None
        assert state.status in {CREATED, RUNNING}
        assert is_running(state.pid)
        await sweep.end()
        await sweep.check()


@pytest.mark.parametrize("way", WAYS)
async def test_exec_start(sweep: Sweep, way: str) -> None:
    task = await sweep.create()
    await task.start()
    first = await task.exec("first", ["sleep", "1000"])
    seconds = await timed(first.start)
    await kill(first)
    await first.wait()
    await first.delete()
    fds = len(open_files(sweep.shim.pid))
    for number, moment in enumerate(moments(seconds)):
        process = await task.exec(f"e{number}", ["sleep", "1000"])
        await sweep.lose("Start", task_pb2.StartRequest(id=task.id, exec_id=process.exec_id), moment, way)
        state = await process.state()
        assert state.status in {CREATED, RUNNING}
        await end_exec(process)
        again = await task.exec(process.exec_id, ["true"])
        await again.start()
        assert (await again.wait()).exit_status == 0
        await again.delete()
        assert await task.pids() == [task.pid]
        assert len(open_files(sweep.shim.pid)) <= fds
    await sweep.end()
    await sweep.check()


@pytest.mark.parametrize("way", WAYS)
async def test_delete(sweep: Sweep, way: str) -> None:
    async def stopped() -> Task:
        task = await sweep.create_again()
        await task.start()
        await kill(task)
        await task.wait()
        return task

    seconds = await timed((await stopped()).delete)
    for moment in moments(seconds):
        task = await stopped()
        await sweep.lose("Delete", task_pb2.DeleteRequest(id=task.id), moment, way)
        state = await sweep.known()
        assert state is None or (state.status, state.exit_status) == (STOPPED, 137)
        await sweep.end()
        await sweep.check()

    def told(sink: Sink) -> bool:
        topics = sink.topics(sweep.bundle.id)
        return topics.count("/tasks/create") == topics.count("/tasks/exit") == topics.count("/tasks/delete")

    await sweep.driver.sink.wait_until(told)


@pytest.mark.parametrize("way", WAYS)
async def test_kill(sweep: Sweep, way: str) -> None:
    async def running() -> Task:
        task = await sweep.create_again()
        await task.start()
        return task

    task = await running()
    seconds = await timed(lambda: task.kill(9))
    await task.wait()
    await sweep.end()
    for moment in moments(seconds):
        task = await running()
        await sweep.lose("Kill", task_pb2.KillRequest(id=task.id, signal=9), moment, way)
        state = await sweep.known()
        assert state is not None
        assert state.status in {RUNNING, STOPPED}
        await sweep.end()
        await sweep.check()


async def test_callers_that_go_away_all_at_once(sweep: Sweep) -> None:
    """Many lost Creates of the same id, on connections of their own, while one more is asked for in earnest."""

    async def lose(moment: float) -> None:
        try:
            await sweep.lose("Create", sweep.create_request(), moment, "hang up")
        except errors.AlreadyExists:
            return

    seconds = await timed(sweep.create)
    await sweep.end()
    async with trio.open_nursery() as nursery:
        for moment in moments(seconds / BEYOND):
            nursery.start_soon(lose, moment)
    await sweep.end()
    await sweep.check()
    assert os.path.exists(f"/proc/{sweep.shim.pid}")
