"""A caller that goes away at every await of every verb: what must not be half done is not (design section 4, rule 1).

The fake world takes one second a step; the caller's patience is swept over the whole length of the verb in half
seconds, so that each await is met once in its middle and once at its edge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from shim.errors import NotFound
from shim.model.lifecycle import State
from shim.wire.proto import task_pb2 as task

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trio.testing import MockClock

    from tests.unit.task.conftest import OpenSubject, Subject


async def given_up(subject: Subject, verb: Callable[[], Awaitable[object]], patience: float) -> bool:
    """Call `verb`, leave after `patience` seconds, wait until all is quiet; whether it had ended by then."""
    with trio.move_on_after(patience) as scope:
        await verb()
    await subject.settle()
    return not scope.cancelled_caught


def patiences(longest: float) -> list[float]:
    return [half / 2 for half in range(int(longest * 2) + 2)]


@pytest.mark.parametrize("patience", patiences(5))
async def test_create_is_whole_or_rolled_back(
    patience: float, open_subject: OpenSubject, autojump_clock: MockClock
) -> None:
    async with open_subject() as subject:
        ended = await given_up(subject, subject.create, patience)
        if ended or "c" in subject.service.containers:  # given up in the very moment in which it was done
            assert subject.service.containers["c"].init.state is State.CREATED
            assert len(subject.world.mounts) == 2
            return
        assert subject.world.leftovers() == {}
        assert subject.service.containers == {}
        assert subject.events.topics == []
        await subject.create()
        assert subject.events.topics == ["/tasks/create"], "the id is free again"


@pytest.mark.parametrize("patience", patiences(2))
async def test_start_runs_to_its_end(patience: float, open_subject: OpenSubject, autojump_clock: MockClock) -> None:
    async with open_subject() as subject:
        await subject.create()
        await given_up(subject, subject.start, patience)
        assert subject.service.containers["c"].init.state is State.RUNNING
        assert subject.events.topics == ["/tasks/create", "/tasks/start"]


@pytest.mark.parametrize("patience", patiences(3))
async def test_the_start_of_an_exec_runs_to_its_end(
    patience: float, open_subject: OpenSubject, autojump_clock: MockClock
) -> None:
    async with open_subject() as subject:
        await subject.create()
        await subject.start()
        await subject.exec()
        start = lambda: subject.service.start(task.StartRequest(id="c", exec_id="e"))  # noqa: E731 - one line is enough
        await given_up(subject, start, patience)
        assert subject.service.containers["c"].execs["e"].state is State.RUNNING
        assert subject.events.topics[-1] == "/tasks/exec-started"
        assert not list(subject.bundle.glob("*.json.*"))
        assert not (subject.bundle / ".e.process.json").exists()


@pytest.mark.parametrize("patience", patiences(2))
async def test_kill_runs_to_its_end(patience: float, open_subject: OpenSubject, autojump_clock: MockClock) -> None:
    async with open_subject() as subject:
        await subject.create()
        await subject.start()
        await given_up(subject, subject.kill, patience)
        answer = await subject.service.wait(task.WaitRequest(id="c"))
        assert answer.exit_status == 137
        assert subject.events.topics.count("/tasks/exit") == 1


@pytest.mark.parametrize("patience", patiences(4))
async def test_delete_runs_to_its_end(patience: float, open_subject: OpenSubject, autojump_clock: MockClock) -> None:
    async with open_subject() as subject:
        await subject.create()
        await subject.start()
        await subject.stop()
        await given_up(subject, subject.delete, patience)
        assert subject.world.leftovers() == {}
        assert subject.service.containers == {}
        assert subject.events.topics[-2:] == ["/tasks/exit", "/tasks/delete"]
        with pytest.raises(NotFound, match="container not created"):
            await subject.delete()


@pytest.mark.parametrize("step", ["mount", "create", "create: pid file"])
async def test_create_that_fails_at_a_step_leaves_nothing(
    step: str, open_subject: OpenSubject, autojump_clock: MockClock
) -> None:
    async with open_subject() as subject:
        subject.world.fail[step] = NotFound(f"{step} failed")
        with pytest.raises(NotFound, match=f"{step} failed"):
            await subject.create()
        assert subject.world.leftovers() == {}
        subject.world.fail.clear()
        await subject.create()
        assert subject.service.containers["c"].init.state is State.CREATED


async def test_a_second_create_while_the_first_is_rolled_back_is_refused(
    open_subject: OpenSubject, autojump_clock: MockClock
) -> None:
    async with open_subject() as subject:
        with trio.move_on_after(3.5):
            await subject.create()
        with pytest.raises(Exception, match="task c"):
            await subject.create()
        await subject.settle()
        await subject.create()


@pytest.mark.parametrize("step", ["delete", "delete: state", "unmount"])
async def test_delete_that_fails_at_a_step_can_be_repeated(
    step: str, open_subject: OpenSubject, autojump_clock: MockClock
) -> None:
    async with open_subject() as subject:
        await subject.create()
        await subject.start()
        await subject.stop()
        subject.world.fail[step] = NotFound(f"{step} failed")
        with pytest.raises(NotFound, match=f"{step} failed"):
            await subject.delete()
        state = await subject.service.state(task.StateRequest(id="c"))
        assert state.status == 3
        assert "/tasks/delete" not in subject.events.topics
        subject.world.fail.clear()
        answer = await subject.delete()
        assert answer.exit_status == 137
        assert subject.world.leftovers() == {}
        assert subject.events.topics.count("/tasks/delete") == 1


async def test_delete_of_a_created_task_answers_137_and_exit_precedes_delete(
    open_subject: OpenSubject, autojump_clock: MockClock
) -> None:
    async with open_subject() as subject:
        await subject.create()
        answer = await subject.delete()
        assert answer.exit_status == 137
        assert answer.pid == 5_000_001
        assert subject.events.topics == ["/tasks/create", "/tasks/exit", "/tasks/delete"]


async def test_state_answers_at_once_while_a_delete_is_stuck(
    open_subject: OpenSubject, autojump_clock: MockClock
) -> None:
    async with open_subject() as subject:
        await subject.create()
        await subject.start()
        await subject.stop()
        gate = subject.world.hang["unmount"] = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(subject.delete)
            await trio.sleep(100)
            before = trio.current_time()
            state = await subject.service.state(task.StateRequest(id="c"))
            assert (state.status, state.exit_status) == (3, 137)
            assert trio.current_time() == before
            gate.set()


async def test_a_kill_that_hangs_in_the_runtime_holds_up_neither_state_nor_wait(
    open_subject: OpenSubject, autojump_clock: MockClock
) -> None:
    async with open_subject() as subject:
        await subject.create()
        await subject.start()
        gate = subject.world.hang["kill"] = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(subject.kill)
            await trio.sleep(20)
            before = trio.current_time()
            assert (await subject.service.state(task.StateRequest(id="c"))).status == 2
            assert trio.current_time() == before
            gate.set()
