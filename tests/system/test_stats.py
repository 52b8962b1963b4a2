"""Stats of real containers: before start, running, stopped, deleted (row M7), and the same figures as the kernel's."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shim import errors
from shim.kernel.cgroup_files import CgroupPlaces
from shim.task.stats import read_stats
from shim.wire.proto import metrics_v1_pb2 as v1
from shim.wire.proto import metrics_v2_pb2 as v2
from shim.wire.proto import task_pb2
from shim.wire.typeurl import unpack
from tests.system.harness.boxes import open_boxes

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from tests.system.harness.driver import Driver
    from tests.system.harness.places import Places
    from tests.system.harness.task import Task

LIMIT = 64 << 20


async def ask(task: Task) -> v1.Metrics | v2.Metrics:
    """The shim's answer."""
    answer = await task.shim.call("Stats", task_pb2.StatsRequest(id=task.id), task_pb2.StatsResponse)
    if answer.stats.type_url == "io.containerd.cgroups.v2.Metrics":
        return unpack(answer.stats, v2.Metrics)
    return unpack(answer.stats, v1.Metrics)


def leaves(message: Message, path: str = "") -> dict[str, float | str]:
    """Every value that is set, by its path."""
    found: dict[str, float | str] = {}
    for field, value in message.ListFields():
        items = value if field.is_repeated else [value]
        for index, item in enumerate(items):
            here = f"{path}{field.name}[{index}]"
            found |= leaves(item, f"{here}.") if field.message_type is not None else {here: item}
    return found


def between(value: float | str, first: float | str, last: float | str) -> bool:
    """Figures of a stopped process change in one direction only: the kernel counts late, and frees late."""
    if isinstance(value, str) or isinstance(first, str) or isinstance(last, str):
        return value in (first, last)
    return min(first, last) <= value <= max(first, last)


async def test_M7_stats_in_each_state(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"], memory_limit=LIMIT)
    created = await ask(task)
    await task.start()
    running = await ask(task)
    await task.kill(signal.SIGKILL)
    await task.wait()
    stopped = await ask(task)
    await task.delete()
    with pytest.raises(errors.NotFound):
        await ask(task)
    assert created.pids.current > 0
    assert running.pids.current > 0
    assert stopped.pids.current == 0
    for message in (created, running, stopped):
        if isinstance(message, v1.Metrics):
            assert message.memory.usage.limit == LIMIT
            assert message.cpu.usage.total > 0
        else:
            assert message.memory.usage_limit == LIMIT
            assert message.cpu.usage_usec > 0


async def test_the_shims_answer_is_what_we_read_of_its_cgroup(driver: Driver) -> None:
    # Against the Go shims this compares our reading with theirs, field by field.
    script = "dd if=/bin/busybox of=/dev/null iflag=direct 2>/dev/null; exec sleep 1000"
    task = await driver.run(["sh", "-c", script], memory_limit=LIMIT)
    await task.start()
    await task.kill(signal.SIGSTOP)
    places = CgroupPlaces.of(task.pid)
    kind = type(await ask(task))
    first = leaves(unpack(read_stats(places), kind))
    answered = leaves(await ask(task))
    last = leaves(unpack(read_stats(places), kind))
    assert first.keys() | last.keys() >= answered.keys() >= first.keys() & last.keys()
    odd = {
        path: (first.get(path, 0), value, last.get(path, 0))
        for path, value in answered.items()
        if not between(value, first.get(path, 0), last.get(path, 0))
    }
    assert odd == {}


@pytest.mark.better_than_peer("the Go shims answer with no figures at all")
async def test_M7_a_cgroup_that_went_before_the_task(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    places = CgroupPlaces.of(task.pid)
    await task.kill(signal.SIGKILL)
    await task.wait()
    for directory in set(places.directories.values()):
        assert "/shim-test-" in directory, "only what the test made is touched"
        os.rmdir(directory)
    with pytest.raises(errors.NotFound, match="cgroup does not exist"):
        await ask(task)
    await task.delete()


async def test_figures_are_the_files(places: Places, directory: Path, rootfs: Path) -> None:
    async with open_boxes(places, directory, rootfs) as boxes:
        box = await boxes.create(["sleep", "1000"], memory_limit=LIMIT)
        await box.start()
        packed = read_stats(box.cgroup)
        if packed.type_url == "io.containerd.cgroups.v2.Metrics":
            unified = unpack(packed, v2.Metrics)
            assert unified.memory.usage_limit == int(box.memory("memory.max").read_text())
            assert unified.pids.current > 0
            return
        message = unpack(packed, v1.Metrics)
        memory = message.memory
        assert memory.usage.limit == memory.hierarchical_memory_limit == LIMIT
        assert 0 < memory.usage.usage <= memory.usage.max < LIMIT
        assert 0 < memory.total_rss <= memory.usage.max
        usage = message.cpu.usage
        per_cpu = Path(box.cgroup.directories["cpuacct"], "cpuacct.usage_percpu").read_text()
        assert len(usage.per_cpu) == len(per_cpu.split())
        assert sum(usage.per_cpu) == pytest.approx(usage.total, rel=0.2)
        assert message.pids.current > 0
        assert message.memory_oom_control == v1.MemoryOomControl()
