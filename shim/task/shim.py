"""The serving shim as one tree of tasks (design section 4): reaper, publisher, server, janitor, containers, signals.

The tree ends in order: on Shutdown with nothing left, or on SIGTERM or SIGINT with containers left running.  A bug in
the reaper or the server ends the process: a shim that cannot see exits must not pretend.
"""

from __future__ import annotations

import logging
import signal
from functools import partial
from typing import Final

import attrs
import trio

from shim.kernel.children import SubreaperChildren
from shim.kernel.subreaper import become_subreaper
from shim.rpc.client import open_unix_client
from shim.rpc.publisher import ATTEMPT_SECONDS, Publisher
from shim.rpc.server import TtrpcServer
from shim.task.events import TaskEvents
from shim.task.jobs import Jobs
from shim.task.service import TaskService

_log = logging.getLogger("shim.task")

LEAVE_SECONDS: Final = 3.0
"""How long clean-up in flight may take once the shim has been told to leave (design section 4)."""


@attrs.frozen(kw_only=True)
class ShimConfig:
    """What the start command tells the serving process.

    `address` is containerd's gRPC address, `ttrpc_address` where events go (empty: nowhere), `id` the task the shim was
    started for, whose id may also name the group.
    """

    namespace: str
    id: str
    address: str
    ttrpc_address: str
    socket_path: str
    debug: bool
    bundle: str


async def serve_shim(config: ShimConfig, listener: trio.SocketListener) -> None:
    """Serve until told to leave.  The caller removes the socket's file and ends the process."""
    become_subreaper()
    children = SubreaperChildren()
    connect = partial(open_unix_client, config.ttrpc_address, dial_timeout=ATTEMPT_SECONDS)
    publisher = Publisher(config.namespace, connect if config.ttrpc_address else None)
    async with trio.open_nursery() as nursery:
        await nursery.start(children.run_reaper)
        nursery.start_soon(publisher.run_publisher)
        janitor = Jobs(nursery)
        tasks = TaskService(
            namespace=config.namespace,
            nursery=nursery,
            janitor=janitor,
            children=children,
            events=TaskEvents(publisher),
        )
        server = TtrpcServer(tasks.services())
        served = trio.Event()
        nursery.start_soon(_serve, server, listener, served)
        nursery.start_soon(_watch_signals, tasks.shutdown)
        await tasks.shutdown.wait()
        server.stop()
        with trio.move_on_after(LEAVE_SECONDS):
            await served.wait()
            await janitor.wait_idle()
        await publisher.flush()
        nursery.cancel_scope.cancel()


async def _serve(server: TtrpcServer, listener: trio.SocketListener, served: trio.Event) -> None:
    await server.serve(listener)
    served.set()


async def _watch_signals(shutdown: trio.Event) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for signum in signals:
            _log.info("leaving on signal %d; containers are left running", signum)
            shutdown.set()
