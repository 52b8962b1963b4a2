"""The template: a warm interpreter that shims are forked from, because a fork takes a millisecond and Python does not.

The launcher (native/launcher_template.c) starts one for each key and asks it from then on: the key has all that a fork
inherits and a caller could care about, stands in the lock file that the template holds for its life, and is compared
byte by byte with what a caller sends.  A child is forked for each request; it takes over the caller's directory,
environment, umask and standard descriptors and is the program from there on.  The template itself holds nothing of any
container and can be killed at any time.  It leaves after ten idle minutes, on TERM, when its files on disk changed, and
when somebody has moved it, so that its key is not true any more.

Invariants: one thread, no loop, nothing in the environment, `/` as directory, null stdio; everything that a shim will
use has been imported, and used once, before the first request.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import struct
import sys
from typing import TYPE_CHECKING, Final, NoReturn

import shim
from shim.boot import delete, info, main, serve, start, warmup
from shim.boot.caller import Caller
from shim.boot.version import PROGRAM
from shim.kernel import title

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["delete", "info", "run_template", "serve", "start"]  # imported so that no fork has to

LOCK_FD: Final = 3
IDLE_SECONDS: Final = 600.0
RECEIVE_SECONDS: Final = 2.0
MAX_REQUEST: Final = 16 << 20
"""Bytes of a request: the kernel gives a program less for its arguments and environment."""
TITLE: Final = "shim-template"
_HEADER: Final = struct.Struct("=IIIIi")
_CODE: Final = struct.Struct("=i")
_READY: Final = b"r"
"""Somebody reads: only now may the launcher send its descriptors."""
_BEGUN: Final = b"b"
"""From now on the request is ours to end or to undo."""
_FDS: Final = 4
_OWN_FACTS: Final = ("cgroup", "limits", "oom_score_adj", "loginuid", "sessionid", "attr/current")


def run_template(socket_path: str) -> NoReturn:
    """Serve at `socket_path` until it is time to leave; the lock of the key is at descriptor 3.  Never returns."""
    key = os.pread(LOCK_FD, MAX_REQUEST, 0)
    os.set_inheritable(LOCK_FD, False)
    warmup.warm_up()
    if len(os.listdir("/proc/self/task")) != 1:
        os._exit(1)  # noqa: TID251 - a fork would lose the other thread
    facts = _facts()
    title.set_title(f"{TITLE} {os.path.basename(socket_path)}")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the children
    signal.signal(signal.SIGTERM, lambda *_: _leave(socket_path))
    gc.collect()
    gc.freeze()
    listener = _listen(socket_path)
    try:
        while select.select([listener], [], [], IDLE_SECONDS)[0]:
            connection, _ = listener.accept()
            with connection:
                if _facts() != facts:
                    break  # unanswered, the launcher starts Python itself
                if _same_user(connection) and os.fork() == 0:  # noqa: TID251 - what this process is for
                    _become(connection, listener, key)
    finally:
        _leave(socket_path)


def _listen(path: str) -> socket.socket:
    """The listening socket; the caller's lock says that nobody else has one, so what is there is left over."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listener.bind(path)
    os.chmod(path, 0o600)
    listener.listen(128)
    return listener


def _leave(path: str) -> NoReturn:
    """Go, and take the socket and the lock file along: the lock is held until the process has ended."""
    try:
        for name in (path, f"{path.removesuffix('.sock')}.lock"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
    finally:
        os._exit(0)  # noqa: TID251 - the end of this process


def _facts() -> list[object]:
    """What must stay as it was when the key was written, and the files that this process was made from."""
    facts: list[object] = []
    for name in _OWN_FACTS:
        try:
            with open(f"/proc/self/{name}", "rb") as stream:
                facts.append(stream.read())
        except OSError:
            facts.append(None)
    try:
        found = os.stat(shim.__file__)
        facts.append((found.st_dev, found.st_ino, found.st_mtime_ns))
    except OSError:
        facts.append(None)
    return facts


def _same_user(connection: socket.socket) -> bool:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    _, uid, _ = struct.unpack("3i", raw)
    return bool(uid == os.geteuid())


def _become(connection: socket.socket, listener: socket.socket, key: bytes) -> NoReturn:
    """The child: the program that the launcher's caller wanted, and its exit code."""
    code = 1
    try:
        listener.close()
        os.close(LOCK_FD)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        connection.settimeout(RECEIVE_SECONDS)
        connection.sendall(_READY)
        arguments, parent = _take_over(connection, key)
        connection.sendall(_BEGUN)
        connection.setblocking(True)
        os.set_inheritable(connection.fileno(), True)  # which is how a server forked from here knows to close it
        code = main.run(arguments, Caller(parent, connection))
        connection.sendall(_CODE.pack(code))
    finally:
        os._exit(code)  # noqa: TID251 - the end of this process


def _take_over(connection: socket.socket, key: bytes) -> tuple[Sequence[str], int]:
    """Receive the request and put its directory, environment, umask and descriptors in place of ours."""
    data, fds, _, _ = socket.recv_fds(connection, 1 << 16, _FDS)
    if len(fds) != _FDS or len(data) < _HEADER.size:
        raise ValueError("a request has four descriptors and a header")
    key_size, argv_size, env_size, mask, parent = _HEADER.unpack_from(data)
    whole = _HEADER.size + key_size + argv_size + env_size
    if whole > MAX_REQUEST:
        raise ValueError(f"a request of {whole} bytes")
    received = bytearray(data)
    while len(received) < whole:
        chunk = connection.recv(min(whole - len(received), 1 << 20))
        if not chunk:
            raise ValueError("the launcher went away")
        received += chunk
    at = _HEADER.size
    if bytes(received[at : at + key_size]) != key:
        raise ValueError("another key")
    at += key_size
    arguments = [os.fsdecode(word) for word in bytes(received[at : at + argv_size]).split(b"\0")[:-1]]
    at += argv_size
    os.environ.clear()
    for variable in bytes(received[at : at + env_size]).split(b"\0")[:-1]:
        name, separator, value = variable.partition(b"=")
        if separator and name:
            os.environb[name] = value
    os.fchdir(fds[3])
    os.umask(mask)
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number)
    for fd in fds:
        os.close(fd)
    sys.argv = [PROGRAM, *arguments]
    title.set_title(" ".join(sys.argv))
    return arguments, parent
