"""The OOM watch: counts are believed, wakes are not; v2 on a made-up tree with inotify, v1 with a source by hand."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from shim.kernel.cgroup_files import CgroupPlaces
from shim.task import oom
from shim.task.oom import LATE_COUNT_SECONDS, OomWatch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EVENTS = "low 0\nhigh 0\nmax 7\noom {kills}\noom_kill {kills}\noom_group_kill 0\n"


class Calls:
    """What `on_oom` was called for, and a way to wait for it."""

    def __init__(self) -> None:
        self.count = 0
        self._more = trio.Event()

    def __call__(self) -> None:
        self.count += 1
        self._more.set()
        self._more = trio.Event()

    async def reach(self, count: int) -> None:
        with trio.fail_after(5):
            while self.count < count:
                await self._more.wait()


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture(autouse=True)
def _no_descriptor_left() -> Iterator[None]:
    before = sorted(os.listdir("/proc/self/fd"))
    yield
    assert sorted(os.listdir("/proc/self/fd")) == before


# v2


@pytest.fixture
def unified(tmp_path: Path) -> Path:
    directory = tmp_path / "box"
    directory.mkdir()
    (directory / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    write_kills(directory, 0)
    return directory


def write_kills(directory: Path, kills: int) -> None:
    (directory / "memory.events").write_text(EVENTS.format(kills=kills))


def unified_places(directory: Path) -> CgroupPlaces:
    return CgroupPlaces({"": str(directory), "systemd": str(directory)})


async def test_each_growth_is_told_once(unified: Path, calls: Calls, nursery: trio.Nursery) -> None:
    watch = OomWatch(unified_places(unified), calls)
    watch.start(nursery)
    await wait_all_tasks_blocked()
    assert not watch.oom_killed
    write_kills(unified, 1)
    await calls.reach(1)
    (unified / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    write_kills(unified, 1)
    await wait_all_tasks_blocked()
    write_kills(unified, 4)
    await calls.reach(2)
    watch.close()
    assert calls.count == 2
    assert watch.oom_killed


async def test_what_was_counted_before_is_not_told(unified: Path, calls: Calls, nursery: trio.Nursery) -> None:
    write_kills(unified, 3)
    watch = OomWatch(unified_places(unified), calls)
    watch.start(nursery)
    await wait_all_tasks_blocked()
    assert (watch.check_now(), calls.count) == (False, 0)
    write_kills(unified, 4)
    await calls.reach(1)
    watch.close()


async def test_growth_before_the_task_ran_is_told(unified: Path, calls: Calls, nursery: trio.Nursery) -> None:
    watch = OomWatch(unified_places(unified), calls)
    watch.start(nursery)
    write_kills(unified, 1)
    await calls.reach(1)
    watch.close()
    assert calls.count == 1


async def test_check_now_tells_what_the_task_has_not_seen(unified: Path, calls: Calls, nursery: trio.Nursery) -> None:
    watch = OomWatch(unified_places(unified), calls)
    watch.start(nursery)
    await wait_all_tasks_blocked()
    write_kills(unified, 1)
    assert watch.check_now()
    assert not watch.check_now()
    await wait_all_tasks_blocked()
    watch.close()
    write_kills(unified, 2)
    assert not watch.check_now()
    assert calls.count == 1


async def test_removal_is_not_told(unified: Path, calls: Calls, nursery: trio.Nursery) -> None:
    watch = OomWatch(unified_places(unified), calls)
    watch.start(nursery)
    await wait_all_tasks_blocked()
    (unified / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    for path in unified.iterdir():
        path.unlink()
    unified.rmdir()
    await wait_all_tasks_blocked()
    assert not watch.check_now()
    watch.close()
    assert calls.count == 0


async def test_a_file_cut_short_is_no_news(unified: Path, calls: Calls, nursery: trio.Nursery) -> None:
    write_kills(unified, 2)
    watch = OomWatch(unified_places(unified), calls)
    watch.start(nursery)
    await wait_all_tasks_blocked()
    (unified / "memory.events").write_text("low 0\nhi")
    await wait_all_tasks_blocked()
    write_kills(unified, 2)
    await wait_all_tasks_blocked()
    assert not watch.check_now()
    watch.close()
    assert calls.count == 0


@pytest.mark.parametrize(
    "places",
    [
        None,
        CgroupPlaces({}),
        CgroupPlaces({"pids": "/nowhere"}),
        CgroupPlaces({"memory": "/proc"}),  # any mount point: a root, whose counts are everybody's
        CgroupPlaces({"": "/proc"}),
    ],
)
async def test_without_a_cgroup_of_its_own_nothing_runs(places: CgroupPlaces | None, calls: Calls) -> None:
    watch = OomWatch(places, calls)
    async with trio.open_nursery() as inner:
        watch.start(inner)
        assert not inner.child_tasks
    assert not watch.check_now()
    watch.close()


async def test_refused_watch_still_counts_in_the_end(unified: Path, calls: Calls) -> None:
    (unified / "cgroup.events").unlink()
    watch = OomWatch(unified_places(unified), calls)
    async with trio.open_nursery() as inner:
        watch.start(inner)
    write_kills(unified, 1)
    assert watch.check_now()
    assert watch.oom_killed


async def test_cancelled_and_closed_early(unified: Path, calls: Calls) -> None:
    closed, cancelled = (OomWatch(unified_places(unified), calls) for _ in range(2))
    async with trio.open_nursery() as inner:
        closed.start(inner)
        closed.close()
        closed.close()
        cancelled.start(inner)
        inner.cancel_scope.cancel()
    assert calls.count == 0


# v1


class Hand:
    """A source that wakes when the test says so."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[None](math.inf)
        self.closed = False

    def wake(self) -> None:
        self._send.send_nowait(None)

    async def wait(self) -> None:
        await self._receive.receive()

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> Hand:
    made = Hand()
    monkeypatch.setattr(oom, "open_oom_source", lambda _directory, *, unified: made)
    return made


