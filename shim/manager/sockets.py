"""Sockets of shims: who else uses one, and the file of one whose shim was killed.

Nobody removes that but us: the shim's `delete` command does not know it.

Only a socket on which nobody listens is removed.  Who could bind it anew is a `start` of the same task, whose bundle we
still hold; so there is no moment between the look and the removal in which a living shim could lose its socket.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING, Final

import trio

from shim.errors import InvalidArgument, ShimError
from shim.manager.bootstrap import parse_answer
from shim.rpc.dial import dial
from shim.wire.address import UnixAddress, parse_address

if TYPE_CHECKING:
    from shim.manager.bundle import Bundle

BOOTSTRAP_FILE: Final = "bootstrap.json"
DIAL_SECONDS: Final = 0.5


def is_shared(bundle: Bundle, address: str) -> bool:
    """Whether another task of the namespace has its shim at `address` too."""
    directory = os.path.dirname(bundle.path)
    for name in os.listdir(directory):
        if name == bundle.id or name.startswith("."):
            continue
        with contextlib.suppress(OSError, ShimError), open(f"{directory}/{name}/{BOOTSTRAP_FILE}", "rb") as file:
            if parse_answer(file.read()).address == address:
                return True
    return False


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
