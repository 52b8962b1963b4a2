"""The handler's view of a call in which either side sends many messages (protocol.md 1.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from google.protobuf.message import Message

# The reference's own numbers: a client that streams gets 64 messages ahead of its handler, any other has one to give.
CLIENT_SLOTS: Final = 64
SINGLE_SLOT: Final = 1


class ServerStream:
    """Messages from the peer by `receive`, messages to it by `send`.

    A handler that returns ends the stream; what the peer still sends is refused then.
    """

    def __init__(self, slots: int, send: Callable[[Message], Awaitable[None]]) -> None:
        self._feed, self._messages = trio.open_memory_channel["Message"](slots)
        self._send = send

    async def receive(self) -> Message:
        """The next message; trio.EndOfChannel when the peer has closed its side."""
        return await self._messages.receive()

    async def send(self, message: Message) -> None:
        """Sends one message, waiting while the peer takes none; ResourceExhausted when it is over the frame limit."""
        await self._send(message)

    def feed_nowait(self, message: Message) -> None:
        """For the connection: one message of the peer; trio.WouldBlock when all slots are taken."""
        try:
            self._feed.send_nowait(message)
        except trio.BrokenResourceError:
            return

    async def feed(self, message: Message) -> None:
        """For the connection: the same, waiting for a slot."""
        try:
            await self._feed.send(message)
        except trio.BrokenResourceError:
            return

    def end(self) -> None:
        """For the connection: the peer sends no more."""
        self._feed.close()

    def close(self) -> None:
        """For the connection: the handler is done."""
        self._feed.close()
        self._messages.close()
