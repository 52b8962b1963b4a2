"""In which order, with how much patience, and what is written back first."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from shim.errors import FailedPrecondition, Unknown
from shim.kernel import mountinfo, mounts
from shim.kernel.meminfo import PageCache
from shim.kernel.mountinfo import MountEntry
from shim.kernel.mounts import Unmounted
from shim.mounts import unwind
from shim.mounts.unwind import describe_slow, unmount_all, unmount_order, worth_syncing

if TYPE_CHECKING:
    from collections.abc import Callable


def entry(number: int, parent: int, point: str, *, kind: str = "ext4", device: str = "8:1") -> MountEntry:
    return MountEntry(number, parent, device, "/", point, ("rw",), (), kind, "source", ("rw",))


def test_children_come_before_parents_and_stacks_from_the_top() -> None:
    table = [
        entry(10, 1, "/r"),
        entry(11, 10, "/r/a"),
        entry(12, 11, "/r/a/b"),
        entry(13, 12, "/r/a/b"),
        entry(5, 10, "/r/z"),  # a low number given out again
    ]
    assert [one.id for one in unmount_order(table)] == [13, 12, 11, 5, 10]


def test_a_table_with_a_ring_of_parents_still_ends() -> None:
    assert len(unmount_order([entry(1, 2, "/r"), entry(2, 1, "/r")])) == 2


def test_only_a_file_system_that_ends_is_written_back() -> None:
    host, bound = entry(1, 0, "/"), entry(2, 1, "/r")
    alone, twice = entry(3, 2, "/r/disk", device="8:2"), entry(4, 2, "/r/again", device="8:2")
    memory = entry(5, 2, "/r/tmp", kind="tmpfs", device="0:9")
    table = [host, bound, alone, twice, memory]
    doomed = table[1:]
    assert not worth_syncing(bound, table, doomed)
    assert worth_syncing(alone, table, doomed)
    assert not worth_syncing(memory, table, doomed)


class Kernel:
    """A mount table, and what each unmount answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, points: list[str], answer: Callable[[str, int], int]) -> None:
        self.points = points
        self.calls: list[str] = []
        self._answer = answer
        monkeypatch.setattr(mountinfo, "read_mountinfo", self.read)
        monkeypatch.setattr(mounts, "unmount", self.unmount)

    def read(self) -> list[MountEntry]:
        return [entry(number, number - 1, point) for number, point in enumerate(self.points, 1)]

    def unmount(self, target: str, *, sync: bool = False, detach: bool = False) -> Unmounted:
        assert not detach
        error = self._answer(target, self.calls.count(target))
        self.calls.append(target)
        if error == 0:
            self.points.remove(target)
        return Unmounted(target, 0, 0, 0, error)


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock jumps only while nothing runs, and does not see threads: the work is done in place."""

    class InPlace:
        abandoned = False

        async def run(self, what: str, work: Callable[[InPlace], object]) -> object:
            await trio.lowlevel.checkpoint()
            return work(self)

    monkeypatch.setattr(unwind, "room_threads", InPlace)


async def test_nothing_mounted_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    Kernel(monkeypatch, ["/", "/other"], lambda target, count: 0)
    assert await unmount_all("/r") == []


async def test_all_are_taken_off_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch, ["/r", "/r/a", "/r/a/b", "/rest"], lambda target, count: 0)
    done = await unmount_all("/r/")
    assert [one.target for one in done] == ["/r/a/b", "/r/a", "/r"]
    assert kernel.points == ["/rest"]


async def test_a_busy_one_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    kernel = Kernel(monkeypatch, ["/r"], lambda target, count: errno.EBUSY if count < 10 else 0)
    begun = trio.current_time()
    await unmount_all("/r")
    assert trio.current_time() - begun == pytest.approx(0.5)
    assert kernel.calls == ["/r"] * 11


async def test_one_that_stays_busy_is_named_after_fifty_tries(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    kernel = Kernel(monkeypatch, ["/r", "/r/a"], lambda target, count: errno.EBUSY)
    with pytest.raises(FailedPrecondition, match="failed to unmount /r/a: device or resource busy"):
        await unmount_all("/r")
    assert kernel.calls.count("/r/a") == 50
    assert trio.current_time() == pytest.approx(49 * 0.05)


async def test_what_is_gone_already_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch, ["/r", "/r/hidden"], lambda target, count: 0)
    real = kernel.unmount

    def hidden_until_the_root_is_off(target: str, *, sync: bool = False, detach: bool = False) -> Unmounted:
        if target == "/r/hidden" and "/r" in kernel.points:
            return Unmounted(target, 0, 0, 0, errno.EINVAL)
        return real(target, sync=sync, detach=detach)

    monkeypatch.setattr(mounts, "unmount", hidden_until_the_root_is_off)
    assert [one.target for one in await unmount_all("/r")] == ["/r", "/r/hidden"]


async def test_another_refusal_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch, ["/r"], lambda target, count: errno.EPERM)
    with pytest.raises(Unknown, match="failed to unmount /r: operation not permitted"):
        await unmount_all("/r")
    assert kernel.calls == ["/r"]


def test_a_slow_unmount_is_told_with_all_that_explains_it() -> None:
    took = Unmounted("/r", 4_900_250_000, 12_000_000, 0, 0)
    assert describe_slow(took, "overlay", PageCache(2_300_000_000, 4096), PageCache(8192, 0)) == (
        "slow unmount of /r (overlay): sync 4.900 s, unmount 0.012 s; dirty 2300000000 -> 8192 bytes, "
        "writeback 4096 -> 0 bytes"
    )


@pytest.mark.parametrize(
    ("sync_ns", "unmount_ns", "lines"), [(600_000_000, 400_000_000, 0), (600_000_000, 400_000_001, 1), (0, 1 << 40, 1)]
)
async def test_only_a_slow_one_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, sync_ns: int, unmount_ns: int, lines: int
) -> None:
    kernel = Kernel(monkeypatch, ["/r", "/r/a"], lambda target, count: 0)

    def take(target: str, *, sync: bool = False, detach: bool = False) -> Unmounted:
        kernel.unmount(target)
        return Unmounted(target, sync_ns, unmount_ns, 0, 0) if target == "/r" else Unmounted(target, 0, 0, 0, 0)

    monkeypatch.setattr(mounts, "unmount", take)
    await unmount_all("/r")
    assert [record.name for record in caplog.records] == ["shim.mounts"] * lines
    assert all("slow unmount of /r (ext4)" in record.message for record in caplog.records)