@pytest.fixture
def legacy(tmp_path: Path) -> Path:
    directory = tmp_path / "box"
    directory.mkdir()
    write_control(directory)
    return directory


def write_control(directory: Path, *, kills: int = 0, disabled: int = 0, under: int = 0) -> None:
    text = f"oom_kill_disable {disabled}\nunder_oom {under}\noom_kill {kills}\n"
    (directory / "memory.oom_control").write_text(text)


async def test_count_that_comes_after_the_wake(
    legacy: Path, calls: Calls, hand: Hand, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    watch = OomWatch(CgroupPlaces({"memory": str(legacy)}), calls)
    watch.start(nursery)
    hand.wake()
    await trio.sleep(LATE_COUNT_SECONDS[0] * 1.5)
    assert calls.count == 0
    write_control(legacy, kills=1)
    await calls.reach(1)
    watch.close()
    await wait_all_tasks_blocked()
    assert hand.closed
    assert watch.oom_killed


async def test_wake_for_somebody_elses_kill(
    legacy: Path, calls: Calls, hand: Hand, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    watch = OomWatch(CgroupPlaces({"memory": str(legacy)}), calls)
    watch.start(nursery)
    hand.wake()
    await trio.sleep(2 * sum(LATE_COUNT_SECONDS))
    assert calls.count == 0
    write_control(legacy, kills=1)
    hand.wake()
    await calls.reach(1)
    watch.close()


async def test_kills_disabled_tells_the_standstill_but_no_kill(
    legacy: Path, calls: Calls, hand: Hand, nursery: trio.Nursery
) -> None:
    watch = OomWatch(CgroupPlaces({"memory": str(legacy)}), calls)
    watch.start(nursery)
    write_control(legacy, disabled=1, under=1)
    hand.wake()
    await calls.reach(1)
    assert not watch.oom_killed
    assert not watch.check_now()
    watch.close()


async def test_kill_in_a_cgroup_that_the_container_made(
    legacy: Path, calls: Calls, hand: Hand, nursery: trio.Nursery
) -> None:
    watch = OomWatch(CgroupPlaces({"memory": str(legacy)}), calls)
    watch.start(nursery)
    (legacy / "inner").mkdir()
    write_control(legacy / "inner", kills=1)
    hand.wake()
    await calls.reach(1)
    (legacy / "inner" / "memory.oom_control").unlink()
    (legacy / "inner").rmdir()
    assert not watch.check_now()
    watch.close()
    assert calls.count == 1


@pytest.mark.usefixtures("autojump_clock")
async def test_removal_wakes_and_is_not_told(legacy: Path, calls: Calls, hand: Hand) -> None:
    watch = OomWatch(CgroupPlaces({"memory": str(legacy)}), calls)
    async with trio.open_nursery() as inner:
        watch.start(inner)
        await wait_all_tasks_blocked()
        (legacy / "memory.oom_control").unlink()
        legacy.rmdir()
        hand.wake()
    assert calls.count == 0
    assert hand.closed
