"""Work that outlives its caller, and for how long."""

from __future__ import annotations

import pytest
import trio

from shim.errors import Internal
from shim.manager.jobs import run_detached


async def test_who_waits_gets_the_result_or_the_error(autojump_clock: trio.testing.MockClock) -> None:
    async def succeed() -> int:
        await trio.sleep(100)
        return 7

    async def fail() -> int:
        await trio.sleep(100)
        raise Internal("no")

    async with trio.open_nursery() as nursery:
        assert await run_detached(nursery, succeed, "work", 5) == 7
        with pytest.raises(Internal, match="no"):
            await run_detached(nursery, fail, "work", 5)


@pytest.mark.parametrize(("needs", "done"), [(4.0, True), (6.0, False)])
async def test_a_caller_that_went_away_leaves_it_its_grace(
    needs: float, done: bool, autojump_clock: trio.testing.MockClock
) -> None:
    ended: list[float] = []

    async def work() -> None:
        await trio.sleep(1 + needs)
        ended.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        began = trio.current_time()
        with trio.move_on_after(1) as scope:
            await run_detached(nursery, work, "work", 5)
        assert scope.cancelled_caught
        assert trio.current_time() - began == pytest.approx(1)
    assert bool(ended) == done
    assert trio.current_time() - began == pytest.approx(1 + min(needs, 5))


@pytest.mark.parametrize(("needs", "done"), [(4.0, True), (6.0, False)])
async def test_a_manager_that_closes_waits_for_it_that_long(
    needs: float, done: bool, autojump_clock: trio.testing.MockClock
) -> None:
    ended: list[float] = []

    async def work() -> None:
        await trio.sleep(needs)
        ended.append(trio.current_time())

    with trio.CancelScope() as closing:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_detached, nursery, work, "work", 5.0)
            await trio.testing.wait_all_tasks_blocked()
            closing.cancel()
    assert bool(ended) == done
