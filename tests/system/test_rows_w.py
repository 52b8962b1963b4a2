"""Fault rows W: the ttrpc wire, with frames that no well-behaved client sends."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import pytest
import trio

from shim import errors
from shim.wire.proto import task_pb2, ttrpc_pb2
from tests.system.harness.processes import open_files, wait_ended
from tests.system.harness.raw import DATA, MAX_BODY, open_raw, request_body
from tests.system.harness.task import RUNNING

if TYPE_CHECKING:
    from tests.system.harness.driver import Driver
    from tests.system.harness.task import Shim

INVALID: Final = errors.InvalidArgument.code
NOT_FOUND: Final = errors.NotFound.code


def _state(shim: Shim, identifier: str, exec_id: str = "") -> bytes:
    return request_body(shim.service, "State", task_pb2.StateRequest(id=identifier, exec_id=exec_id))


def _state_of_size(shim: Shim, size: int) -> bytes:
    """A State request of an unknown id whose body has exactly that many bytes."""
    identifier = "x" * (size - len(_state(shim, "")) - 16)
    body = _state(shim, identifier)
    body = _state(shim, identifier + "x" * (size - len(body)))
    assert len(body) == size
    return body


async def test_W1_largest_frame_is_served_and_a_larger_one_refused(driver: Driver) -> None:
    task = await driver.run(["true"])
    async with open_raw(task.shim.answer.address) as raw:
        await raw.send(1, _state_of_size(task.shim, MAX_BODY))
        answer = await raw.receive()
        assert (answer.stream, answer.code) == (1, NOT_FOUND)
        await raw.send(3, _state_of_size(task.shim, MAX_BODY + 1))
        answer = await raw.receive()
        assert (answer.stream, answer.code) == (3, errors.ResourceExhausted.code)
        await raw.send(5, _state(task.shim, task.id))
        answer = await raw.receive()
        assert (answer.stream, answer.code) == (5, 0)


@pytest.mark.slow
@pytest.mark.better_than_peer("the 1.6 Go shim stops reading while an answer waits", only="go-1.6")
async def test_W2_a_thousand_large_requests_before_the_first_answer_is_read(driver: Driver) -> None:
    # The unknown exec's id comes back in the error, so the answers are as large as the requests.
    task = await driver.run(["true"])
    name = "x" * (100 << 10)
    slowest = 0.0

    async def ask_meanwhile(scope: trio.CancelScope) -> None:
        nonlocal slowest
        with scope:
            while True:
                began = trio.current_time()
                await task.state()
                slowest = max(slowest, trio.current_time() - began)

    scope = trio.CancelScope()
    async with trio.open_nursery() as nursery, open_raw(task.shim.answer.address) as raw:
        nursery.start_soon(ask_meanwhile, scope)
        with trio.fail_after(60):
            for number in range(1000):
                await raw.send(2 * number + 1, _state(task.shim, task.id, name))
            answered = {(answer := await raw.receive(timeout=60)).stream: answer.code for _ in range(1000)}
        scope.cancel()
    assert answered == {2 * number + 1: NOT_FOUND for number in range(1000)}
    assert 0 < slowest < 2


@pytest.mark.better_than_peer("the 1.6 Go shim does not check stream ids", only="go-1.6")
async def test_W5_what_cannot_be_read_is_answered_and_the_connection_lives(driver: Driver) -> None:
    task = await driver.run(["true"])
    shim = task.shim
    good = _state(shim, task.id)
    junk = b"\xff" * 40
    async with open_raw(shim.answer.address) as raw:

        async def code_of(stream: int, body: bytes, kind: int = 1) -> int:
            await raw.send(stream, body, kind=kind)
            answer = await raw.receive()
            assert answer.stream == stream
            return answer.code

        assert await code_of(2, good) == INVALID, "even id"
        assert await code_of(5, good) == 0
        assert await code_of(5, good) == INVALID, "reused id"
        assert await code_of(3, good) == INVALID, "id below the last one"
        assert await code_of(99, b"", DATA) == INVALID, "data on a stream that is not open"
        assert await code_of(7, junk) == INVALID, "a body that does not parse"
        payload = ttrpc_pb2.Request(service=shim.service.name, method="State", payload=junk).SerializeToString()
        assert await code_of(9, payload) == errors.Internal.code, "a payload that does not parse"
        unknown = ttrpc_pb2.Request(service="no.such.Service", method="State").SerializeToString()
        assert await code_of(11, unknown) == errors.Unimplemented.code
        unknown = ttrpc_pb2.Request(service=shim.service.name, method="NoSuch").SerializeToString()
        assert await code_of(13, unknown) == errors.Unimplemented.code
        await raw.send(15, b"whatever", kind=42)
        assert await code_of(17, good) == 0, "after a frame of an unknown type, which is ignored"


async def test_W6_open_calls_and_idle_clients_do_not_hold_the_end(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    shim = task.shim
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        for _ in range(3):
            await stack.enter_async_context(open_raw(shim.answer.address))
        waiting = await stack.enter_async_context(open_raw(shim.answer.address))
        await waiting.send(1, request_body(shim.service, "Wait", task_pb2.WaitRequest(id=task.id)))
        nursery.start_soon(task.wait)
        await task.kill(9)
        await task.wait()
        await task.delete()
        await shim.shutdown(timeout=3)


@pytest.mark.better_than_peer("the Go shim may close the connection before its answer to Shutdown is out")
async def test_W6_shutdown_is_answered(driver: Driver) -> None:
    task = await driver.run(["true"])
    await task.delete()
    await task.shim.send("Shutdown", task_pb2.ShutdownRequest(id=task.id))
    await wait_ended(task.shim.pid, timeout=3)


@pytest.mark.slow
@pytest.mark.better_than_peer("the 1.6 Go shim waits past the deadline", only="go-1.6")
async def test_W8_deadline_of_a_request_is_kept_by_the_shim(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    body = request_body(task.shim.service, "Wait", task_pb2.WaitRequest(id=task.id), timeout=1)
    files = len(open_files(task.shim.pid))
    async with open_raw(task.shim.answer.address) as raw:
        began = time.monotonic()
        await raw.send(1, body)
        answer = await raw.receive(timeout=5)
        took = time.monotonic() - began
    assert answer.code == errors.DeadlineExceeded.code
    assert "deadline exceeded" in answer.response.status.message
    assert 0.9 < took < 1.2
    assert (await task.state()).status == RUNNING
    with trio.fail_after(5):  # the shim learns of the hang-up when it next looks
        while len(open_files(task.shim.pid)) > files:
            await task.state()
