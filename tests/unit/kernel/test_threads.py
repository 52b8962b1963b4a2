"""A thread that hangs costs its own job only, and what it makes too late is undone."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from shim.errors import ResourceExhausted
from shim.kernel import threads as module
from shim.kernel.threads import Job, Threads

if TYPE_CHECKING:
    from collections.abc import Callable


class Stuck:
    """Work that hangs until it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()
        self.ended = threading.Event()
        self.undone: list[str] = []
        self.abandoned: list[bool] = []

    def __call__(self, job: Job[str]) -> str:
        self.begun.set()
        assert self.go.wait(20)
        self.abandoned.append(job.abandoned)
        return "made"


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(20):
        while not condition():
            await trio.lowlevel.checkpoint()


async def test_a_result_is_returned_and_not_undone() -> None:
    stuck = Stuck()
    stuck.go.set()
    assert await Threads("room", 1).run("work", stuck, undo=stuck.undone.append, at_end=stuck.ended.set) == "made"
    assert stuck.undone == []
    assert stuck.ended.is_set()


async def test_a_failure_is_raised_and_nothing_undone() -> None:
    def work(job: Job[str]) -> str:
        raise OSError(5, "no")

    ended: list[str] = []
    with pytest.raises(OSError, match="no"):
        await Threads("room", 1).run("work", work, at_end=lambda: ended.append("x"))
    assert ended == ["x"]


async def test_what_comes_too_late_is_undone_by_its_thread() -> None:
    threads = Threads("room", 1)
    stuck = Stuck()
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            await threads.run("mount /x", stuck, undo=stuck.undone.append, at_end=stuck.ended.set)

        nursery.start_soon(wait)
        await until(stuck.begun.is_set)
        nursery.cancel_scope.cancel()
    assert [one.what for one in threads.stuck()] == ["mount /x"]
    assert not stuck.ended.is_set()
    # Its place is free although the thread still hangs.
    with trio.fail_after(10):
        assert await threads.run("other", lambda job: "other") == "other"
    stuck.go.set()
    await until(stuck.ended.is_set)
    await until(lambda: not threads.stuck())
    assert stuck.undone == ["made"]
    assert stuck.abandoned == [True]


async def test_help_for_the_thread_is_called_on_abandon() -> None:
    threads = Threads("room", 1)
    stuck = Stuck()
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            await threads.run("open", stuck, on_abandon=lambda job: stuck.go.set(), at_end=stuck.ended.set)

        nursery.start_soon(wait)
        await until(stuck.begun.is_set)
        nursery.cancel_scope.cancel()
    await until(stuck.ended.is_set)


async def test_work_whose_turn_never_came_is_not_begun() -> None:
    threads = Threads("room", 1)
    first, second = Stuck(), Stuck()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(threads.run, "first", first)
        await until(first.begun.is_set)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as inner:

                async def wait() -> None:
                    await threads.run("second", second, at_end=second.ended.set)

                inner.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        assert second.ended.is_set()
        assert not second.begun.is_set()
        first.go.set()


async def test_a_result_that_came_together_with_the_cancellation_is_undone() -> None:
    threads = Threads("room", 1)
    stuck = Stuck()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                await threads.run("work", stuck, undo=stuck.undone.append, at_end=stuck.ended.set)

            nursery.start_soon(wait)
            await until(stuck.begun.is_set)
            # The loop does not turn from here on: the result waits for it when the cancellation comes.
            stuck.go.set()
            assert stuck.ended.wait(20)
            scope.cancel()
    assert stuck.undone == ["made"]
    assert threads.stuck() == ()


async def test_a_failing_undo_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    threads = Threads("room", 1)
    stuck = Stuck()

    def undo(made: str) -> None:
        raise RuntimeError(made)

    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            await threads.run("work", stuck, undo=undo)

        nursery.start_soon(wait)
        await until(stuck.begun.is_set)
        nursery.cancel_scope.cancel()
    stuck.go.set()
    await until(lambda: not threads.stuck())
    assert "undo of abandoned work failed: work" in caplog.text


async def test_too_many_hanging_threads_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STUCK_LIMIT", 1)
    threads = Threads("room", 4)
    stuck = Stuck()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(threads.run, "hang", stuck)
        await until(stuck.begun.is_set)
        nursery.cancel_scope.cancel()
    with pytest.raises(ResourceExhausted, match="1 threads of room"):
        await threads.run("more", lambda job: None)
    stuck.go.set()
    await until(lambda: not threads.stuck())
