"""Connections to the addresses of protocol.md 1.7."""

from __future__ import annotations

import errno
import socket
from typing import Final

import trio

from shim.errors import DeadlineExceeded, Unavailable
from shim.wire.address import HybridVsockAddress, UnixAddress, VsockAddress, parse_address

# containerd's own bound for reaching a shim, seconds.
DIAL_TIMEOUT: Final = 100.0
# How often a socket whose backlog is full is tried again, seconds.
RETRY: Final = 0.01
HYBRID_ATTEMPTS: Final = 10


async def dial(address: str, *, dial_timeout: float = DIAL_TIMEOUT) -> trio.SocketStream:
    """A connected stream; the caller closes it.

    Raises InvalidArgument for an address of no known form, Unavailable when nobody answers there, DeadlineExceeded
    after `dial_timeout` seconds.
    """
    parsed = parse_address(address)
    with trio.move_on_after(dial_timeout):
        try:
            match parsed:
                case UnixAddress(path):
                    return await _connect(socket.AF_UNIX, path)
                case VsockAddress(cid, port):
                    return await _connect(socket.AF_VSOCK, (cid, port))
                case HybridVsockAddress(path, port):
                    return await _connect_hybrid(path, port, dial_timeout / HYBRID_ATTEMPTS)
        except OSError as error:
            raise Unavailable(f"dial {address}: {error.strerror or error}") from error
    raise DeadlineExceeded(f"dial {address}: no connection within {dial_timeout:g} s")


async def _connect(family: int, target: str | tuple[int, int]) -> trio.SocketStream:
    """Connects, again while the listener's backlog is full.

    The kernel refuses a unix connect at once then; Trio takes that for a connect under way, and the socket for
    connected.  Asking for the peer's name tells.
    """
    while True:
        sock = trio.socket.socket(family, socket.SOCK_STREAM)
        try:
            await sock.connect(target)
            sock.getpeername()
        except OSError as error:
            sock.close()
            if error.errno != errno.ENOTCONN:
                raise
        except BaseException:
            sock.close()
            raise
        else:
            return trio.SocketStream(sock)
        await trio.sleep(RETRY)


async def _connect_hybrid(path: str, port: int, pause: float) -> trio.SocketStream:
    """Asks the monitor behind a unix socket for a port of its machine, again when it hangs up: the port may come."""
    while True:
        stream = await _connect(socket.AF_UNIX, path)
        try:
            await stream.send_all(f"CONNECT {port}\n".encode())
            line = bytearray()
            # One byte at a time: what follows the line belongs to the connection.
            while not line.endswith(b"\n") and (byte := await stream.receive_some(1)):
                line += byte
        except trio.BrokenResourceError:
            line = bytearray()
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        if b"OK" in line:
            return stream
        await trio.aclose_forcefully(stream)
        if line:
            raise Unavailable(f"port {port} of {path}: {line.decode(errors='replace').strip()}")
        await trio.sleep(pause)
