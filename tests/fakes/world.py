"""An OCI runtime, its processes and its mounts in memory, for the time logic of the task room.

Each operation takes time on Trio's clock, so that a test can stop it at every await, and what exists at any moment can
be counted.  Verified against the real runtime by tests/contract/test_runtime.py.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import trio

from shim.errors import NotFound
from shim.kernel.children import Child, Command, Exit
from shim.runc.failures import RuntimeFailure
from shim.runc.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from shim.model.mounts import Mount
    from shim.runc.arguments import CheckpointOptions, CreateOptions

STEP = 1.0


class World:
    """What exists outside the shim: containers by id with their init, mounts by place."""

    def __init__(self) -> None:
        self.containers: dict[str, Child] = {}
        self.execs: list[Child] = []
        self.mounts: set[str] = set()
        self.began: list[str] = []
        self.fail: dict[str, Exception] = {}
        self.hang: dict[str, trio.Event] = {}
        self._next_pid = 5_000_000  # above any real pid, so that nothing real is looked at by mistake

    def leftovers(self) -> dict[str, object]:
        """What a clean-up must have removed: empty when nothing is left."""
        living = [child.pid for child in (*self.containers.values(), *self.execs) if child.exit is None]
        found = {"containers": sorted(self.containers), "mounts": sorted(self.mounts), "living": living}
        return {name: value for name, value in found.items() if value}

    def new_child(self, name: str) -> Child:
        """A process that runs until it is killed or told to end."""
        self._next_pid += 1
        return Child(self._next_pid, -1, name)

    async def step(self, verb: str) -> None:
        """One piece of an operation: takes a moment, and may hang or fail as the test says."""
        self.began.append(verb)
        gate = self.hang.get(verb)
        if gate is not None:
            await gate.wait()
        await trio.sleep(STEP)
        failure = self.fail.get(verb)
        if failure is not None:
            raise failure

    async def mount_all(self, mounts: Sequence[Mount], rootfs: str) -> None:
        """Stands in for `shim.mounts.apply.mount_all`: all or nothing, also when cancelled."""
        made: list[str] = []
        try:
            for mount in mounts:
                await self.step("mount")
                made.append(f"{rootfs}/{mount.target}")
                self.mounts.add(made[-1])
        except BaseException:
            self.mounts.difference_update(made)
            raise

    async def unmount_all(self, rootfs: str) -> None:
        """Stands in for `shim.mounts.unwind.unmount_all`."""
        await self.step("unmount")
        self.mounts -= {place for place in self.mounts if place.startswith(rootfs)}


def end(child: Child, status: int) -> None:
    """The process ends; a second end is ignored."""
    if child.exit is None:
        child.finish(Exit(child.pid, status, at_ns=1_000_000_000, signal=max(0, status - 128)))


class FakeChildren:
    """The processes that the fake runtime reports."""

    def __init__(self, world: World) -> None:
        self._world = world

    def spawn(self, command: Command) -> Child:
        """Nothing is started by itself here."""
        raise FileNotFoundError(command.argv[0])

    def mark(self) -> int:
        """No end is kept here."""
        return 0

    def adopt(self, pid: int, since: int) -> Child:
        """The process with that pid."""
        del since
        for child in (*self._world.containers.values(), *self._world.execs):
            if child.pid == pid:
                return child
        raise NotFound(f"no process {pid}")

    def processes(self) -> Sequence[Child]:
        """All that live."""
        return [child for child in (*self._world.containers.values(), *self._world.execs) if child.exit is None]


class FakeRuntime(Runtime):
    """Each verb is a few steps in the world; killed between two of them it leaves what it had made."""

    def __init__(self, world: World, bundle: Path) -> None:
        super().__init__(
            FakeChildren(world), binary="runc", root=str(bundle / "state"), bundle=str(bundle), systemd_cgroup=False
        )
        self._world = world

    async def create(
        self,
        container: str,
        options: CreateOptions,
        *,
        stdio: Mapping[int, int],
        on_spawn: Callable[[], None],
    ) -> None:
        """State first, then the process, then the pid file."""
        del stdio
        on_spawn()
        await self._world.step("create")
        if container in self._world.containers:
            raise RuntimeFailure("OCI runtime create failed: container with given ID already exists")
        self._world.containers[container] = self._world.new_child("init")
        await self._write_pid(options.pid_file, self._world.containers[container].pid, "create: pid file")

    async def start(self, container: str) -> None:
        """Init goes on."""
        await self._world.step("start")
        if container not in self._world.containers:
            raise RuntimeFailure(f"OCI runtime start failed: container {container} does not exist")

    async def kill(self, container: str, signum: int, *, everyone: bool = False) -> None:
        """Any signal ends the process."""
        await self._world.step("kill")
        child = self._world.containers.get(container)
        if everyone:
            for other in self._world.execs:
                end(other, 128 + signum)
        if child is None or child.exit is not None:
            raise NotFound("process already finished")
        end(child, 128 + signum)

    async def delete(self, container: str, *, force: bool = False) -> None:
        """Kills what lives, then forgets."""
        await self._world.step("delete")
        child = self._world.containers.get(container)
        if child is not None:
            end(child, 137)
            await self._world.step("delete: state")
            self._world.containers.pop(container, None)

    async def pause(self, container: str) -> None:
        """Freeze."""
        await self._world.step("pause")

    async def resume(self, container: str) -> None:
        """Thaw."""
        await self._world.step("resume")

    async def update(self, container: str, resources: bytes) -> None:
        """New limits."""
        await self._world.step("update")

    async def checkpoint(self, container: str, options: CheckpointOptions) -> None:
        """Processes to disk."""
        await self._world.step("checkpoint")

    async def restore(
        self,
        container: str,
        options: CreateOptions,
        *,
        image_path: str,
        work_path: str,
        parent_path: str,
        stdio: Mapping[int, int],
        on_spawn: Callable[[], None],
    ) -> None:
        """Processes from disk."""
        await self.create(container, options, stdio=stdio, on_spawn=on_spawn)

    async def ps(self, container: str) -> list[int]:
        """The living."""
        await self._world.step("ps")
        return [child.pid for child in (self._world.containers[container], *self._world.execs) if child.exit is None]

    async def run_exec(
        self,
        container: str,
        *,
        process: str,
        pid_file: str,
        console_socket: str,
        stdio: Mapping[int, int],
        on_spawn: Callable[[], None],
    ) -> None:
        """A further process."""
        on_spawn()
        await self._world.step("exec")
        child = self._world.new_child("exec")
        self._world.execs.append(child)
        await self._write_pid(pid_file, child.pid, "exec: pid file")

    async def _write_pid(self, path: str, pid: int, step: str) -> None:
        """As runc does: under a name with a dot in front, which must not be there yet, and then renamed."""
        directory, name = os.path.split(path)
        temporary = os.path.join(directory, f".{name}")
        with open(temporary, "x") as stream:
            await self._world.step(step)
            stream.write(str(pid))
        os.rename(temporary, path)
