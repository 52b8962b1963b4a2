"""What the manager's own tests share: a runtime of the square, a place of the test's own, plain containers in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import trio

from shim.manager.config import ManagerConfig, TaskInputs
from shim.manager.events import event_in
from shim.manager.layout import Layout
from shim.manager.spec import RunSpec, default_spec
from shim.wire.proto.events_pb2 import TaskDelete, TaskExit
from shim.wire.proto.mount_pb2 import Mount
from tests.system.harness.processes import wait_ended

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shim.manager.manager import Manager
    from shim.manager.tasks import Task
    from shim.wire.proto.envelope_pb2 import Envelope

CGROUPS = Path("/sys/fs/cgroup")
SLEEP = ("/bin/busybox", "sleep", "1000")


@attrs.frozen
class Room:
    """Where one test's managers live; `told` is every event that came to any of them."""

    directory: Path
    runtime: str
    kind: str
    namespace: str
    rootfs: Path
    told: list[Envelope] = attrs.field(factory=list)

    @property
    def layout(self) -> Layout:
        return Layout(str(self.directory / "state"), str(self.directory / "root"))

    def config(self, **more: object) -> ManagerConfig:
        made = ManagerConfig(self.layout, on_event=self.told.append)
        return attrs.evolve(made, **more)  # type: ignore[arg-type]

    def spec(self, task_id: str, args: Sequence[str] = SLEEP, annotations: dict[str, str] | None = None) -> bytes:
        document = json.loads(default_spec(RunSpec(self.namespace, task_id, args, readonly=True)))
        if annotations:
            document["annotations"] = annotations
        return json.dumps(document).encode()

    def inputs(self, *before: Mount) -> TaskInputs:
        return TaskInputs(rootfs=[*before, Mount(type="bind", source=str(self.rootfs), options=["rbind", "ro"])])

    async def create(
        self, manager: Manager, task_id: str, args: Sequence[str] = SLEEP, *, group: str = "", **more: object
    ) -> Task:
        annotations = {"io.containerd.runc.v2.group": group} if group else None
        wanted = {"runtime": self.runtime, "prepare": lambda _: self.inputs(), **more}
        return await manager.create(
            self.namespace,
            task_id,
            self.spec(task_id, args, annotations),
            **wanted,  # type: ignore[arg-type]
        )

    async def running(self, manager: Manager, task_id: str, args: Sequence[str] = SLEEP, **more: object) -> Task:
        task = await self.create(manager, task_id, args, **more)  # type: ignore[arg-type]
        await task.start()
        return task

    def exits(self, task_id: str) -> list[tuple[str, int, int]]:
        """Kind, status and pid of each exit and deletion that was told of the task, in order."""
        found = []
        for envelope in self.told:
            event = event_in(envelope)
            if isinstance(event, TaskExit | TaskDelete) and event.container_id == task_id:
                found.append((type(event).__name__, event.exit_status, event.pid))
        return found

    async def wait_told(self, task_id: str, count: int = 2, *, timeout: float = 10) -> list[tuple[str, int, int]]:
        """The exits once there are so many."""
        await until(lambda: len(self.exits(task_id)) >= count, timeout=timeout)
        return self.exits(task_id)

    async def wait_ended_by_shim(self, task_id: str) -> None:
        """Until the shim has told of the end of its task: once each, the exit first.

        The Go shim of 2.4 makes the exit event after it has answered Wait.  A Delete that comes at once overtakes it,
        and a Shutdown after that can be the end of it (seen on a busy machine).
        """
        if self.kind != "go-2.4":
            told = [kind for kind, _, _ in await self.wait_told(task_id)]
            assert told == ["TaskExit", "TaskDelete"]
        else:
            await until(lambda: any(kind == "TaskDelete" for kind, _, _ in self.exits(task_id)), timeout=10)
            assert len(self.exits(task_id)) == len({kind for kind, _, _ in self.exits(task_id)})

    def left(self) -> list[str]:
        """Bundles, work directories, lock files, cgroups and mounts that are there now."""
        found = [str(path) for path in self.directory.glob("*/io.containerd.runtime.v2.task/*/*")]
        found += [str(path) for path in self.directory.glob("state/locks/*")]
        wanted = f"shimctl+{self.namespace}+*"
        found += [str(path) for path in (*CGROUPS.glob(wanted), *CGROUPS.glob(f"*/{wanted}"))]
        table = Path("/proc/self/mountinfo").read_text().splitlines()
        return found + [line for line in table if f"{self.directory}/state/io.containerd" in line]


async def until(ready: Callable[[], bool], *, timeout: float) -> None:
    """Until `ready` holds, looked at often; TooSlowError after `timeout` seconds."""
    with trio.fail_after(timeout):
        while not ready():  # noqa: ASYNC110 - what is waited for is not ours to signal
            await trio.sleep(0.01)


def socket_of(task: Task) -> Path:
    """The file of the shim's socket."""
    return Path(task.shim.address.removeprefix("unix://"))


async def processes_end(*pids: int) -> None:
    """All of them, within seconds."""
    for pid in pids:
        await wait_ended(pid, timeout=10)
