"""The socket file of a shim that was killed: nobody removes it but us, its `delete` command does not know it.

Only a socket on which nobody listens is removed.  Who could bind it anew is a `start` of the same task, whose bundle we
still hold; so there is no moment between the look and the removal in which a living shim could lose its socket.
"""

from __future__ import annotations

import contextlib
import os
import stat

import trio

from shim.errors import InvalidArgument, ShimError
from shim.rpc.dial import dial
from shim.wire.address import UnixAddress, parse_address

DIAL_SECONDS = 0.5


async def remove_dead_socket(address: str) -> bool:
    """Remove the socket file of `address` when it is one and nobody listens; whether it was removed."""
    try:
        parsed = parse_address(address)
    except InvalidArgument:
        return False
    if not isinstance(parsed, UnixAddress) or parsed.path.startswith("\0"):
        return False
    try:
        if not stat.S_ISSOCK(os.lstat(parsed.path).st_mode):
            return False
    except OSError:
        return False
    try:
        stream = await dial(address, dial_timeout=DIAL_SECONDS)
    except ShimError as error:
        if not isinstance(error.__cause__, ConnectionRefusedError):
            return False
    else:
        await trio.aclose_forcefully(stream)
        return False
    with contextlib.suppress(OSError):
        os.unlink(parsed.path)
        return True
    return False
