"""A task service in a world of its own: fake runtime and mounts, real guards, jobs and streams."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias

import pytest
import trio

from shim.task import container, creation, init
from shim.task.events import TaskEvents
from shim.task.jobs import Jobs
from shim.task.service import TaskService
from shim.wire.proto import task_pb2 as task
from shim.wire.proto.mount_pb2 import Mount
from tests.fakes.world import FakeChildren, FakeRuntime, World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from google.protobuf.message import Message


class Events:
    """What was published, in order."""

    def __init__(self) -> None:
        self.topics: list[str] = []
        self.events: list[Message] = []

    def publish(self, topic: str, event: Message) -> None:
        """Note it."""
        self.topics.append(topic)
        self.events.append(event)


class Subject:
    """One service, its world, and what it published."""

    def __init__(self, service: TaskService, janitor: Jobs, world: World, events: Events, bundle: Path) -> None:
        self.service = service
        self.janitor = janitor
        self.world = world
        self.events = events
        self.bundle = bundle

    def create_request(self) -> task.CreateTaskRequest:
        """A task with two mounts."""
        mounts = [Mount(type="tmpfs", source="none", target=name) for name in ("a", "b")]
        return task.CreateTaskRequest(id="c", bundle=str(self.bundle), rootfs=mounts)

    async def create(self) -> None:
        """Bring the task into being."""
        await self.service.create(self.create_request())

    async def start(self) -> None:
        """Bring it to run."""
        await self.service.start(task.StartRequest(id="c"))

    async def exec(self, exec_id: str = "e") -> None:
        """Record an exec."""
        request = task.ExecProcessRequest(id="c", exec_id=exec_id)
        request.spec.value = b'{"args": ["true"]}'
        await self.service.exec(request)

    async def kill(self) -> None:
        """SIGKILL for init."""
        await self.service.kill(task.KillRequest(id="c", signal=9))

    async def stop(self) -> None:
        """SIGKILL, and the exit known."""
        await self.kill()
        await self.service.wait(task.WaitRequest(id="c"))

    async def delete(self) -> task.DeleteResponse:
        """Take it down."""
        return await self.service.delete(task.DeleteRequest(id="c"))

    async def settle(self) -> None:
        """Until no job runs any more."""
        await self.janitor.wait_idle()
        for one in list(self.service.containers.values()):
            await one.jobs.wait_idle()


OpenSubject: TypeAlias = "Callable[[], AbstractAsyncContextManager[Subject]]"


@pytest.fixture
def open_subject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenSubject:
    """Makes subjects, each with a bundle and a world of its own."""
    count = 0

    @asynccontextmanager
    async def open_one() -> AsyncIterator[Subject]:
        nonlocal count
        count += 1
        bundle = tmp_path / f"bundle{count}"
        bundle.mkdir()
        world = World()
        monkeypatch.setattr(container, "Runtime", lambda *_, **__: FakeRuntime(world, bundle))
        monkeypatch.setattr(creation, "mount_all", world.mount_all)
        monkeypatch.setattr(creation, "unmount_all", world.unmount_all)
        monkeypatch.setattr(init, "unmount_all", world.unmount_all)
        events = Events()
        async with trio.open_nursery() as nursery:
            janitor = Jobs(nursery)
            service = TaskService(
                namespace="ns",
                nursery=nursery,
                janitor=janitor,
                children=FakeChildren(world),
                events=TaskEvents(events),
            )
            yield Subject(service, janitor, world, events, bundle)
            nursery.cancel_scope.cancel()

    return open_one
