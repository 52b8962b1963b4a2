"""Peers that ask too much, or do not read: they may hurt themselves only (W2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from shim.errors import InvalidArgument
from shim.rpc.connection import HANG_UP_POLL, Limits
from shim.wire.client import Answer, ClientConnection
from shim.wire.proto.task_pb2 import StateRequest, StateResponse
from tests.fakes.echo import ECHO, ask, echo, open_server, tell

if TYPE_CHECKING:
    from shim.rpc.stream import ServerStream


class Raw:
    """A peer that writes and reads when it likes."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.wire = ClientConnection()
        self.answers: dict[int, Answer] = {}

    def request(self, text: str, method: str = "One") -> bytes:
        return self.wire.start(ECHO, ECHO.methods[method], ask(text))[1]

    async def read(self, count: int) -> None:
        """Reads until there are so many answers in all."""
        while len(self.answers) < count:
            chunk = await self.stream.receive_some(65536)
            assert chunk
            for event in self.wire.receive(bytes(chunk)):
                assert isinstance(event, Answer)
                self.answers[event.stream_id] = event


@pytest.mark.slow
async def test_w2_a_thousand_large_requests_before_any_answer_is_read() -> None:
    text = "x" * 100_000
    async with open_server({"One": echo}, real=True) as server, server.client() as other:
        raw = Raw(server.listener.connect())
        with trio.fail_after(60):
            for number in range(1000):
                await raw.stream.send_all(raw.request(text))
                if number % 100 == 0:
                    with trio.fail_after(1):
                        await other.call(ECHO, "One", ask())
            await raw.read(1000)
        assert all(answer.message == tell(text) for answer in raw.answers.values())
        await raw.stream.aclose()


async def fill(raw: Raw, requests: int, text: str = "x") -> None:
    for _ in range(requests):
        await raw.stream.send_all(raw.request(text))


async def test_past_the_requests_a_connection_is_not_read_until_one_ends() -> None:
    gate = trio.Event()
    running: list[str] = []

    async def wait(request: StateRequest) -> StateResponse:
        running.append(request.id)
        await gate.wait()
        return tell(request.id)

    async with (
        open_server({"One": wait, "Other": echo}, limits=Limits(requests=4)) as server,
        server.client() as other,
    ):
        raw = Raw(server.listener.connect())
        await fill(raw, 10)
        await trio.testing.wait_all_tasks_blocked()
        assert len(running) == 4
        with trio.fail_after(1):
            await other.call(ECHO, "Other", ask())
        gate.set()
        with trio.fail_after(5):
            await raw.read(10)


async def test_past_the_bytes_a_connection_is_not_read_until_answers_leave() -> None:
    started: list[str] = []

    async def count(request: StateRequest) -> StateResponse:
        started.append(request.id[:1])
        return await echo(request)

    async with open_server({"One": count}, real=True, limits=Limits(held_bytes=4 << 20)) as server:
        raw = Raw(server.listener.connect())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fill, raw, 100, "x" * (1 << 20))
            await trio.testing.wait_all_tasks_blocked(0.02)
            assert 0 < len(started) < 20
            (connection,) = server.server.connections
            assert connection.queued[1] <= (4 << 20) + (2 << 20)
            nursery.cancel_scope.cancel()
        await raw.stream.aclose()


@pytest.mark.slow
async def test_a_hang_up_shows_while_a_connection_is_not_read() -> None:
    ended: list[str] = []

    async def stuck(request: StateRequest) -> StateResponse:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(request.id)

    async with open_server({"One": stuck}, real=True, limits=Limits(requests=2)) as server:
        raw = Raw(server.listener.connect())
        await fill(raw, 5)
        await trio.testing.wait_all_tasks_blocked(0.01)
        await raw.stream.aclose()
        with trio.fail_after(HANG_UP_POLL * 3):
            while len(ended) < 2 or server.server.connections:
                await trio.testing.wait_all_tasks_blocked(0.01)


async def test_streams_of_all_three_kinds() -> None:
    async def upload(stream: ServerStream) -> StateResponse:
        texts = []
        try:
            while True:
                message = await stream.receive()
                assert isinstance(message, StateRequest)
                texts.append(message.id)
        except trio.EndOfChannel:
            return tell(",".join(texts))

    async def download(stream: ServerStream) -> None:
        message = await stream.receive()
        assert isinstance(message, StateRequest)
        for character in message.id:
            await stream.send(tell(character))

    async def both(stream: ServerStream) -> None:
        try:
            while True:
                message = await stream.receive()
                assert isinstance(message, StateRequest)
                await stream.send(tell(message.id.upper()))
        except trio.EndOfChannel:
            return

    async with (
        open_server({"Upload": upload, "Download": download, "Both": both}, real=True) as server,
        server.client() as client,
    ):
        with trio.fail_after(5):
            async with client.open_stream(ECHO, "Upload") as stream:
                for text in ("a", "b"):
                    await stream.send(ask(text))
                await stream.half_close()
                assert await stream.result() == tell("a,b")
            async with client.open_stream(ECHO, "Download", ask("xyz")) as stream:
                assert [await stream.receive() for _ in range(3)] == [tell(text) for text in "xyz"]
                with pytest.raises(trio.EndOfChannel):
                    await stream.receive()
                assert await stream.result() is None
            async with client.open_stream(ECHO, "Both") as stream:
                for text in ("a", "b"):
                    await stream.send(ask(text))
                    assert await stream.receive() == tell(text.upper())
                await stream.half_close()
                assert await stream.result() is None


async def test_a_stream_that_nobody_takes_fails_after_a_second(autojump_clock: trio.testing.MockClock) -> None:
    ended: list[float] = []

    async def deaf(_: ServerStream) -> StateResponse:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(trio.current_time())

    async with open_server({"Upload": deaf, "One": echo}) as server, server.client() as client:
        start = trio.current_time()
        async with client.open_stream(ECHO, "Upload") as stream:
            for _ in range(65):
                await stream.send(ask())
            with pytest.raises(InvalidArgument, match="data handling error"):
                await stream.result()
        assert ended == [pytest.approx(start + 1)]
        await client.call(ECHO, "One", ask())


async def test_a_streams_handler_waits_for_a_peer_that_does_not_read() -> None:
    sent: list[int] = []

    async def download(stream: ServerStream) -> None:
        for number in range(100):
            await stream.send(tell("x" * 100_000))
            sent.append(number)

    async with open_server({"Download": download}, real=True) as server:
        raw = Raw(server.listener.connect())
        await raw.stream.send_all(raw.request("x", "Download"))
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert 0 < len(sent) < 30
        await raw.stream.aclose()
