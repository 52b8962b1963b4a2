"""The manager and living tasks, for real: creation that fails, groups, mounts, runtimes, execs, disks that refuse."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from shim.errors import AlreadyExists, FailedPrecondition, InvalidArgument, ResourceExhausted, ShimError
from shim.manager.activations import ActivateOptions, Activation
from shim.manager.config import TaskInputs
from shim.manager.manager import open_manager
from shim.model.mounts import Mount as ModelMount
from shim.wire import typeurl
from shim.wire.proto.mount_pb2 import Mount
from shim.wire.proto.runc_options_pb2 import Options
from shim.wire.proto.task_types_pb2 import Status
from tests.fakes.activations import MemoryActivations
from tests.system.conftest import KIND
from tests.system.harness.bundles import make_process
from tests.system.harness.managers import SLEEP, Room, processes_end, socket_of
from tests.system.harness.processes import run_program
from tests.system.harness.subject import Kind, Subject, find_subject

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shim.manager.bundle import Bundle

pytestmark = pytest.mark.slow
SHIMS = ["under test", "go-2.4", "go-1.6"] if KIND is Kind.OURS else ["under test"]


@pytest.fixture(params=SHIMS)
def room(
    request: pytest.FixtureRequest, subject: Subject, directory: Path, rootfs: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Room]:
    chosen = subject
    if request.param != "under test":
        monkeypatch.setenv("SHIM_UNDER_TEST", request.param)
        chosen = find_subject(directory)
    made = Room(directory, str(chosen.path), chosen.kind.value, f"n{os.getpid()}-{directory.name}", rootfs)
    yield made
    assert made.left() == []


async def test_a_task_lives_its_life(room: Room) -> None:
    async with open_manager(room.config()) as manager:
        task = await room.create(manager, "l1")
        assert (await task.state()).status == Status.CREATED
        with pytest.raises(FailedPrecondition, match="created"):
            await task.delete()
        pid = await task.start()
        assert (await task.pids()) == [pid]
        assert (await task.connect()).task_pid == pid
        await task.pause()
        assert (await task.state()).status == Status.PAUSED
        await task.resume()
        more = await task.exec("e1", make_process(["/bin/busybox", "sh", "-c", "exit 4"]))
        with pytest.raises(AlreadyExists):
            await task.exec("e1", make_process(["/bin/busybox", "true"]))
        with pytest.raises(InvalidArgument):
            await task.exec("../e", make_process(["/bin/busybox", "true"]))
        await more.start()
        assert (await more.wait()).status == 4
        assert (await more.delete()).status == 4
        assert (await task.stats()).type_url
        await task.kill(15 if room.kind == "" else 9)
        assert (await task.wait()).status == 137
        assert (await task.delete()).status == 137
        await processes_end(pid, task.shim.pid)


@pytest.mark.parametrize(
    ("fault", "words"),
    [("command", "no such file"), ("mount", "mount"), ("spec", ""), ("activation", "no room")],
)
async def test_a_creation_that_fails_leaves_nothing(room: Room, fault: str, words: str) -> None:
    mounts = MemoryActivations()
    args: Sequence[str] = ["/no/such/program"] if fault == "command" else SLEEP
    inputs = room.inputs(Mount(type="erofs", source="/image"))
    if fault == "mount":
        inputs = TaskInputs(
            rootfs=[Mount(type="erofs", source="/image"), Mount(type="bind", source="/no/such", options=["rbind"])]
        )
    if fault == "activation":
        mounts.fail["mount"] = ResourceExhausted("no room")
    async with open_manager(room.config(activations=mounts)) as manager:
        spec = room.spec("f1", args) if fault != "spec" else b'{"ociVersion":"1.0.2"}'
        with pytest.raises(ShimError) as caught:
            await manager.create(room.namespace, "f1", spec, runtime=room.runtime, prepare=lambda _: inputs)
        assert words in str(caught.value).lower()
        assert room.left() == []
        assert mounts.mounted == []
        shims = await run_program(["pgrep", "-f", str(room.layout.state)])
        assert shims.text == ""


async def test_a_cancelled_creation_leaves_nothing_at_any_moment(room: Room) -> None:
    mounts = MemoryActivations()
    inputs = room.inputs(Mount(type="erofs", source="/image"))
    async with open_manager(room.config(activations=mounts)) as manager:
        for delay in (0.01, 0.04, 0.08, 0.15):
            with trio.move_on_after(delay):
                task = await manager.create(
                    room.namespace, "c1", room.spec("c1"), runtime=room.runtime, prepare=lambda _: inputs
                )
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 20):
                    await task.delete(force=True)
            assert room.left() == []
            assert mounts.mounted == []


class Observed(MemoryActivations):
    """Notes, when mounts are undone, whether the shim was still there."""

    def __init__(self, state: str) -> None:
        super().__init__()
        self.state = state
        self.shims: list[str] = []

    async def deactivate(self, namespace: str, name: str) -> None:
        self.shims.append((await run_program(["pgrep", "-f", self.state])).text)
        await super().deactivate(namespace, name)


async def test_mounts_are_undone_only_when_the_shim_has_gone(room: Room) -> None:
    mounts = Observed(str(room.layout.state))
    inputs = room.inputs(Mount(type="erofs", source="/image"))
    async with open_manager(room.config(activations=mounts)) as manager:
        for command in (["/no/such/program"], ["/bin/busybox", "true"]):
            spec = room.spec("o1", command)
            try:
                task = await manager.create(room.namespace, "o1", spec, runtime=room.runtime, prepare=lambda _: inputs)
            except ShimError:
                continue
            await task.start()
            await task.wait()
            await task.delete()
    assert mounts.shims == ["", ""]
    assert mounts.mounted == []


async def test_row_S2_our_shim_claims_nothing_and_says_so(room: Room) -> None:
    mounts = MemoryActivations()
    inputs = room.inputs(Mount(type="erofs", source="/image"))
    async with open_manager(room.config(activations=mounts)) as manager:
        task = await manager.create(
            room.namespace, "s2", room.spec("s2"), runtime=room.runtime, prepare=lambda _: inputs
        )
        kept = json.loads(Path(task.bundle.file("bootstrap.json")).read_bytes())
        if room.kind == "ours":
            names = [entry["value"]["type_url"] for entry in kept["extensions"]]
            assert names == ["type.googleapis.com/containerd.types.MountCapabilities"]
        assert mounts.options[0].claims.types == frozenset()
        assert isinstance((await mounts.info(room.namespace, "s2")), Activation)
        await task.delete(force=True)


async def test_a_reused_activation_outlives_the_task(room: Room) -> None:
    mounts = MemoryActivations()
    await mounts.activate(
        room.namespace,
        "u1",
        [ModelMount("erofs", "/image"), ModelMount("bind", str(room.rootfs), "", ("rbind", "ro"))],
        ActivateOptions(),
    )
    inputs = room.inputs(Mount(type="erofs", source="/image"))
    async with open_manager(room.config(activations=mounts)) as manager:
        task = await manager.create(
            room.namespace, "u1", room.spec("u1"), runtime=room.runtime, prepare=lambda _: inputs
        )
        await task.start()
        await task.delete(force=True)
    assert len(mounts.mounted) == 1


async def test_members_of_a_group_share_a_shim_and_end_one_by_one(room: Room) -> None:
    async with open_manager(room.config()) as manager:
        lead = await room.running(manager, "lead")
        one = await room.running(manager, "one", group="lead")
        assert one.shim.pid == lead.shim.pid
        assert one.sandbox == ("lead" if lead.shim.version == 3 else "")
        assert (await lead.delete(force=True)).status == 137
        two = await room.running(manager, "two", group="lead")
        assert two.shim.pid == one.shim.pid
        with pytest.raises(ShimError):
            await room.create(manager, "bad", ["/no/such/program"], group="lead")
        for task in (one, two):
            assert (await task.state()).status == Status.RUNNING
        await one.delete(force=True)
        await two.delete(force=True)
        await processes_end(two.shim.pid)
        assert not socket_of(two).exists()


async def test_a_shim_that_is_killed_takes_all_of_its_group_along(room: Room) -> None:
    async with open_manager(room.config()) as manager:
        lead = await room.running(manager, "lead")
        one = await room.running(manager, "one", group="lead")
        os.kill(lead.shim.pid, 9)
        for task in (lead, one):
            with trio.fail_after(15):
                assert (await task.wait()).status == 137
            told = await room.wait_told(task.id)
            assert [kind for kind, _, _ in told] == ["TaskExit", "TaskDelete"]
        await processes_end(lead.pid, one.pid)
        assert not socket_of(lead).exists()


async def test_two_creations_of_one_id_at_once_make_one_task(room: Room) -> None:
    results: list[str] = []
    async with open_manager(room.config()) as first, open_manager(room.config()) as second:

        async def create(manager: object) -> None:
            try:
                await room.create(manager, "d1")  # type: ignore[arg-type]
                results.append("made")
            except AlreadyExists:
                results.append("taken")

        async with trio.open_nursery() as nursery:
            for manager in (first, second, first):
                nursery.start_soon(create, manager)
        assert sorted(results) == ["made", "taken", "taken"]
        await first.delete(room.namespace, "d1", force=True)


def custom_runtime(directory: Path) -> str:
    path = directory / "other-runc"
    path.write_text('#!/bin/sh\n[ "$1" = features ] && { echo \'{"ociVersionMin":"9.9.9"}\'; exit; }\nexec runc "$@"\n')
    path.chmod(0o755)
    return str(path)


async def test_the_information_is_that_of_the_runtime_that_the_options_name(room: Room) -> None:
    custom = custom_runtime(room.directory)
    options = typeurl.pack(Options(binary_name=custom))
    async with open_manager(room.config()) as manager:
        if room.kind == "go-1.6":
            with pytest.raises(ShimError, match="-info"):
                await manager.runtime_info(room.runtime)
        else:
            stock = await manager.runtime_info(room.runtime)
            other = await manager.runtime_info(room.runtime, options)
            assert json.loads(stock.features.value)["ociVersionMin"] != "9.9.9"
            assert json.loads(other.features.value)["ociVersionMin"] == "9.9.9"
            both = await manager._runtimes.info(room.runtime, options, typeurl.pack(Options(binary_name="runc")))
            assert both.features == other.features
        task = await room.running(manager, "i1", runtime_options=options)
        assert Path(task.bundle.file("runtime")).read_text() == custom
        await task.delete(force=True)


async def test_id_mapped_mounts_are_refused_where_the_features_say_so(room: Room) -> None:
    document = json.loads(room.spec("m1"))
    mapping = [{"containerID": 0, "hostID": 100_000, "size": 65_536}]
    document["mounts"].append(
        {"destination": "/tmp", "type": "bind", "source": "/tmp", "options": ["bind"], "uidMappings": mapping}
    )
    async with open_manager(room.config()) as manager:
        if room.kind == "go-1.6":
            return  # it returns no features, so nothing is held against it; the runtime is asked by the task itself
        with pytest.raises(FailedPrecondition, match=r"linux\.mountExtensions\.idmap\.enabled"):
            await manager.create(
                room.namespace,
                "m1",
                json.dumps(document).encode(),
                runtime=room.runtime,
                prepare=lambda _: room.inputs(),
            )


async def test_the_configured_environment_and_socket_directory_reach_the_shim(room: Room) -> None:
    sockets = room.directory / "sk"
    async with open_manager(room.config(env={"TRIO_TEST_MARK": "1"}, socket_dir=str(sockets))) as manager:
        task = await room.create(manager, "v1")
        if room.kind != "go-1.6":  # it does not know the parameter
            assert socket_of(task).parent == sockets
            assert sockets.stat().st_mode & 0o777 == 0o700
        await task.delete(force=True)
    assert not sockets.exists() or list(sockets.iterdir()) == []


@pytest.fixture
def small_disk(directory: Path) -> Iterator[Path]:
    """A state directory on a disk of its own.

    Every thread must see it: one that Trio kept from a test before the suite took a mount namespace does not.
    """
    mine = os.readlink("/proc/self/ns/mnt")
    deadline = time.monotonic() + 15
    while {os.readlink(f"/proc/self/task/{name}/ns/mnt") for name in os.listdir("/proc/self/task")} != {mine}:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    state = directory / "state"
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(state)], check=True)
    yield state
    subprocess.run(["umount", str(state)], check=True)


def fill(directory: Path) -> Path:
    path = directory / "io.containerd.runtime.v2.task" / "filler"
    with path.open("wb", buffering=0) as stream:
        try:
            while True:
                stream.write(b"x" * 512)
        except OSError:
            return path


async def test_on_a_full_disk_a_creation_says_so_and_what_runs_is_not_lost(small_disk: Path, room: Room) -> None:
    async with open_manager(room.config()) as manager:
        task = await room.running(manager, "k1")
        filler = fill(small_disk)
        with pytest.raises((ResourceExhausted, OSError, ShimError), match=r"(?i)no space"):
            await room.create(manager, "k2")
        assert [entry.id for entry in await manager.list_tasks(room.namespace)] == ["k1"]
        assert (await task.state()).status == Status.RUNNING
        assert (await task.delete(force=True)).status == 137
        filler.unlink()


async def test_on_a_read_only_disk_tasks_can_be_looked_at_and_nothing_is_lost(small_disk: Path, room: Room) -> None:
    async with open_manager(room.config()) as manager:
        await room.running(manager, "o1")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    try:
        async with open_manager(room.config()) as manager:
            with pytest.raises(FailedPrecondition, match=r"(?i)read-only"):
                await room.create(manager, "o2")
            with pytest.raises(FailedPrecondition, match=r"(?i)read-only"):
                await manager.delete(room.namespace, "o1", force=True)
            assert (await (await manager.attach(room.namespace, "o1")).state()).status == Status.RUNNING
            listed = await manager.list_tasks()
            assert [entry.state is not None for entry in listed] == [True]
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    async with open_manager(room.config()) as manager:
        assert (await manager.delete(room.namespace, "o1", force=True)).status == 137


def _unused(bundle: Bundle) -> TaskInputs:
    raise AssertionError(bundle)


@pytest.mark.parametrize("task_id", ["", "..", "a/b", "-x", "x" * 77, "a b", "ä"])
async def test_an_id_that_is_none_is_refused_before_anything_is_made(room: Room, task_id: str) -> None:
    async with open_manager(room.config()) as manager:
        with pytest.raises(InvalidArgument):
            await manager.create(room.namespace, task_id, b"{}", runtime=room.runtime, prepare=_unused)
