"""Reaching the addresses of protocol.md 1.7, and who may reach us."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from shim.errors import ConnectionClosed, DeadlineExceeded, InvalidArgument, Unavailable
from shim.rpc.client import open_unix_client
from shim.rpc.dial import dial
from shim.rpc.server import Service, serve_ttrpc
from shim.wire.proto.task_pb2 import StateResponse
from tests.fakes.echo import ECHO, ask, echo

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def path() -> Iterator[str]:
    """Where a socket may be; short, since its length is bounded."""
    with tempfile.TemporaryDirectory(prefix="d-", dir="/tmp") as folder:
        yield str(Path(folder) / "s")


async def listen(address: str, backlog: int = 10) -> trio.SocketListener:
    sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    await sock.bind(address)
    sock.listen(backlog)
    return trio.SocketListener(sock)


@pytest.mark.parametrize("form", ["unix://{}", "{}", "abstract"])
async def test_unix_addresses(path: str, form: str) -> None:
    bound, address = (f"\0{path[1:]}", path[1:]) if form == "abstract" else (path, form.format(path))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_ttrpc, await listen(bound), [Service(ECHO, {"One": echo})])
        async with open_unix_client(address) as client:
            assert (await client.call(ECHO, "One", ask("here"), StateResponse)).id == "here"
        nursery.cancel_scope.cancel()


async def test_nobody_there(path: str) -> None:
    with pytest.raises(Unavailable, match="No such file"):
        await dial(path)
    listener = await listen(path)
    await listener.aclose()
    with pytest.raises(Unavailable, match="refused"):
        await dial(f"unix://{path}")
    with pytest.raises(InvalidArgument):
        await dial("http://x")


async def test_a_full_backlog_is_waited_for(path: str) -> None:
    listener = await listen(path, backlog=0)
    first = await dial(path)
    with pytest.raises(DeadlineExceeded):
        await dial(path, dial_timeout=0.05)
    async with trio.open_nursery() as nursery:

        async def second() -> None:
            stream = await dial(path)
            await stream.send_all(b"x")
            await stream.aclose()

        nursery.start_soon(second)
        await trio.testing.wait_all_tasks_blocked()
        await (await listener.accept()).aclose()
        accepted = await listener.accept()
        assert await accepted.receive_some(1) == b"x"
        await accepted.aclose()
    await first.aclose()
    await listener.aclose()


async def monitor(listener: trio.SocketListener, answers: list[bytes]) -> None:
    """A monitor that answers its next connections so, and hangs up on empty ones."""
    for answer in answers:
        stream = await listener.accept()
        asked = await stream.receive_some(100)
        assert asked == b"CONNECT 1024\n"
        if answer:
            await stream.send_all(answer)
            await stream.receive_some(1)
        await stream.aclose()


async def test_a_hybrid_port_is_asked_for_again(path: str) -> None:
    async with trio.open_nursery() as nursery, await listen(path) as listener:
        nursery.start_soon(monitor, listener, [b"", b"OK 7\nrest"])
        stream = await dial(f"hvsock://{path}:1024", dial_timeout=0.5)
        assert await stream.receive_some(10) == b"rest"
        await stream.aclose()


async def test_a_hybrid_port_may_be_refused(path: str) -> None:
    async with trio.open_nursery() as nursery, await listen(path) as listener:
        nursery.start_soon(monitor, listener, [b"no such port\n"])
        with pytest.raises(Unavailable, match="no such port"):
            await dial(f"hvsock://{path}:1024")


async def test_a_peer_of_another_user_is_closed_unheard(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_ttrpc, await listen(path), [Service(ECHO, {"One": echo})])
        async with open_unix_client(path) as client:
            with pytest.raises(ConnectionClosed), trio.fail_after(5):
                await client.call(ECHO, "One", ask())
        nursery.cancel_scope.cancel()
