"""OOM kills of real containers (row V1): one call for each round, before the exit, and none for anything else."""

from __future__ import annotations

import os
import signal
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
import trio
import trio.testing

from shim.kernel.cgroup_events import UNIFIED_FILES, FileChanges, FilePriority
from shim.kernel.cgroups import find_hierarchies
from shim.kernel.mountinfo import read_mountinfo
from shim.task.oom import OomWatch
from shim.wire.proto import events_pb2
from tests.system.harness.boxes import Boxes, open_boxes, open_watches

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.system.harness.boxes import Box
    from tests.system.harness.driver import Driver
    from tests.system.harness.places import Places

LIMIT = 32 << 20
HOG = ["dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=1"]
# Fills its memory itself: where kills are disabled only a program's own access makes it stand still, and a system call
# that needs memory (such as that read of dd) fails instead.
GREEDY = ["awk", 'BEGIN { s = sprintf("%1000000d", 1); while (1) a[i++] = s i }']
SCRIPT = " ".join(HOG) + " 2>/dev/null"


@pytest.fixture
async def boxes(places: Places, directory: Path, rootfs: Path) -> AsyncIterator[Boxes]:
    async with open_boxes(places, directory, rootfs) as opened:
        yield opened


@attrs.define(eq=False)
class Watched:
    """A watch on a box, its calls counted."""

    watch: OomWatch = attrs.field(init=False)
    calls: int = 0
    _more: trio.Event = attrs.field(factory=trio.Event)

    def told(self) -> None:
        self.calls += 1
        self._more.set()
        self._more = trio.Event()

    async def reach(self, calls: int) -> None:
        with trio.fail_after(20):
            while self.calls < calls:
                await self._more.wait()

    def end(self) -> None:
        """As whoever sees init's exit does before telling it."""
        self.watch.check_now()
        self.watch.close()


@asynccontextmanager
async def watching(*boxes: Box) -> AsyncIterator[list[Watched]]:
    """A watch for each; no descriptor is left of them."""
    before = open_watches()
    async with trio.open_nursery() as nursery:
        made = []
        for box in boxes:
            watched = Watched()
            watched.watch = OomWatch(box.cgroup, watched.told)
            watched.watch.start(nursery)
            made.append(watched)
        await trio.testing.wait_all_tasks_blocked()
        assert open_watches() > before
        yield made
        for watched in made:
            watched.watch.close()
    assert open_watches() == before


async def test_V1_kill_of_init(boxes: Boxes) -> None:
    box = await boxes.create(HOG, memory_limit=LIMIT)
    async with watching(box) as [watched]:
        await box.start()
        ended = await box.wait()
        watched.end()
        assert ended.status == 128 + signal.SIGKILL
        assert watched.calls == 1
        assert watched.watch.oom_killed


async def test_each_round_is_told_once(boxes: Boxes) -> None:
    reading, writing = os.pipe2(os.O_CLOEXEC)
    script = f"while read line; do {SCRIPT}; done; exit 5"
    box = await boxes.create(["sh", "-c", script], memory_limit=LIMIT, stdio={0: reading})
    os.close(reading)
    async with watching(box) as [watched]:
        await box.start()
        for round_ in range(1, 6):
            os.write(writing, b"\n")
            await watched.reach(round_)
        os.close(writing)
        ended = await box.wait()
        watched.end()
        assert ended.status == 5
        assert watched.calls == 5


async def test_plain_end_and_removal_tell_nothing(boxes: Boxes) -> None:
    box = await boxes.create(["sh", "-c", "exit 3"], memory_limit=LIMIT)
    before = open_watches()
    calls: list[int] = []
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            watch = OomWatch(box.cgroup, lambda: calls.append(1))
            watch.start(nursery)
            await box.start()
            await box.wait()
            await box.delete()
            if box.cgroup.unified:
                await trio.testing.wait_all_tasks_blocked()
                watch.close()
            # else the kernel wakes the watch, which ends by itself
    assert calls == []
    assert not watch.oom_killed
    assert not watch.check_now()
    assert open_watches() == before


async def test_kill_by_a_signal_is_no_oom_kill(boxes: Boxes) -> None:
    box = await boxes.create(["sleep", "1000"])  # no limit: the watch is made all the same
    async with watching(box) as [watched]:
        await box.start()
        box.child.send_signal(signal.SIGKILL)
        await box.wait()
        watched.end()
        assert (watched.calls, watched.watch.oom_killed) == (0, False)


