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
from shim.model.grouping import group_id, spec_annotations
from shim.rpc.dial import dial
from shim.wire.address import UnixAddress, parse_address

if TYPE_CHECKING:
    from shim.manager.bundle import Bundle

BOOTSTRAP_FILE: Final = "bootstrap.json"
DIAL_SECONDS: Final = 0.5


def is_shared(bundle: Bundle, address: str) -> bool:
    """Whether another task of the namespace has its shim at `address` too, or may be about to.

    A bundle that does not say yet where its shim is, and names the same group, is a member that is being created.
    """
    directory = os.path.dirname(bundle.path)
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return False
    group = group_of(bundle.path, bundle.id)
    for name in names:
        if name == bundle.id or name.startswith("."):
            continue
        try:
            with open(f"{directory}/{name}/{BOOTSTRAP_FILE}", "rb") as file:
                shared = parse_answer(file.read()).address == address
        except FileNotFoundError:
            shared = group_of(f"{directory}/{name}", name) == group
        except (OSError, ShimError):
            shared = False
        if shared:
            return True
    return False


def group_of(path: str, task_id: str) -> str:
    """The group that the bundle at `path` names in its config.json; the task alone when it names none."""
    try:
        with open(f"{path}/config.json", "rb") as file:
            return group_id(spec_annotations(file.read()), task_id)
    except (OSError, ShimError):
        return task_id


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
