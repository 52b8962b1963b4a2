"""Calls through a running server, over memory streams and real sockets alike."""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING

import pytest
import trio

from shim.errors import (
    AlreadyExists,
    ConnectionClosed,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    ShimError,
    Unimplemented,
    Unknown,
)
from shim.rpc import context
from shim.rpc.server import Service
from shim.wire.frames import MAX_LENGTH
from shim.wire.proto.task_pb2 import ConnectResponse, StateRequest, StateResponse
from tests.fakes.echo import ECHO, ask, echo, open_server, tell

if TYPE_CHECKING:
    from shim.rpc.connection import RunningCall

REAL = pytest.mark.parametrize("real", [False, True], ids=["memory", "socket"])


@REAL
async def test_calls_run_at_once_and_answer_in_any_order(real: bool) -> None:
    gates = {text: trio.Event() for text in "abc"}
    order: list[str] = []

    async def wait(request: StateRequest) -> StateResponse:
        await gates[request.id].wait()
        return tell(request.id)

    async with open_server({"One": wait}, real=real) as server, server.client() as client:

        async def ask_for(text: str) -> None:
            answer = await client.call(ECHO, "One", ask(text), StateResponse)
            order.append(answer.id)
            following = chr(ord(text) - 1)
            if following in gates:
                gates[following].set()

        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                for text in "abc":
                    nursery.start_soon(ask_for, text)
                await trio.testing.wait_all_tasks_blocked()
                gates["c"].set()
    assert order == ["c", "b", "a"]


ENDS: list[tuple[Exception, type[ShimError], str]] = [
    (NotFound("no task"), NotFound, "no task"),
    (Unknown("runc's own words"), Unknown, "runc's own words"),
    (DeadlineExceeded(), DeadlineExceeded, ""),
    (trio.TooSlowError(), DeadlineExceeded, ""),
    (ValueError("a bug"), Internal, "ValueError: a bug"),
    (ExceptionGroup("", [ExceptionGroup("", [AlreadyExists("a")]), NotFound("b")]), AlreadyExists, "a"),
    (ExceptionGroup("", [NotFound("b"), KeyError("c")]), Internal, "KeyError: 'c'"),
]


@pytest.mark.parametrize(("raised", "error", "text"), ENDS, ids=[repr(row[0])[:30] for row in ENDS])
async def test_what_a_handler_raises_is_the_answer(
    raised: Exception, error: type[ShimError], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_: StateRequest) -> StateResponse:
        raise raised

    async with open_server({"One": fail, "Other": echo}) as server, server.client() as client:
        with pytest.raises(error) as caught:
            await client.call(ECHO, "One", ask())
        assert type(caught.value) is error
        assert caught.value.message == text
        assert (await client.call(ECHO, "Other", ask("fine"), StateResponse)).id == "fine"
    logged = [record for record in caplog.records if record.exc_info]
    assert len(logged) == (error is Internal)


async def test_a_handler_must_give_its_message(caplog: pytest.LogCaptureFixture) -> None:
    async def nothing(_: StateRequest) -> None:
        """No answer, no error."""

    async def another(_: StateRequest) -> ConnectResponse:
        return ConnectResponse()

    caplog.set_level(logging.CRITICAL)
    async with open_server({"One": nothing, "Other": another}) as server, server.client() as client:
        with pytest.raises(Unknown):
            await client.call(ECHO, "One", ask())
        with pytest.raises(Internal):
            await client.call(ECHO, "Other", ask())


async def test_a_method_without_handler_is_not_implemented() -> None:
    async with open_server({}) as server, server.client() as client:
        with pytest.raises(Unimplemented) as caught:
            await client.call(ECHO, "One", ask())
        assert caught.value.message == "method One"


def test_a_handler_without_method_is_a_bug() -> None:
    with pytest.raises(InvalidArgument):
        Service(ECHO, {"Nothing": echo})
    with pytest.raises(InvalidArgument):
        Service(ECHO, {}, {"Upload": lambda _: tell()})


async def test_an_answer_at_hand_needs_no_task() -> None:
    seen: list[tuple[str, str, int]] = []

    def at_hand(request: StateRequest) -> StateResponse:
        if request.id == "wait":
            raise trio.WouldBlock
        if request.id == "fail":
            raise NotFound(context.namespace.get())
        return tell("at hand")

    def observe(call: RunningCall, _: float, code: int) -> None:
        seen.append((call.method, call.namespace, code))

    async with (
        open_server({"One": echo}, nowait={"One": at_hand}, observe=observe) as server,
        server.client() as client,
    ):
        assert (await client.call(ECHO, "One", ask("a"), StateResponse)).id == "at hand"
        assert (await client.call(ECHO, "One", ask("wait"), StateResponse)).id == "wait"
        with pytest.raises(NotFound, match="ns"):
            await client.call(ECHO, "One", ask("fail"), namespace="ns")
    assert seen == [("One", "", 0), ("One", "", 0), ("One", "ns", 5)]


async def test_w1_too_long_an_answer_fails_that_call_only() -> None:
    async def long(_: StateRequest) -> StateResponse:
        return tell("x" * MAX_LENGTH)

    async with open_server({"One": long, "Other": echo}, real=True) as server, server.client() as client:
        with pytest.raises(ResourceExhausted):
            await client.call(ECHO, "One", ask())
        with pytest.raises(ResourceExhausted):
            await client.call(ECHO, "Other", ask("x" * MAX_LENGTH))
        text = "x" * (MAX_LENGTH - 200)
        assert (await client.call(ECHO, "Other", ask(text), StateResponse)).id == text


