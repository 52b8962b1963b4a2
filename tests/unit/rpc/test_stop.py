"""The graceful stop: what was answered still arrives, and nothing holds it up for long (W6)."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from shim.errors import ConnectionClosed
from shim.wire.client import ClientConnection
from shim.wire.proto.task_pb2 import StateRequest, StateResponse
from tests.fakes.echo import ECHO, Running, ask, echo, open_server, tell

REAL = pytest.mark.parametrize("real", [False, True], ids=["memory", "socket"])


@REAL
async def test_the_answer_of_the_call_that_stops_the_server_arrives(real: bool) -> None:
    servers: list[Running] = []

    async def shutdown(_: StateRequest) -> StateResponse:
        servers[0].server.stop()
        await trio.testing.wait_all_tasks_blocked()
        return tell("bye")

    async with open_server({"One": shutdown}, real=real) as server, server.client() as client:
        servers.append(server)
        with trio.fail_after(5):
            assert (await client.call(ECHO, "One", ask(), StateResponse)).id == "bye"
            await server.ended.wait()
            await client.closed.wait()
        assert server.listener.closed


@REAL
async def test_idle_clients_do_not_hold_it_up(real: bool) -> None:
    async with open_server({"One": echo}, real=real) as server, server.client() as client, server.client() as other:
        await client.call(ECHO, "One", ask())
        await other.call(ECHO, "One", ask())
        with trio.fail_after(0.5):
            server.server.stop(60)
            await server.ended.wait()


async def test_w6_a_call_that_never_ends_is_cancelled_after_the_bound(autojump_clock: trio.testing.MockClock) -> None:
    freed: list[float] = []

    async def stuck(_: StateRequest) -> StateResponse:
        try:
            await trio.sleep_forever()
        finally:
            freed.append(trio.current_time())

    async with open_server({"One": stuck}) as server, server.client() as client, trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(ConnectionClosed):
                await client.call(ECHO, "One", ask())

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        start = trio.current_time()
        server.server.stop(1)
        await server.ended.wait()
        assert trio.current_time() - start == pytest.approx(1)
        assert freed == [pytest.approx(start + 1)]


async def test_a_call_that_is_due_is_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    async def soon(request: StateRequest) -> StateResponse:
        await trio.sleep(0.5)
        return tell(request.id)

    answers: list[str] = []
    async with open_server({"One": soon}) as server, server.client() as client, trio.open_nursery() as nursery:

        async def wait() -> None:
            answers.append((await client.call(ECHO, "One", ask("due"), StateResponse)).id)

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        server.server.stop(1)
        start = trio.current_time()
        await server.ended.wait()
        assert trio.current_time() - start == pytest.approx(0.5)
    assert answers == ["due"]


async def test_a_peer_that_takes_no_answer_is_left_after_the_bound() -> None:
    """On a real socket, whose buffers fill."""
    async with open_server({"One": echo}, real=True) as server:
        mute = server.listener.connect()
        wire = ClientConnection()
        for _ in range(10):
            await mute.send_all(wire.start(ECHO, ECHO.methods["One"], ask("x" * 500_000))[1])
        await trio.testing.wait_all_tasks_blocked(0.01)
        (connection,) = server.server.connections
        assert connection.queued[1] > 0
        with trio.fail_after(5):
            server.server.stop(0.05)
            await server.ended.wait()
        await mute.aclose()
