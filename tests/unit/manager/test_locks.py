"""One holder at a time, between managers and within one; the files go with what they are for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import trio

from shim.errors import DeadlineExceeded, InvalidArgument
from shim.manager.layout import Layout
from shim.manager.locks import open_task_lock, try_task_lock
from shim.model.budgets import Budget

if TYPE_CHECKING:
    from pathlib import Path

BUDGET = Budget("shim.timeout.lock", 10.0)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(str(tmp_path / "s"), str(tmp_path / "r"))
    made.prepare()
    return made


async def test_the_second_waits_for_the_first(layout: Layout, autojump_clock: trio.testing.MockClock) -> None:
    order: list[str] = []

    async def hold(name: str, seconds: float) -> None:
        async with open_task_lock(layout, "ns", "t1", BUDGET):
            order.append(f"{name} in")
            await trio.sleep(seconds)
            order.append(f"{name} out")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold, "a", 5)
        nursery.start_soon(hold, "b", 5)
    first, second = order[0][0], order[2][0]
    assert order == [f"{first} in", f"{first} out", f"{second} in", f"{second} out"]
    assert first != second
    assert os.listdir(layout.locks) == []


async def test_a_wait_has_its_budget(layout: Layout, autojump_clock: trio.testing.MockClock) -> None:
    async with open_task_lock(layout, "ns", "t1", BUDGET):
        began = trio.current_time()
        with pytest.raises(DeadlineExceeded, match=r"being changed.*within 10 s \(shim.timeout.lock\)"):
            async with open_task_lock(layout, "ns", "t1", BUDGET):
                raise AssertionError
        assert trio.current_time() - began == pytest.approx(10)
        async with open_task_lock(layout, "ns", "t2", BUDGET), open_task_lock(layout, "other", "t1", BUDGET):
            assert trio.current_time() - began == pytest.approx(10)


async def test_a_cancelled_wait_leaves_the_lock_to_its_holder(
    layout: Layout, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_task_lock(layout, "ns", "t1", BUDGET):
        with trio.move_on_after(1) as scope:
            async with open_task_lock(layout, "ns", "t1", BUDGET):
                raise AssertionError
        assert scope.cancelled_caught
        assert try_task_lock(layout, "ns", "t1") is None
    lock = try_task_lock(layout, "ns", "t1")
    assert lock is not None
    lock.release()
    lock.release()


def test_the_file_stays_with_its_bundle_and_goes_without(layout: Layout) -> None:
    os.makedirs(layout.bundle("ns", "t1"))
    lock = try_task_lock(layout, "ns", "t1")
    assert lock is not None
    lock.release()
    assert os.listdir(layout.locks) == ["ns+t1"]
    assert os.stat(layout.lock_file("ns", "t1")).st_mode & 0o777 == 0o600
    again = try_task_lock(layout, "ns", "t1")
    assert again is not None
    os.rmdir(layout.bundle("ns", "t1"))
    again.release()
    assert os.listdir(layout.locks) == []


@pytest.mark.parametrize(("namespace", "task_id"), [("../x", "t"), ("ns", ".."), ("", "t"), ("ns", "a/b")])
def test_a_name_that_is_none_is_no_lock(layout: Layout, namespace: str, task_id: str) -> None:
    with pytest.raises(InvalidArgument):
        try_task_lock(layout, namespace, task_id)
