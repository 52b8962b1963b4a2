"""Jobs that outlive their callers, on a clock that jumps."""

from __future__ import annotations

import contextvars
import logging
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from shim.errors import Canceled, Internal, NotFound
from shim.task.jobs import Jobs

if TYPE_CHECKING:
    from trio.testing import MockClock

who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


async def test_a_caller_past_its_deadline_leaves_the_job_running(autojump_clock: MockClock) -> None:
    ended: list[float] = []

    async def work() -> None:
        await trio.sleep(10)
        ended.append(trio.current_effective_deadline())

    async with trio.open_nursery() as nursery:
        jobs = Jobs(nursery)
        with trio.move_on_after(1) as scope:
            await jobs.run("work", work)
        assert scope.cancelled_caught
        assert [job.name for job in jobs.running] == ["work"]
        await jobs.wait_idle()
    assert ended == [float("inf")], "a job has none of its caller's deadline"


async def test_a_job_keeps_its_callers_context(autojump_clock: MockClock) -> None:
    async def work() -> str:
        await trio.sleep(1)
        return who.get()

    async with trio.open_nursery() as nursery:
        jobs = Jobs(nursery)
        who.set("somebody")
        job = jobs.start("work", work)
        who.set("else")
        assert await job.wait() == "somebody"


async def test_run_or_cancel_takes_the_job_down_and_it_undoes_what_it_began(autojump_clock: MockClock) -> None:
    undone: list[float] = []

    async def work() -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            with trio.move_on_after(30, shield=True):
                await trio.sleep(3)
                undone.append(trio.current_time())
            raise

    async with trio.open_nursery() as nursery:
        jobs = Jobs(nursery)
        began = trio.current_time()
        with trio.move_on_after(1):
            await jobs.run_or_cancel("work", work)
        assert trio.current_time() - began == pytest.approx(1), "the caller does not wait for the undoing"
        await jobs.wait_idle()
    assert undone[0] - began == pytest.approx(4)


async def test_a_cancelled_job_tells_whoever_waits(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        jobs = Jobs(nursery)
        job = jobs.start("work", trio.sleep_forever)
        await wait_all_tasks_blocked()
        job.scope.cancel()
        with pytest.raises(Canceled, match="work was given up"):
            await job.wait()


async def test_an_answer_goes_to_every_waiter(autojump_clock: MockClock) -> None:
    async def fail() -> None:
        await trio.sleep(1)
        raise NotFound("no such thing")

    async with trio.open_nursery() as nursery:
        jobs = Jobs(nursery)
        job = jobs.start("work", fail)
        for _ in range(2):
            with pytest.raises(NotFound, match="no such thing"):
                await job.wait()


async def test_a_bug_is_internal_logged_and_kept_from_the_nursery(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def bug() -> None:
        await trio.sleep(1)
        raise ZeroDivisionError

    async with trio.open_nursery() as nursery:
        jobs = Jobs(nursery)
        with caplog.at_level(logging.ERROR), pytest.raises(Internal, match="work failed"):
            await jobs.run("work", bug)
        assert not nursery.cancel_scope.cancel_called
    assert "ZeroDivisionError" in caplog.text


async def test_the_end_of_the_nursery_ends_the_jobs_and_their_waiters(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as outer:
        async with trio.open_nursery() as nursery:
            jobs = Jobs(nursery)
            job = jobs.start("work", trio.sleep_forever)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        with pytest.raises(Canceled):
            await job.wait()
        assert not jobs.running
        assert not outer.cancel_scope.cancel_called


async def test_wait_idle_returns_at_once_when_nothing_runs(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        await Jobs(nursery).wait_idle()
