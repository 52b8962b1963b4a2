"""Frames: ten bytes of header and at most 4 MiB of body (protocol.md 1.1).

The decoder takes bytes in any portions and gives whole frames; how the bytes were split never shows.  Feeding n bytes
costs O(n), and nothing is kept between whole frames.  Any bytes are frames of some kind, so junk raises nothing: a body
announced over the limit is thrown away as it comes and reported as `Oversize` once its last byte has passed.  The
encoder refuses such a body before anything is written.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from shim.errors import ResourceExhausted

MAX_LENGTH: Final = 4 << 20
HEADER: Final = struct.Struct(">IIBB")

REQUEST: Final = 1
RESPONSE: Final = 2
DATA: Final = 3

REMOTE_CLOSED: Final = 0x01
REMOTE_OPEN: Final = 0x02
NO_DATA: Final = 0x04


class Frame(NamedTuple):
    """One whole frame; `kind` may be a number that means nothing to us."""

    stream_id: int
    kind: int
    flags: int
    data: bytes


class Oversize(NamedTuple):
    """A frame whose body was too long, and is gone; `length` is what its header said, in bytes."""

    stream_id: int
    length: int


def oversize_error(length: int) -> ResourceExhausted:
    """What the sender of too long a body is told: both lengths, in bytes."""
    return ResourceExhausted(f"message length {length} exceeds the maximum of {MAX_LENGTH} bytes")


def encode_frame(stream_id: int, kind: int, flags: int, data: bytes) -> bytes:
    """The frame's bytes; ResourceExhausted when the body is over the limit."""
    if len(data) > MAX_LENGTH:
        raise oversize_error(len(data))
    return HEADER.pack(len(data), stream_id, kind, flags) + data


class FrameDecoder:
    """Bytes in, frames out.  `held` says how many bytes of an unfinished frame are kept."""

    __slots__ = ("_buffer", "_need", "_oversize", "_skip")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._need = HEADER.size
        self._skip = 0
        self._oversize: Oversize | None = None

    @property
    def held(self) -> int:
        """Bytes kept of a frame that has not ended."""
        return len(self._buffer)

    @property
    def between_frames(self) -> bool:
        """Whether the stream may end here without a frame being cut."""
        return not self._buffer and self._oversize is None

    def feed(self, chunk: bytes) -> list[Frame | Oversize]:
        """The frames that these bytes complete, in order."""
        if self._buffer:
            self._buffer += chunk
            if len(self._buffer) < self._need:
                return []
            chunk = bytes(self._buffer)
            self._buffer = bytearray()
        frames: list[Frame | Oversize] = []
        end = len(chunk)
        at = self._drop(chunk, frames) if self._oversize is not None else 0
        self._need = HEADER.size
        while end - at >= HEADER.size:
            length, stream_id, kind, flags = HEADER.unpack_from(chunk, at)
            body = at + HEADER.size
            if length > MAX_LENGTH:
                self._oversize = Oversize(stream_id, length)
                self._skip = length
                at = body + self._drop(chunk[body:], frames)
                continue
            if body + length > end:
                self._need = HEADER.size + length
                break
            at = body + length
            frames.append(Frame(stream_id, kind, flags, chunk[body:at]))
        if at < end:
            self._buffer += memoryview(chunk)[at:]
        return frames

    def _drop(self, chunk: bytes, frames: list[Frame | Oversize]) -> int:
        """Passes over the body of an oversize frame; the number of bytes passed."""
        passed = min(self._skip, len(chunk))
        self._skip -= passed
        if self._skip == 0 and self._oversize is not None:
            frames.append(self._oversize)
            self._oversize = None
        return passed
