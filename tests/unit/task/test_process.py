"""The guard of a process: each consequence of design section 5 by itself, on a clock that jumps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from shim.errors import FailedPrecondition, NotFound
from shim.model import lifecycle
from shim.model.exits import ExitRecord
from shim.model.lifecycle import State, Verb
from shim.task.process import Process, StdioPaths

if TYPE_CHECKING:
    from trio.testing import MockClock


class Subject:
    """A process and what it published."""

    def __init__(self, state: State, table: lifecycle.Table = lifecycle.INIT) -> None:
        self.published: list[tuple[int, State]] = []
        self.process = Process("p", StdioPaths(), table, self._exited)
        self.process.state = state
        self.release = trio.Event()
        self.failure: Exception | None = None

    def _exited(self, process: Process, record: ExitRecord) -> None:
        assert not process.exited.is_set(), "nobody may know of an exit before it is published"
        self.published.append((record.status, process.state))

    async def delete(self) -> str:
        """A deletion whose slow work lasts until `release`, and then fails if there is a `failure`."""
        try:
            async with self.process.deletion():
                await self.release.wait()
                if self.failure is not None:
                    raise self.failure
        except NotFound:
            return "not found"
        except FailedPrecondition:
            return "refused"
        return "deleted"


def state_of(subject: Subject) -> State:
    """The state now; a function, so that the type checker does not take an earlier look for this one."""
    return subject.process.state


def record(status: int = 0) -> ExitRecord:
    return ExitRecord(pid=7, status=status, exited_at_ns=1)


async def test_a_reader_sees_the_state_from_before_until_the_deletion_ends(autojump_clock: MockClock) -> None:
    subject = Subject(State.STOPPED)
    seen: list[State] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(subject.delete)
        for _ in range(50):
            await trio.sleep(1)
            await subject.process.settled()
            seen.append(subject.process.state)
        assert subject.process.is_being_deleted
        subject.release.set()
    assert set(seen) == {State.STOPPED}
    assert state_of(subject) is State.DELETED
    assert trio.current_time() - 50 < 1


@pytest.mark.parametrize("fails", [False, True])
async def test_a_mutator_waits_and_meets_deleted_or_the_old_state(fails: bool, autojump_clock: MockClock) -> None:
    subject = Subject(State.STOPPED)
    subject.failure = OSError("busy") if fails else None
    met: list[State] = []

    async def mutate() -> None:
        async with subject.process.changing():
            met.append(subject.process.state)

    async def delete() -> None:
        try:
            await subject.delete()
        except OSError:
            assert fails

    async with trio.open_nursery() as nursery:
        nursery.start_soon(delete)
        await wait_all_tasks_blocked()
        nursery.start_soon(mutate)
        await wait_all_tasks_blocked()
        assert met == []
        subject.release.set()
    assert met == [State.STOPPED if fails else State.DELETED]


async def test_a_second_delete_waits_and_gets_not_found(autojump_clock: MockClock) -> None:
    subject = Subject(State.STOPPED)
    answers: list[str] = []

    async def delete() -> None:
        answers.append(await subject.delete())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(delete)
        await wait_all_tasks_blocked()
        nursery.start_soon(delete)
        await wait_all_tasks_blocked()
        assert answers == []
        subject.release.set()
    assert answers == ["deleted", "not found"]


async def test_a_second_delete_of_a_created_task_waits_and_gets_not_found(autojump_clock: MockClock) -> None:
    subject = Subject(State.CREATED)
    answers: list[str] = []

    async def delete() -> None:
        answers.append(await subject.delete())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(delete)
        await wait_all_tasks_blocked()
        nursery.start_soon(delete)
        await wait_all_tasks_blocked()
        subject.release.set()
    assert answers == ["deleted", "not found"]


async def test_a_running_task_cannot_be_deleted(autojump_clock: MockClock) -> None:
    subject = Subject(State.RUNNING)
    with pytest.raises(FailedPrecondition, match="cannot delete a running process"):
        async with subject.process.deletion():
            pytest.fail("the slow work must not begin")
    assert not subject.process.is_being_deleted


async def test_an_exit_during_a_deletion_is_applied_before_the_state_changes(autojump_clock: MockClock) -> None:
    subject = Subject(State.CREATED)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(subject.delete)
        await wait_all_tasks_blocked()
        subject.process.exit_seen(record(137))
        await wait_all_tasks_blocked()
        assert subject.published == []
        assert state_of(subject) is State.CREATED
        assert not subject.process.exited.is_set()
        subject.release.set()
    assert subject.published == [(137, State.STOPPED)]
    assert state_of(subject) is State.DELETED
    assert subject.process.exit == record(137)


async def test_an_exit_during_a_deletion_that_fails_leaves_the_task_stopped(autojump_clock: MockClock) -> None:
    subject = Subject(State.CREATED)
    subject.failure = OSError("busy")

    async def delete() -> None:
        with pytest.raises(OSError, match="busy"):
            await subject.delete()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(delete)
        await wait_all_tasks_blocked()
        subject.process.exit_seen(record(137))
        subject.release.set()
    assert state_of(subject) is State.STOPPED
    assert subject.published == [(137, State.STOPPED)]
    subject.failure = None
    assert await subject.delete() == "deleted"


@pytest.mark.parametrize("failure", [OSError("busy"), RuntimeError("a bug")], ids=["failure", "crash"])
async def test_failure_and_crash_release_the_waiters_and_change_nothing(
    failure: Exception, autojump_clock: MockClock
) -> None:
    subject = Subject(State.STOPPED)
    subject.failure = failure
    answers: list[str] = []

    async def first() -> None:
        with pytest.raises(type(failure)):
            await subject.delete()
        subject.failure = None

    async def second() -> None:
        answers.append(await subject.delete())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(first)
        await wait_all_tasks_blocked()
        nursery.start_soon(second)
        await wait_all_tasks_blocked()
        subject.release.set()
    assert answers == ["deleted"]


async def test_a_cancelled_deletion_changes_nothing_and_can_be_repeated(autojump_clock: MockClock) -> None:
    subject = Subject(State.STOPPED)
    with trio.move_on_after(5):
        await subject.delete()
    assert state_of(subject) is State.STOPPED
    assert not subject.process.is_being_deleted
    subject.release.set()
    assert await subject.delete() == "deleted"


async def test_a_start_in_flight_makes_readers_wait_and_answer_running(autojump_clock: MockClock) -> None:
    subject = Subject(State.CREATED)
    seen: list[State] = []
    release = trio.Event()

    async def start() -> None:
        async with subject.process.starting():
            await release.wait()

    async def read() -> None:
        await subject.process.settled()
        seen.append(subject.process.state)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(start)
        await wait_all_tasks_blocked()
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        assert seen == []
        release.set()
    assert seen == [State.RUNNING]


async def test_a_failed_start_leaves_the_state_and_lets_readers_go(autojump_clock: MockClock) -> None:
    subject = Subject(State.CREATED)
    with pytest.raises(OSError, match="no"):
        async with subject.process.starting():
            raise OSError("no")
    await subject.process.settled()
    assert state_of(subject) is State.CREATED


async def test_a_start_while_starting_waits_and_is_refused(autojump_clock: MockClock) -> None:
    subject = Subject(State.CREATED)
    release = trio.Event()
    answers: list[str] = []

    async def start() -> None:
        try:
            async with subject.process.starting():
                await release.wait()
        except FailedPrecondition as error:
            answers.append(str(error))
        else:
            answers.append("started")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(start)
        await wait_all_tasks_blocked()
        nursery.start_soon(start)
        await wait_all_tasks_blocked()
        assert answers == []
        release.set()
    assert answers == ["started", "cannot start a running process"]


async def test_an_exit_has_the_last_word_over_a_transition(autojump_clock: MockClock) -> None:
    subject = Subject(State.RUNNING)
    async with subject.process.transition(Verb.PAUSE):
        subject.process.exit_seen(record(9))
    assert state_of(subject) is State.STOPPED


async def test_an_exit_is_reported_once(autojump_clock: MockClock) -> None:
    subject = Subject(State.RUNNING)
    subject.process.exit_seen(record(1))
    subject.process.exit_seen(record(2))
    assert subject.published == [(1, State.STOPPED)]
    assert subject.process.exit == record(1)


async def test_waiters_released_by_a_failed_start_do_not_end_later_waits(autojump_clock: MockClock) -> None:
    subject = Subject(State.CREATED, lifecycle.EXEC)
    subject.process.release_waiters()
    async with subject.process.starting():
        pass
    assert not subject.process.exited.is_set()


async def test_a_deletion_lets_go_who_waits_for_a_process_that_never_ran(autojump_clock: MockClock) -> None:
    subject = Subject(State.CREATED, lifecycle.EXEC)
    subject.release.set()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(subject.process.exited.wait)
        await wait_all_tasks_blocked()
        assert await subject.delete() == "deleted"
    assert subject.process.exit is None
    assert subject.published == []


async def test_a_deletion_that_fails_lets_nobody_go(autojump_clock: MockClock) -> None:
    subject = Subject(State.CREATED, lifecycle.EXEC)
    subject.release.set()
    subject.failure = FailedPrecondition("not now")
    assert await subject.delete() == "refused"
    assert not subject.process.exited.is_set()
