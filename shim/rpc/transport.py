"""How bytes reach and leave a connection: one reader, one ordered outbox.

A socket is read after it became readable and written at once where it takes the bytes, which saves two of the four
system calls and one turn of the scheduler that a plain Trio stream costs each message; what it does not take waits in
the outbox for a writer task.  Any other Trio stream (memory streams in tests) goes the plain way behind the same face.
`Outbox.post` never blocks, so a caller that is cancelled can never leave half a frame behind; whoever posts without
bound must look at `held` first.  A broken connection cancels the nursery that the outbox was given.
"""

from __future__ import annotations

import os
import select
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

CHUNK: Final = 64 << 10


class Transport(Protocol):
    """The seam: bytes in both directions, one task reading and one writing at a time."""

    async def receive(self) -> bytes:
        """Some bytes, none at the end; trio.BrokenResourceError or ClosedResourceError when that is not orderly."""

    def send_nowait(self, data: bytes) -> int:
        """Hands over what is taken without waiting, maybe nothing; the number of bytes taken."""

    async def send_all(self, data: bytes) -> None:
        """Hands over everything."""

    def hung_up(self) -> bool:
        """Whether the peer is known to be gone, without reading; False when that cannot be told."""

    async def aclose(self) -> None:
        """Closes at once; both directions raise ClosedResourceError from then on."""


class SocketTransport:
    """A connected stream socket."""

    __slots__ = ("_socket", "_stream")

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._socket = stream.socket

    async def receive(self) -> bytes:
        """See `Transport`."""
        while True:
            self._fd()
            await trio.lowlevel.wait_readable(self._socket)
            try:
                return os.read(self._fd(), CHUNK)
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError(f"receive: {error}") from error

    def send_nowait(self, data: bytes) -> int:
        """See `Transport`."""
        try:
            return os.write(self._fd(), data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError(f"send: {error}") from error

    async def send_all(self, data: bytes) -> None:
        """See `Transport`."""
        await self._stream.send_all(data)

    def hung_up(self) -> bool:
        """See `Transport`."""
        poll = select.poll()
        poll.register(self._fd(), select.POLLRDHUP)
        return bool(poll.poll(0))

    async def aclose(self) -> None:
        """See `Transport`."""
        await trio.aclose_forcefully(self._stream)

    def _fd(self) -> int:
        fd = self._socket.fileno()
        if fd < 0:
            raise trio.ClosedResourceError("this connection was closed")
        return fd


class StreamTransport:
    """Any other stream of Trio."""

    __slots__ = ("_stream",)

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def receive(self) -> bytes:
        """See `Transport`."""
        return bytes(await self._stream.receive_some(CHUNK))

    def send_nowait(self, data: bytes) -> int:
        """See `Transport`; a plain stream takes nothing without waiting."""
        return 0

    async def send_all(self, data: bytes) -> None:
        """See `Transport`."""
        await self._stream.send_all(data)

    def hung_up(self) -> bool:
        """See `Transport`."""
        return False

    async def aclose(self) -> None:
        """See `Transport`."""
        await trio.aclose_forcefully(self._stream)


def transport_for(stream: trio.abc.Stream) -> Transport:
    """The fastest way to use this stream."""
    return SocketTransport(stream) if isinstance(stream, trio.SocketStream) else StreamTransport(stream)


class Outbox:
    """Frames on their way out, in the order of posting."""

    __slots__ = ("_frames", "_nursery", "_sent", "_transport", "_writing", "broken", "held")

    def __init__(self, transport: Transport, nursery: trio.Nursery, sent: Callable[[], None]) -> None:
        self._transport = transport
        self._nursery = nursery
        self._sent = sent
        self._frames: deque[bytes] = deque()
        self._writing = False
        self.held = 0
        self.broken = False

    def __len__(self) -> int:
        """Frames that have not left, the one being written included."""
        return len(self._frames) + self._writing

    def post(self, frame: bytes) -> None:
        """Takes one frame; gone at once when the socket has room.  On a broken connection it is thrown away."""
        if self.broken:
            return
        if not self._writing:
            try:
                taken = self._transport.send_nowait(frame)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self._break()
                return
            if taken == len(frame):
                return
            self._writing = True
            frame = frame[taken:] if taken else frame
            self.held += len(frame)
            self._nursery.start_soon(self._write, frame, name="writer")
            return
        self.held += len(frame)
        self._frames.append(frame)

    async def _write(self, frame: bytes) -> None:
        try:
            while True:
                await self._transport.send_all(frame)
                self.held -= len(frame)
                if not self._frames:
                    break
                frame = self._frames.popleft()
                self._sent()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._break()
        except trio.Cancelled:
            # A frame may have left in part: nothing may follow it.
            self._abandon()
            raise
        finally:
            self._writing = False
        self._sent()

    def _abandon(self) -> None:
        self.broken = True
        self._frames.clear()

    def _break(self) -> None:
        self._abandon()
        self._nursery.cancel_scope.cancel()
