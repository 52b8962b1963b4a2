"""One suite for the seam between the task room and the OCI runtime: the fake of the unit tests, and real runc."""

from __future__ import annotations

import json
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from shim.errors import NotFound
from shim.kernel import native
from shim.kernel.children import SubreaperChildren
from shim.runc.arguments import CreateOptions
from shim.runc.failures import RuntimeFailure
from shim.runc.runtime import Runtime
from tests.conftest import NEEDS_ROOT
from tests.fakes.world import FakeChildren, FakeRuntime, World
from tests.system.harness.bundles import Spec, make_bundle, make_process, make_rootfs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from shim.kernel.children import Child, Children

ID = "contract"


@attrs.frozen
class Subject:
    """A runtime, its children, and a bundle whose container sleeps."""

    runtime: Runtime
    children: Children
    bundle: Path

    async def create(self) -> Child:
        """The container, its init adopted."""
        mark = self.children.mark()
        options = CreateOptions(bundle=str(self.bundle), pid_file=str(self.bundle / "init.pid"))
        await self.runtime.create(ID, options, stdio={}, on_spawn=lambda: None)
        return self.children.adopt(int((self.bundle / "init.pid").read_text()), mark)

    async def exec(self) -> Child:
        """One more sleeper."""
        mark = self.children.mark()
        document = self.bundle / "process.json"
        document.write_text(json.dumps(make_process(["sleep", "100"])))
        pid_file = self.bundle / "e.pid"
        await self.runtime.run_exec(
            ID, process=str(document), pid_file=str(pid_file), console_socket="", stdio={}, on_spawn=lambda: None
        )
        return self.children.adopt(int(pid_file.read_text()), mark)


@asynccontextmanager
async def open_fake(bundle: Path) -> AsyncIterator[Subject]:
    world = World()
    yield Subject(FakeRuntime(world, bundle), FakeChildren(world), bundle)


@asynccontextmanager
async def open_real(bundle: Path) -> AsyncIterator[Subject]:
    children = SubreaperChildren()
    native.set_subreaper(True)
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(children.run_reaper)
            runtime = Runtime(
                children, binary="runc", root=str(bundle / "state"), bundle=str(bundle), systemd_cgroup=False
            )
            try:
                yield Subject(runtime, children, bundle)
            finally:
                await runtime.delete(ID, force=True)
            nursery.cancel_scope.cancel()
    finally:
        native.set_subreaper(False)


@pytest.fixture(params=["fake", "real"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AbstractAsyncContextManager[Subject]:
    """Each of the two in turn."""
    name = f"shim-contract-{os.getpid()}"
    if request.param == "real" and os.geteuid() != 0:
        pytest.skip(NEEDS_ROOT)
    rootfs = make_rootfs(tmp_path / "rootfs") if request.param == "real" else tmp_path
    bundle = make_bundle(tmp_path / ID, ID, Spec(["sleep", "100"], cgroups_path=f"/{name}", root=str(rootfs))).path
    return open_real(bundle) if request.param == "real" else open_fake(bundle)


async def test_a_whole_life(opened: AbstractAsyncContextManager[Subject]) -> None:
    async with opened as subject:
        init = await subject.create()
        await subject.runtime.start(ID)
        assert await subject.runtime.ps(ID) == [init.pid]
        further = await subject.exec()
        assert sorted(await subject.runtime.ps(ID)) == sorted([init.pid, further.pid])
        await subject.runtime.pause(ID)
        await subject.runtime.resume(ID)
        await subject.runtime.kill(ID, 9)
        assert (await init.wait()).status == 137
        await subject.runtime.delete(ID)


async def test_a_signal_for_an_init_that_has_ended_is_not_found(opened: AbstractAsyncContextManager[Subject]) -> None:
    async with opened as subject:
        init = await subject.create()
        await subject.runtime.kill(ID, 9)
        await init.wait()
        with pytest.raises(NotFound):
            await subject.runtime.kill(ID, 9)
        await subject.runtime.delete(ID)
        with pytest.raises(NotFound):
            await subject.runtime.kill(ID, 9)


async def test_delete_of_a_created_container_ends_its_init(opened: AbstractAsyncContextManager[Subject]) -> None:
    async with opened as subject:
        init = await subject.create()
        await subject.runtime.delete(ID)
        assert (await init.wait()).status == 137


@pytest.mark.parametrize("force", [False, True])
async def test_delete_of_a_missing_container_is_no_failure(
    force: bool, opened: AbstractAsyncContextManager[Subject]
) -> None:
    async with opened as subject:
        await subject.runtime.delete(ID, force=force)


async def test_delete_by_force_ends_a_running_init(opened: AbstractAsyncContextManager[Subject]) -> None:
    async with opened as subject:
        init = await subject.create()
        await subject.runtime.start(ID)
        await subject.runtime.delete(ID, force=True)
        assert (await init.wait()).status == 137


async def test_start_of_a_missing_container_fails_with_the_reason(
    opened: AbstractAsyncContextManager[Subject],
) -> None:
    async with opened as subject:
        with pytest.raises(RuntimeFailure, match=r"OCI runtime start failed: .*does not exist"):
            await subject.runtime.start(ID)


async def test_a_taken_id_is_refused_and_the_first_lives_on(opened: AbstractAsyncContextManager[Subject]) -> None:
    async with opened as subject:
        init = await subject.create()
        with pytest.raises(RuntimeFailure, match=r"OCI runtime create failed: .*exists"):
            await subject.create()
        assert init.exit is None
        await subject.runtime.delete(ID, force=True)
        await init.wait()
