"""The long-lived process: log, signals until the loop has them, the loop itself, and its end (protocol.md 2.8).

Importing this module loads all that the server will ever use, so that an upgrade on disk never mixes two builds in one
process.  The socket's entry is removed at the end if it is still ours, and the process leaves by `os._exit`, since a
thread stuck in the kernel must not hold it (design section 4, rule 5).
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import socket
from typing import TYPE_CHECKING, Final, NoReturn

import trio

from shim.boot import detach, logs, sockets
from shim.boot.version import PROGRAM
from shim.errors import AlreadyExists, ShimError
from shim.kernel import subreaper, title
from shim.task.shim import ShimConfig, serve_shim

if TYPE_CHECKING:
    from shim.boot.flags import Flags
    from shim.boot.sockets import BoundSocket

COMMAND_NAME: Final = "containerd-shim"
"""What `ps -o comm` shows: the same for every shim, at most 15 bytes."""
GIVEN_FD: Final = 3
"""Where a caller that starts the server itself puts the listening socket (protocol.md 2.3)."""

_log = logging.getLogger(__name__)


def serve_forked(
    bound: BoundSocket,
    gate: int,
    go: bytes,
    *,
    namespace: str,
    id_: str,
    address: str,
    ttrpc_address: str,
    debug: bool,
    bundle: str,
) -> NoReturn:
    """Serve as the fork of a start command: once the gate says `go`, and not at all when it closes before."""
    config = ShimConfig(
        namespace=namespace,
        id=id_,
        address=address,
        ttrpc_address=ttrpc_address,
        socket_path=bound.path,
        debug=debug,
        bundle=bundle,
    )
    log = _prepare(config)
    if os.read(gate, len(go)) != go:
        _log.warning("start command ended before its answer was delivered, leaving")
        _leave(bound, 0)
    os.close(gate)
    _serve(config, bound, log)


def run_serve(flags: Flags) -> NoReturn:
    """Serve in the foreground, on the descriptor given or on `-socket`, with the bundle as working directory.

    Raises ShimError or OSError when there is nothing to serve on.
    """
    flags.check_identity()
    bundle = os.getcwd()
    bound = _given_socket() if not flags.socket else sockets.bind_socket(flags.socket)
    if bound is None:
        raise AlreadyExists(f"somebody serves at {flags.socket}")
    config = ShimConfig(
        namespace=flags.namespace,
        id=flags.id,
        address=flags.address,
        ttrpc_address=os.environ.get("TTRPC_ADDRESS", ""),
        socket_path=bound.path,
        debug=flags.debug,
        bundle=bundle,
    )
    detach.close_inherited(keep={bound.listener.fileno()})
    detach.forget_surroundings()
    _serve(config, bound, _prepare(config))


def _given_socket() -> BoundSocket:
    try:
        listener = socket.socket(fileno=GIVEN_FD)
        accepting = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise ShimError(f"no listening socket at descriptor {GIVEN_FD}: {error}") from error
    if not accepting or listener.family != socket.AF_UNIX:
        raise ShimError(f"descriptor {GIVEN_FD} is no listening unix socket")
    return sockets.adopt_socket(listener)


def _prepare(config: ShimConfig) -> logs.FifoHandler:
    log = logs.start_logging(
        logs.open_log(config.bundle),
        debug=config.debug,
        constant={"runtime": "io.containerd.trio.v2", "namespace": config.namespace, "shim": config.id},
    )
    faulthandler.register(signal.SIGUSR1, file=log.fd, all_threads=True, chain=False)
    subreaper.set_command_name(COMMAND_NAME)
    title.set_title(f"{PROGRAM} -namespace {config.namespace} -id {config.id} -address {config.address}")
    return log


def _serve(config: ShimConfig, bound: BoundSocket, log: logs.FifoHandler) -> NoReturn:
    status = 1
    try:
        trio.run(_serve_listener, config, bound.listener)  # noqa: TID251 - the program's one run
        status = 0
    except BaseException:  # whatever it was, it ends here, and the log is the only place left to say it
        _log.critical("shim failed", exc_info=True)
    _leave(bound, status, log)


async def _serve_listener(config: ShimConfig, listener: socket.socket) -> None:
    listener.setblocking(False)
    await serve_shim(config, trio.SocketListener(trio.socket.from_stdlib_socket(listener)))


def _leave(bound: BoundSocket, status: int, log: logs.FifoHandler | None = None) -> NoReturn:
    try:
        bound.remove()
    except (OSError, ShimError):
        _log.warning("socket could not be removed", extra={"path": bound.path}, exc_info=True)
    finally:
        if log is not None:
            log.close()
        os._exit(status)  # noqa: TID251 - the ordered end is behind us, a stuck thread must not hold the rest
