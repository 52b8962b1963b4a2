"""Frames from bytes in any portions (protocol.md 1.1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim.errors import ResourceExhausted
from shim.wire import frames
from shim.wire.frames import HEADER, MAX_LENGTH, Frame, FrameDecoder, Oversize, encode_frame

BYTE = st.integers(0, 255)
FRAMES = st.lists(
    st.builds(Frame, stream_id=st.integers(0, 2**32 - 1), kind=BYTE, flags=BYTE, data=st.binary(max_size=40)),
    max_size=6,
)
CUTS = st.lists(st.integers(1, 60), max_size=30)


def portions(data: bytes, cuts: list[int]) -> list[bytes]:
    """The data in pieces of these lengths, the rest as the last."""
    pieces = []
    for cut in cuts:
        pieces.append(data[:cut])
        data = data[cut:]
    return [*pieces, data]


def decode(pieces: list[bytes]) -> tuple[list[Frame | Oversize], bool]:
    decoder = FrameDecoder()
    found = [frame for piece in pieces for frame in decoder.feed(piece)]
    return found, decoder.between_frames


@given(FRAMES, CUTS)
def test_any_split_yields_the_same_frames(sent: list[Frame], cuts: list[int]) -> None:
    data = b"".join(encode_frame(*frame) for frame in sent)
    assert decode(portions(data, cuts)) == (sent, True)


@given(st.binary(max_size=200), CUTS)
def test_junk_raises_nothing_and_splits_alike(data: bytes, cuts: list[int]) -> None:
    assert decode(portions(data, cuts)) == decode([data])


@given(FRAMES, CUTS, st.integers(0, 30))
def test_too_long_bodies_are_dropped_and_told_at_their_end(sent: list[Frame], cuts: list[int], limit: int) -> None:
    data = b"".join(encode_frame(*frame) for frame in sent)
    expected = [frame if len(frame.data) <= limit else Oversize(frame.stream_id, len(frame.data)) for frame in sent]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "MAX_LENGTH", limit)
        assert decode(portions(data, cuts)) == (expected, True)


@given(FRAMES, st.binary(min_size=1, max_size=9))
def test_a_cut_frame_is_held_and_shows(sent: list[Frame], rest: bytes) -> None:
    decoder = FrameDecoder()
    assert decoder.feed(b"".join(encode_frame(*frame) for frame in sent) + rest) == sent
    assert decoder.held == len(rest)
    assert not decoder.between_frames


def test_nothing_is_held_of_a_body_that_is_dropped() -> None:
    decoder = FrameDecoder()
    assert decoder.feed(HEADER.pack(MAX_LENGTH + 1, 5, 1, 0)) == []
    for _ in range(64):
        assert decoder.feed(bytes(64 << 10)) == []
        assert decoder.held == 0
    assert not decoder.between_frames
    assert decoder.feed(bytes(1)) == [Oversize(5, MAX_LENGTH + 1)]
    assert decoder.between_frames


def test_the_limit_itself_may_be_sent() -> None:
    frame = encode_frame(1, 1, 0, bytes(MAX_LENGTH))
    assert FrameDecoder().feed(frame) == [Frame(1, 1, 0, bytes(MAX_LENGTH))]


def test_our_sender_refuses_more() -> None:
    with pytest.raises(ResourceExhausted) as caught:
        encode_frame(1, 1, 0, bytes(MAX_LENGTH + 1))
    assert "4194305" in caught.value.message
    assert "4194304" in caught.value.message
