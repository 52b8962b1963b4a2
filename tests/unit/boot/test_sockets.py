"""Sockets in a directory of their own: made, reused, replaced, removed; and what must not be touched (P2, Y3, O1)."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import tempfile
from typing import TYPE_CHECKING

import pytest

from shim.boot import sockets
from shim.errors import InvalidArgument, Unavailable, Unknown

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def place() -> Iterator[str]:
    """A short directory: those of pytest are too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="s-") as directory:
        yield directory


@pytest.mark.parametrize("umask", [0, 0o022, 0o077, 0o777])
def test_modes_whatever_the_umask(place: str, umask: int) -> None:
    path = f"{place}/a/b/sock"
    before = os.umask(umask)
    try:
        bound = sockets.bind_socket(path)
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    assert bound is not None
    with bound.listener:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert [stat.S_IMODE(os.stat(f"{place}/{name}").st_mode) for name in ("a", "a/b")] == [0o700, 0o700]
        assert os.listdir(f"{place}/a/b") == ["sock"]


def test_existing_directory_keeps_its_mode(place: str) -> None:
    os.chmod(place, 0o755)
    bound = sockets.bind_socket(f"{place}/sock")
    assert bound is not None
    bound.listener.close()
    assert stat.S_IMODE(os.stat(place).st_mode) == 0o755


def test_living_socket_is_found_and_left_alone(place: str) -> None:
    first = sockets.bind_socket(f"{place}/sock")
    assert first is not None
    with first.listener:
        assert sockets.bind_socket(first.path) is None
        assert not sockets.remove_dead_socket(first.path)
        assert os.lstat(first.path).st_ino == first.inode


def test_listener_with_a_full_backlog_is_alive(place: str) -> None:
    path = f"{place}/sock"
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(path)
        busy.listen(0)
        waiting.connect(path)
        assert sockets.is_alive(path)
        assert sockets.bind_socket(path) is None


def test_dead_socket_is_replaced(place: str) -> None:
    first = sockets.bind_socket(f"{place}/sock")
    assert first is not None
    first.listener.close()
    second = sockets.bind_socket(first.path)
    assert second is not None
    with second.listener:
        assert sockets.is_alive(second.path)
        assert second.address == f"unix://{second.path}"


def test_dead_socket_is_removed_once(place: str) -> None:
    bound = sockets.bind_socket(f"{place}/sock")
    assert bound is not None
    bound.listener.close()
    assert sockets.remove_dead_socket(bound.path)
    assert not sockets.remove_dead_socket(bound.path)
    assert not sockets.remove_dead_socket(f"{place}/no/such/dir")
    assert os.listdir(place) == []


def test_own_socket_is_removed_and_a_successor_is_not(place: str) -> None:
    first = sockets.bind_socket(f"{place}/sock")
    assert first is not None
    os.rename(first.path, f"{place}/kept")  # holds the inode number, which the next entry could reuse
    second = sockets.bind_socket(first.path)
    assert second is not None
    with first.listener, second.listener:
        assert not first.remove()
        assert os.path.exists(second.path)
        assert second.remove()
        assert not second.remove()


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_other_things_are_not_replaced(place: str, kind: str) -> None:
    path = f"{place}/sock"
    if kind == "file":
        open(path, "w").close()
    else:
        os.mkdir(path)
    with pytest.raises((Unknown, OSError)):
        sockets.bind_socket(path)
    assert not sockets.remove_dead_socket(path)
    assert os.path.exists(path)


def test_path_too_long_is_refused_before_anything_is_made(place: str) -> None:
    with pytest.raises(InvalidArgument, match="at most 106"):
        sockets.bind_socket(f"{place}/{'d' * 100}/sock")
    assert os.listdir(place) == []


def test_failed_bind_leaves_nothing(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, mode: int) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(os, "chmod", refuse)
    with pytest.raises(PermissionError):
        sockets.bind_socket(f"{place}/sock")
    assert os.listdir(place) == []


def test_directory_held_by_somebody_else_is_a_bounded_wait(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "LOCK_SECONDS", 0.0)
    holder = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(Unavailable, match="locked"):
            sockets.bind_socket(f"{place}/sock")
    finally:
        os.close(holder)
    assert os.listdir(place) == []


def test_adopted_socket_knows_its_entry(place: str) -> None:
    bound = sockets.bind_socket(f"{place}/sock")
    assert bound is not None
    with bound.listener:
        assert sockets.adopt_socket(bound.listener) == bound


def test_unnamed_socket_is_not_adopted() -> None:
    with socket.socket(socket.AF_UNIX) as unnamed, pytest.raises(Unknown):
        sockets.adopt_socket(unnamed)
