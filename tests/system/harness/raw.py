"""ttrpc frames by hand, for what a well-behaved client never sends (protocol.md 1.1 to 1.4)."""

from __future__ import annotations

import struct
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import attrs
import trio

from shim.wire.proto import ttrpc_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from google.protobuf.message import Message

    from shim.wire.services import ServiceSpec

HEADER: Final = struct.Struct(">IIBB")
REQUEST, RESPONSE, DATA = 1, 2, 3
MAX_BODY: Final = 4 << 20


@attrs.frozen
class Frame:
    """One frame as it is on the wire."""

    stream: int
    kind: int
    flags: int
    body: bytes

    @property
    def response(self) -> ttrpc_pb2.Response:
        """The body as a response, which its type must say that it is."""
        assert self.kind == RESPONSE, f"a frame of type {self.kind}"
        return ttrpc_pb2.Response.FromString(self.body)

    @property
    def code(self) -> int:
        """The status of that response."""
        return self.response.status.code


@attrs.define
class RawConnection:
    """A connection whose every byte is the test's own."""

    stream: trio.SocketStream

    async def send(self, stream: int, body: bytes, *, kind: int = REQUEST, flags: int = 0) -> None:
        """One frame, whatever it is."""
        await self.stream.send_all(HEADER.pack(len(body), stream, kind, flags) + body)

    async def receive(self, *, timeout: float = 10) -> Frame:
        """The next frame; fails when none comes within `timeout` seconds or the peer closes."""
        with trio.fail_after(timeout):
            length, stream, kind, flags = HEADER.unpack(await self._exactly(HEADER.size))
            return Frame(stream, kind, flags, await self._exactly(length))

    async def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            chunk = await self.stream.receive_some(count - len(data))
            if not chunk:
                raise ConnectionResetError("the shim closed the connection")
            data += chunk
        return bytes(data)


def request_body(service: ServiceSpec, method: str, request: Message, *, timeout: float = 0) -> bytes:
    """The body of a request frame; `timeout` in seconds, 0 for none."""
    message = ttrpc_pb2.Request(
        service=service.name,
        method=method,
        payload=request.SerializeToString(),
        timeout_nano=int(timeout * 1e9),
    )
    return message.SerializeToString()


@asynccontextmanager
async def open_raw(address: str) -> AsyncIterator[RawConnection]:
    """A new connection to a shim's socket."""
    stream = await trio.open_unix_socket(address.removeprefix("unix://"))
    async with stream:
        yield RawConnection(stream)