async def test_each_call_has_its_own_context() -> None:
    seen: list[tuple[str, list[str]]] = []

    async def look(request: StateRequest) -> StateResponse:
        seen.append((context.namespace.get(), list(context.metadata.get().get("trace", []))))
        return await echo(request)

    async with open_server({"One": look}) as server, server.client() as client:
        await client.call(ECHO, "One", ask(), namespace="k8s.io", metadata={"Trace": ["1", "2"]})
        await client.call(ECHO, "One", ask())
    assert seen == [("k8s.io", ["1", "2"]), ("", [])]


async def test_w8_the_callers_deadline_ends_the_handler(autojump_clock: trio.testing.MockClock) -> None:
    freed: list[float] = []
    left: list[float] = []

    async def stuck(_: StateRequest) -> StateResponse:
        left.append(trio.current_effective_deadline() - trio.current_time())
        try:
            await trio.sleep_forever()
        finally:
            freed.append(trio.current_time())

    async with open_server({"One": stuck}) as server, server.client() as client:
        start = trio.current_time()
        with pytest.raises(DeadlineExceeded):
            await client.call(ECHO, "One", ask(), timeout=1)
        with trio.move_on_after(2):
            await client.call(ECHO, "One", ask())
        await trio.testing.wait_all_tasks_blocked()
        assert [round(time - start, 2) for time in freed] == [1, 3]
        assert [round(time, 2) for time in left] == [1, 2]
        assert not [call for connection in server.server.connections for call in connection.calls]


async def test_a_deadline_is_answered_by_the_server(autojump_clock: trio.testing.MockClock) -> None:
    ends: list[tuple[str, float, int]] = []

    def observe(call: RunningCall, seconds: float, code: int) -> None:
        ends.append((call.method, round(seconds, 2), code))

    async def stuck(_: StateRequest) -> StateResponse:
        await trio.sleep(30)
        return tell()

    async def shielded(_: StateRequest) -> StateResponse:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
            await trio.sleep(2)
        return tell("done all the same")

    async with (
        open_server({"One": stuck, "Other": shielded}, observe=observe) as server,
        server.client() as client,
    ):
        # The client itself does not stop waiting: only what it sends has a deadline.
        stream_id, frame = client.wire.start(ECHO, ECHO.methods["One"], ask(), 10**9)
        await client.post(frame)
        stream_id, frame = client.wire.start(ECHO, ECHO.methods["Other"], ask(), 10**9)
        await client.post(frame)
        await trio.sleep(5)
        assert stream_id == 3
    assert ends == [("One", 1.0, 4), ("Other", 2.0, 0)]


@REAL
async def test_a_peer_that_hangs_up_cancels_its_calls_and_no_others(real: bool) -> None:
    ended: list[str] = []
    gate = trio.Event()

    async def wait(request: StateRequest) -> StateResponse:
        try:
            await gate.wait()
        finally:
            ended.append(request.id)
        return tell(request.id)

    async with open_server({"One": wait}, real=real) as server, server.client() as other:
        async with trio.open_nursery() as nursery:
            answers: list[str] = []

            async def ask_other() -> None:
                answers.append((await other.call(ECHO, "One", ask("other"), StateResponse)).id)

            async def ask_leaving() -> None:
                async with server.client() as leaving:
                    with trio.move_on_after(60) as scope:
                        scopes.append(scope)
                        await leaving.call(ECHO, "One", ask("leaving"))

            scopes: list[trio.CancelScope] = []
            nursery.start_soon(ask_other)
            nursery.start_soon(ask_leaving)
            await trio.testing.wait_all_tasks_blocked()
            scopes[0].cancel()
            with trio.fail_after(5):
                while not ended:
                    await trio.testing.wait_all_tasks_blocked(0.01)
            assert ended == ["leaving"]
            assert len(server.server.connections) == 1
            gate.set()
        assert answers == ["other"]


async def test_accept_is_tried_again_with_growing_pauses(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_server({"One": echo}) as server:
        server.listener.refuse = [OSError(errno.EMFILE, "full")] * 12
        async with server.client() as client:
            await client.call(ECHO, "One", ask())
        assert server.listener.refuse == []
    waits = [record.args[1] for record in caplog.records if isinstance(record.args, tuple)]
    assert waits == [min(0.001 * 2**n, 1.0) for n in range(12)]


async def test_another_refusal_of_accept_ends_the_server() -> None:
    with pytest.RaisesGroup(pytest.RaisesGroup(OSError)):
        async with open_server({}) as server:
            server.listener.refuse = [OSError(errno.EBADF, "bad")]
            await trio.sleep_forever()


async def test_a_call_on_a_lost_connection_says_so() -> None:
    async with open_server({"One": echo}) as server, server.client() as client:
        await client.call(ECHO, "One", ask())
        for connection in server.server.connections:
            connection.stop(0)
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(1):
            await client.closed.wait()
        with pytest.raises(ConnectionClosed, match="ttrpc: closed"):
            await client.call(ECHO, "One", ask())


async def test_what_a_clients_block_raises_comes_out_as_it_is() -> None:
    async with open_server({}) as server:
        with pytest.raises(FailedPrecondition):
            async with server.client():
                raise FailedPrecondition("of the caller's own")