@contextmanager
def limited_parent(places: Places, name: str) -> Iterator[None]:
    """A memory cgroup of the test's with a limit, for the containers below it."""
    mounts = {hierarchy.controllers: hierarchy.mount_point for hierarchy in find_hierarchies(read_mountinfo())}
    legacy = ("memory",) in mounts
    parent = Path(mounts[("memory",) if legacy else ()]) / places.cgroup_prefix
    parent.mkdir(exist_ok=True)
    if not legacy:
        (parent / "cgroup.subtree_control").write_text("+memory")
    directory = parent / name
    directory.mkdir()
    try:
        (directory / ("memory.limit_in_bytes" if legacy else "memory.max")).write_text(str(LIMIT))
        yield
    finally:
        for hierarchy in find_hierarchies(read_mountinfo()):
            made = Path(hierarchy.mount_point) / places.cgroup_prefix / name
            if made.is_dir():
                made.rmdir()


async def test_limit_of_the_pod_is_told_for_the_victim_only(places: Places, directory: Path, rootfs: Path) -> None:
    with limited_parent(places, "pod"):
        async with open_boxes(places, directory, rootfs) as boxes:
            victim = await boxes.create(["sh", "-c", f"{SCRIPT}; exec sleep 1000"], parent="pod")
            bystander = await boxes.create(["sleep", "1000"], parent="pod")
            async with watching(victim, bystander) as [hit, missed]:
                await bystander.start()
                await victim.start()
                await hit.reach(1)
                for box, watched in ((victim, hit), (bystander, missed)):
                    box.child.send_signal(signal.SIGKILL)
                    await box.wait()
                    watched.end()
                assert (hit.calls, missed.calls) == (1, 0)
                assert (hit.watch.oom_killed, missed.watch.oom_killed) == (True, False)


async def test_kills_disabled_is_told_as_a_standstill(boxes: Boxes) -> None:
    box = await boxes.create(GREEDY, memory_limit=LIMIT)
    control = box.memory("memory.oom_control")
    if box.cgroup.unified:
        assert not control.exists(), "v2 cannot disable kills"
        return
    control.write_text("1")
    async with watching(box) as [watched]:
        await box.start()
        await watched.reach(1)
        assert not watched.watch.oom_killed
        box.child.send_signal(signal.SIGKILL)
        await box.wait()
        watched.end()
        assert (watched.calls, watched.watch.oom_killed) == (1, False)


async def test_V1_event_exit_status_and_record(driver: Driver) -> None:
    task = await driver.run(HOG, memory_limit=LIMIT)
    await task.start()
    answer = await task.wait()
    assert answer.exit_status == 137
    await driver.sink.wait_for_topic(task.id, "/tasks/exit")
    topics = [recorded.topic for recorded in driver.sink.of(task.id)]
    assert topics.count("/tasks/oom") == 1
    oom = next(recorded.event for recorded in driver.sink.of(task.id) if recorded.topic == "/tasks/oom")
    assert isinstance(oom, events_pb2.TaskOOM)
    assert oom.container_id == task.id
    await task.delete()


@pytest.mark.better_than_peer("the Go shims publish it beside the queue, and keep no such record")
async def test_V1_event_precedes_the_exit_and_the_record_has_it(driver: Driver) -> None:
    task = await driver.run(HOG, memory_limit=LIMIT)
    await task.start()
    await task.wait()
    await driver.sink.wait_for_topic(task.id, "/tasks/exit")
    topics = [recorded.topic for recorded in driver.sink.of(task.id)]
    assert topics == ["/tasks/create", "/tasks/start", "/tasks/oom", "/tasks/exit"]
    assert True in task.bundle.read_json("exit.json").values()
    await task.delete()


@pytest.fixture
def unified_cgroup(places: Places) -> Iterator[str]:
    """A v2 cgroup of the test's: the kernel's own files, though perhaps without a memory controller."""
    (mount,) = [h.mount_point for h in find_hierarchies(read_mountinfo()) if not h.controllers]
    directory = Path(mount) / places.cgroup_prefix / "unified"
    directory.mkdir(parents=True)
    yield str(directory)
    if directory.is_dir():
        directory.rmdir()


@pytest.mark.parametrize("source_type", [FileChanges, FilePriority])
async def test_v2_sources_on_the_kernels_own_files(
    unified_cgroup: str, source_type: type[FileChanges | FilePriority]
) -> None:
    directory = Path(unified_cgroup)
    # Where another hierarchy has the memory controller there is no memory.events; the other file is of the same kind.
    names = [name for name in UNIFIED_FILES if (directory / name).exists()]
    before = open_watches()
    source = source_type(unified_cgroup, names)
    with trio.move_on_after(0):
        await source.wait()
        pytest.fail("woken by nothing")
    for frozen in ("1", "0", "1", "0"):
        (directory / "cgroup.freeze").write_text(frozen)
        with trio.fail_after(5):
            await source.wait()
    source.close()
    assert open_watches() == before
