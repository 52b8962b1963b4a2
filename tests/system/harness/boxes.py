"""A container by the runtime alone, without a shim: for tests of one part of the shim against the real kernel."""

from __future__ import annotations

import os
import signal
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import trio

from shim.kernel import native
from shim.kernel.cgroup_files import CgroupPlaces
from shim.kernel.children import SubreaperChildren
from shim.runc.arguments import CreateOptions
from shim.runc.runtime import Runtime
from tests.system.harness.bundles import Spec, make_bundle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from typing import Unpack

    from shim.kernel.children import Child, Exit
    from tests.system.harness.bundles import SpecChanges
    from tests.system.harness.places import Places


@attrs.define
class Box:
    """A created container; its init is our child."""

    id: str
    cgroup: CgroupPlaces
    child: Child
    runtime: Runtime

    async def start(self) -> None:
        """Let it run."""
        await self.runtime.start(self.id)

    async def wait(self) -> Exit:
        """Its end."""
        with trio.fail_after(30):
            return await self.child.wait()

    async def delete(self) -> None:
        """Whatever its state, no trace of it is left."""
        if self.child.exit is None:
            self.child.send_signal(signal.SIGKILL)
            await self.wait()
        await self.runtime.delete(self.id, force=True)

    def memory(self, name: str) -> Path:
        """A file of its memory cgroup."""
        directory = self.cgroup.memory
        assert directory is not None
        assert "/shim-test-" in directory, "only what a test made is touched"
        return Path(directory) / name


@attrs.define
class Boxes:
    """Makes containers below the run's own cgroup directory."""

    places: Places
    directory: Path
    rootfs: Path
    children: SubreaperChildren
    stack: AsyncExitStack
    _count: int = 0

    async def create(
        self,
        args: Sequence[str],
        *,
        parent: str = "",
        stdio: Mapping[int, int] | None = None,
        **changes: Unpack[SpecChanges],
    ) -> Box:
        """A created container; `parent` is a cgroup directory of the test, below the run's."""
        self._count += 1
        name = f"box{self.directory.name}-{self._count}"
        place = self.places.cgroup_path(f"{parent}/{name}" if parent else name)
        spec = attrs.evolve(Spec(args=args, cgroups_path=place, root=str(self.rootfs)), **changes)
        bundle = make_bundle(self.directory / name, name, spec)
        runtime = Runtime(
            self.children,
            binary="runc",
            root=str(self.directory / "runc"),
            bundle=str(bundle.path),
            systemd_cgroup=False,
        )
        mark = self.children.mark()
        pid_file = bundle.file("init.pid")
        options = CreateOptions(bundle=str(bundle.path), pid_file=str(pid_file))
        await runtime.create(name, options, stdio=stdio or {}, on_spawn=lambda: None)
        pid = int(pid_file.read_text())
        box = Box(name, CgroupPlaces.of(pid), self.children.adopt(pid, mark), runtime)
        self.stack.push_async_callback(box.delete)
        return box


@asynccontextmanager
async def open_boxes(places: Places, directory: Path, rootfs: Path) -> AsyncIterator[Boxes]:
    """Containers as children of this process; all are gone at the end."""
    (directory / "runc").mkdir()
    children = SubreaperChildren()
    native.set_subreaper(True)
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(children.run_reaper)
            async with AsyncExitStack() as stack:
                try:
                    yield Boxes(places, directory, rootfs, children, stack)
                finally:
                    with trio.CancelScope(shield=True, deadline=trio.current_time() + 60):
                        await stack.aclose()
            nursery.cancel_scope.cancel()
    finally:
        native.set_subreaper(False)


WATCHES = ("anon_inode:[eventfd]", "anon_inode:inotify", "anon_inode:[eventpoll]")


def open_watches() -> int:
    """How many descriptors of this process wait for events."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one that lists them
            found += os.readlink(f"/proc/self/fd/{name}") in WATCHES
    return found
