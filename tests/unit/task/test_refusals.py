"""Every verb in every state through the service, against what the lifecycle tables say (protocol.md 3.3, 3.5, 3.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from shim.errors import ShimError, wire_text
from shim.model import lifecycle
from shim.model.lifecycle import Refusal, State, Verb
from shim.wire.proto import task_pb2 as task
from tests.fakes.world import end

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trio.testing import MockClock

    from tests.unit.task.conftest import OpenSubject, Subject

INIT_STATES = [state for state in State if state is not State.DELETED]
EXEC_STATES = [State.CREATED, State.RUNNING, State.STOPPED]


async def bring_init_to(subject: Subject, state: State) -> None:
    """Only through the service, as a client would."""
    request = subject.create_request()
    if state is State.CREATED_CHECKPOINT:
        request.checkpoint = "/image"
    await subject.service.create(request)
    if state in {State.CREATED, State.CREATED_CHECKPOINT}:
        return
    await subject.start()
    if state is State.PAUSED:
        await subject.service.pause(task.PauseRequest(id="c"))
    if state is State.STOPPED:
        await subject.stop()


async def bring_exec_to(subject: Subject, state: State) -> None:
    """An exec `e` of a running task."""
    await bring_init_to(subject, State.RUNNING)
    await subject.exec()
    if state is State.CREATED:
        return
    await subject.service.start(task.StartRequest(id="c", exec_id="e"))
    if state is State.STOPPED:
        end(subject.world.execs[0], 0)
        await subject.service.wait(task.WaitRequest(id="c", exec_id="e"))


def calls(subject: Subject, exec_id: str) -> dict[Verb, Callable[[], Awaitable[object]]]:
    """The request that stands for each verb; EXIT is none."""
    service = subject.service
    resources = task.UpdateTaskRequest(id="c")
    resources.resources.value = b"{}"
    both: dict[Verb, Callable[[], Awaitable[object]]] = {
        Verb.START: lambda: service.start(task.StartRequest(id="c", exec_id=exec_id)),
        Verb.DELETE: lambda: service.delete(task.DeleteRequest(id="c", exec_id=exec_id)),
        Verb.KILL: lambda: service.kill(task.KillRequest(id="c", exec_id=exec_id, signal=9)),
        Verb.RESIZE: lambda: service.resize_pty(task.ResizePtyRequest(id="c", exec_id=exec_id, width=80, height=25)),
    }
    if exec_id:
        return both
    return both | {
        Verb.PAUSE: lambda: service.pause(task.PauseRequest(id="c")),
        Verb.RESUME: lambda: service.resume(task.ResumeRequest(id="c")),
        Verb.UPDATE: lambda: service.update(resources),
        Verb.CHECKPOINT: lambda: service.checkpoint(task.CheckpointTaskRequest(id="c", path="/image")),
        Verb.EXEC: lambda: subject.exec("further"),
    }


async def outcome(call: Callable[[], Awaitable[object]]) -> tuple[int, str]:
    """The status of the answer, as it would cross the wire."""
    try:
        await call()
    except ShimError as error:
        return error.code, wire_text(error)
    return 0, ""


def expected(table: lifecycle.Table, state: State, verb: Verb) -> tuple[int, str]:
    entry = table[state][verb]
    if isinstance(entry, Refusal):
        error = entry.as_error()
        return error.code, wire_text(error)
    return 0, ""


@pytest.mark.parametrize("verb", [verb for verb in Verb if verb is not Verb.EXIT])
@pytest.mark.parametrize("state", INIT_STATES)
async def test_init(state: State, verb: Verb, open_subject: OpenSubject, autojump_clock: MockClock) -> None:
    async with open_subject() as subject:
        await bring_init_to(subject, state)
        assert subject.service.containers["c"].init.state is state
        answer = expected(lifecycle.INIT, state, verb)
        if (state, verb) == (State.CREATED_CHECKPOINT, Verb.KILL):
            answer = (5, "process already finished: not found")  # allowed by the table, but there is no process yet
        assert await outcome(calls(subject, "")[verb]) == answer


@pytest.mark.parametrize("verb", [Verb.START, Verb.DELETE, Verb.KILL, Verb.RESIZE])
@pytest.mark.parametrize("state", EXEC_STATES)
async def test_exec(state: State, verb: Verb, open_subject: OpenSubject, autojump_clock: MockClock) -> None:
    async with open_subject() as subject:
        await bring_exec_to(subject, state)
        process = subject.service.containers["c"].execs["e"]
        assert process.state is state
        if (state, verb) == (State.RUNNING, Verb.KILL):
            return  # a real process is needed to be signalled: tests/system has it
        assert await outcome(calls(subject, "e")[verb]) == expected(lifecycle.EXEC, state, verb)


@pytest.mark.parametrize("exec_id", ["", "e"])
async def test_an_unknown_task_is_not_found(exec_id: str, open_subject: OpenSubject, autojump_clock: MockClock) -> None:
    async with open_subject() as subject:
        for call in calls(subject, exec_id).values():
            assert await outcome(call) == (5, "container not created: not found")


async def test_an_unknown_exec_is_not_found(open_subject: OpenSubject, autojump_clock: MockClock) -> None:
    async with open_subject() as subject:
        await bring_init_to(subject, State.RUNNING)
        for call in calls(subject, "who").values():
            assert await outcome(call) == (5, "process does not exist who: not found")


async def test_a_taken_exec_id_already_exists_and_is_free_after_delete(
    open_subject: OpenSubject, autojump_clock: MockClock
) -> None:
    async with open_subject() as subject:
        await bring_exec_to(subject, State.CREATED)
        assert await outcome(subject.exec) == (6, "id e: already exists")
        await subject.service.delete(task.DeleteRequest(id="c", exec_id="e"))
        assert await outcome(subject.exec) == (0, "")


async def test_an_exec_cannot_start_once_init_has_been_reaped(
    open_subject: OpenSubject, autojump_clock: MockClock
) -> None:
    async with open_subject() as subject:
        await bring_exec_to(subject, State.CREATED)
        end(subject.world.containers["c"], 0)
        start = calls(subject, "e")[Verb.START]
        assert await outcome(start) == (9, "container c init process is not running: failed precondition")


async def test_init_exits_after_its_execs(open_subject: OpenSubject, autojump_clock: MockClock) -> None:
    async with open_subject() as subject:
        await bring_exec_to(subject, State.RUNNING)
        end(subject.world.containers["c"], 3)
        await trio.sleep(100)
        assert subject.service.containers["c"].init.state is State.STOPPED
        exits = [event.id for event in subject.events.events if hasattr(event, "exit_status") and hasattr(event, "id")]
        assert exits == ["e", "c"]


@pytest.mark.parametrize("signum", [65, 99999])
async def test_signals_that_do_not_exist(signum: int, open_subject: OpenSubject, autojump_clock: MockClock) -> None:
    async with open_subject() as subject:
        await bring_init_to(subject, State.RUNNING)
        code, _ = await outcome(lambda: subject.service.kill(task.KillRequest(id="c", signal=signum)))
        assert code == 3


async def test_signal_0_asks_and_sends_nothing(open_subject: OpenSubject, autojump_clock: MockClock) -> None:
    async with open_subject() as subject:
        await bring_init_to(subject, State.RUNNING)
        assert await outcome(lambda: subject.service.kill(task.KillRequest(id="c", signal=0))) == (0, "")
        assert "kill" not in subject.world.began
