"""One suite for the seam between connections and streams: in memory, and over a real unix socket."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from shim.rpc.transport import Outbox, SocketTransport, StreamTransport, Transport, transport_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    Pair = tuple[trio.abc.Stream, trio.abc.Stream]


def memory() -> Pair:
    return memory_stream_pair()


def unix() -> Pair:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return trio.SocketStream(trio.socket.from_stdlib_socket(one)), trio.SocketStream(
        trio.socket.from_stdlib_socket(other)
    )


@pytest.fixture(params=[memory, unix])
async def ends(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Transport, trio.abc.Stream]]:
    """Our end, and the peer's."""
    make: Callable[[], Pair] = request.param
    mine, theirs = make()
    transport = transport_for(mine)
    assert isinstance(transport, StreamTransport if make is memory else SocketTransport)
    yield transport, theirs
    await trio.aclose_forcefully(theirs)
    await transport.aclose()


Ends = tuple[Transport, trio.abc.Stream]


async def test_bytes_pass_both_ways(ends: Ends) -> None:
    mine, theirs = ends
    await theirs.send_all(b"there")
    assert await mine.receive() == b"there"
    await mine.send_all(b"back")
    assert await theirs.receive_some(10) == b"back"


async def test_the_peers_end_is_no_bytes(ends: Ends) -> None:
    mine, theirs = ends
    await theirs.send_all(b"last")
    await theirs.aclose()
    assert await mine.receive() == b"last"
    assert await mine.receive() == b""


async def test_writing_to_a_peer_that_is_gone_breaks(ends: Ends) -> None:
    mine, theirs = ends
    await theirs.aclose()
    with pytest.raises(trio.BrokenResourceError):
        await mine.send_all(b"x")


async def test_a_reader_can_be_cancelled_and_loses_nothing(ends: Ends) -> None:
    mine, theirs = ends
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(mine.receive)
            await wait_all_tasks_blocked()
            scope.cancel()
    await theirs.send_all(b"x")
    assert await mine.receive() == b"x"


async def test_closing_wakes_the_reader(ends: Ends) -> None:
    mine, _ = ends
    async with trio.open_nursery() as nursery:

        async def read() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await mine.receive()

        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        await mine.aclose()
    with pytest.raises(trio.ClosedResourceError):
        await mine.receive()
    with pytest.raises(trio.ClosedResourceError):
        await mine.send_all(b"x")


async def test_what_is_taken_at_once_is_sent(ends: Ends) -> None:
    mine, theirs = ends
    taken = mine.send_nowait(b"hello")
    await mine.send_all(b"hello"[taken:] + b".")
    data = b""
    while not data.endswith(b"."):
        data += await theirs.receive_some(10)
    assert data == b"hello."


async def test_an_outbox_keeps_the_order_and_counts_what_waits(ends: Ends) -> None:
    mine, theirs = ends
    frames = [bytes([number]) * 300_000 for number in range(5)]
    async with trio.open_nursery() as nursery:
        sent: list[int] = []
        outbox = Outbox(mine, nursery, lambda: sent.append(len(outbox)))
        for frame in frames:
            outbox.post(frame)
        assert 0 < outbox.held <= 1_500_000
        assert len(outbox) > 0
        data = b""
        while len(data) < 1_500_000:
            data += await theirs.receive_some(65536)
        await wait_all_tasks_blocked()
        assert data == b"".join(frames)
        assert (outbox.held, len(outbox)) == (0, 0)
        assert sent[-1] == 0


async def test_a_broken_outbox_cancels_its_nursery_and_takes_no_more(ends: Ends) -> None:
    mine, theirs = ends
    await theirs.aclose()
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            outbox = Outbox(mine, nursery, lambda: None)
            outbox.post(b"x")
            await trio.sleep_forever()
    assert outbox.broken
    outbox.post(b"y")
    assert len(outbox) == 0


async def test_a_frame_that_cancellation_may_have_cut_is_the_last(ends: Ends) -> None:
    mine, _ = ends
    async with trio.open_nursery() as nursery:
        outbox = Outbox(mine, nursery, lambda: None)
        outbox.post(bytes(5 << 20))
        waits = len(outbox)
        nursery.cancel_scope.cancel()
    assert waits == 1
    assert outbox.broken
