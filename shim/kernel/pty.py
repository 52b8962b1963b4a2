"""The master side of a terminal: received from a runtime, resized, fed, and emptied at its end.

A slave of our own (`open_peer`) keeps the terminal from hanging up for as long as it is open, so that a program that
closes its last slave and opens another is no end and costs no polling.  `drain` does the rest of a terminal in a worker
thread: until nobody has it open any more, or until it is told to stop; nothing that it has read is lost by a stop.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import select
import socket
import struct
import termios
from contextlib import ExitStack
from enum import Enum
from typing import TYPE_CHECKING, Final

import attrs
import trio

from shim.errors import InvalidArgument
from shim.kernel import native
from shim.kernel.fds import OwnedFd
from shim.kernel.threads import Threads

if TYPE_CHECKING:
    from shim.kernel.threads import Job

NAME_LIMIT: Final = 4096
"""A terminal's name is shorter than this many bytes (protocol.md 7.5)."""
DRAINS: Final = 32
"""Terminals that are emptied at the same time, each by a thread."""
_TIOCGPTPEER: Final = 0x5441
_VEOF: Final = 4
_CC: Final = 6
_threads: Final = trio.lowlevel.RunVar[Threads]("shim.kernel.pty.threads")


class Ending(Enum):
    """Why a drain ended, numbered as in console.h."""

    HUNG_UP = 0
    OUT_OF_TIME = 1
    WOKEN = 2
    SINK_GONE = 3


@attrs.frozen
class Drained:
    """What a drain did: bytes handed over, bytes that the sink took no more, and why it ended."""

    bytes: int
    lost: int
    ending: Ending


async def receive_master(connection: trio.SocketStream) -> OwnedFd:
    """The one descriptor of the one message that a runtime sends.

    Raises InvalidArgument for anything but a name below 4,096 bytes with exactly one terminal; whatever else came is
    closed.
    """
    data, ancillary, flags, _ = await connection.socket.recvmsg(
        NAME_LIMIT, socket.CMSG_SPACE(8 * array.array("i").itemsize), socket.MSG_CMSG_CLOEXEC
    )
    owned = [OwnedFd(number) for number in _descriptors(ancillary)]
    try:
        if not data and not owned:
            raise InvalidArgument("the runtime hung up before it sent a console")
        if len(data) >= NAME_LIMIT:
            raise InvalidArgument(f"the console's name has {NAME_LIMIT} bytes or more")
        if len(owned) != 1 or flags & socket.MSG_CTRUNC:
            raise InvalidArgument(f"exactly one console was expected, not {len(owned)} descriptors")
        if not os.isatty(owned[0].fileno()):
            raise InvalidArgument("what the runtime sent as a console is no terminal")
        return owned.pop()
    finally:
        for fd in owned:
            fd.close()


def open_peer(master: OwnedFd) -> OwnedFd | None:
    """A slave of this terminal, by ioctl and so without a path; None where the kernel cannot do it."""
    try:
        number = fcntl.ioctl(master.fileno(), _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
    return OwnedFd(number)


def set_size(master: OwnedFd, width: int, height: int) -> None:
    """Set columns and rows, each cut to 16 bits as the wire's wider numbers are.  Raises OSError."""
    size = struct.pack("HHHH", height & 0xFFFF, width & 0xFFFF, 0, 0)
    fcntl.ioctl(master.fileno(), termios.TIOCSWINSZ, size)


def end_of_input(master: OwnedFd) -> bytes:
    """What a user would type for the end of input: the terminal's EOF character; empty where that is disabled."""
    try:
        character = termios.tcgetattr(master.fileno())[_CC][_VEOF]
    except termios.error:  # hung up
        return b""
    raw = character if isinstance(character, bytes) else bytes([character])
    return raw.strip(b"\0")


def has_output(master: OwnedFd) -> bool:
    """Whether something can be read now."""
    poll = select.poll()
    poll.register(master.fileno(), select.POLLIN)
    return any(events & select.POLLIN for _, events in poll.poll(0))


def drains() -> Threads:
    """The threads that empty terminals in this run of the loop."""
    try:
        return _threads.get()
    except LookupError:
        made = Threads("terminals", DRAINS)
        _threads.set(made)
        return made


async def drain(master: OwnedFd, sink: OwnedFd, *, seconds: float) -> Drained:
    """Empty the terminal into `sink`, a pipe or fifo, until its last slave is closed or for `seconds`.

    Cancelling it stops the thread at once.  Both descriptors stay the caller's.  Raises OSError.
    """
    wake = OwnedFd(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
    with wake:
        # The thread's own, since it may still stand in poll(2) when the caller has gone on.
        with ExitStack() as owned:
            ends = [owned.enter_context(OwnedFd(os.dup(fd.fileno()))) for fd in (master, sink, wake)]
            release = owned.pop_all().close

        def work(job: Job[tuple[int, int, int]]) -> tuple[int, int, int]:
            source, target, woken = (end.fileno() for end in ends)
            return native.drain_console(source, target, woken, int(seconds * 1000))

        def stop(job: Job[tuple[int, int, int]]) -> None:
            os.eventfd_write(wake.fileno(), 1)

        done = await drains().run("drain", work, on_abandon=stop, at_end=release)
    return Drained(done[0], done[1], Ending(done[2]))


def is_hang_up(error: OSError) -> bool:
    """Whether `error` is how a master says that no slave is open."""
    return error.errno == errno.EIO


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    numbers = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
    return numbers.tolist()
