"""`ctr events` of a daemon, line by line."""

from __future__ import annotations

import json
import subprocess
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs
import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.system.harness.daemons import Daemon


@attrs.frozen
class Line:
    """One event as the daemon passed it on."""

    topic: str
    fields: dict[str, object]


@attrs.define
class DaemonEvents:
    """Everything that came so far."""

    lines: list[Line] = attrs.field(factory=list)
    _changed: trio.Condition = attrs.field(factory=trio.Condition)

    def topics(self, container_id: str) -> list[str]:
        """The topics of one task's events, in order."""
        return [line.topic for line in self.lines if line.fields.get("container_id") == container_id]

    def of(self, container_id: str, topic: str) -> list[dict[str, object]]:
        """The events of one task and topic."""
        return [
            line.fields
            for line in self.lines
            if line.topic == topic and line.fields.get("container_id") == container_id
        ]

    async def wait_for(self, container_id: str, topic: str, *, timeout: float = 10) -> None:
        """Return when such an event came; TooSlowError after `timeout` seconds."""
        with trio.move_on_after(timeout):
            async with self._changed:
                while topic not in self.topics(container_id):
                    await self._changed.wait()
                return
        raise trio.TooSlowError(f"no {topic} of {container_id}, only {self.topics(container_id)}")

    async def read(self, output: trio.abc.ReceiveStream) -> None:
        """Take lines until the other end is closed."""
        rest = b""
        async for chunk in output:
            *whole, rest = (rest + chunk).split(b"\n")
            async with self._changed:
                self.lines.extend(_parsed(line.decode()) for line in whole if b" /" in line)
                self._changed.notify_all()


def _parsed(text: str) -> Line:
    """Date, time, offset, zone, namespace, topic and a JSON object."""
    head, _, body = text.partition(" {")
    return Line(head.split()[-1], json.loads("{" + body) if body else {})


@asynccontextmanager
async def open_events(daemon: Daemon) -> AsyncIterator[DaemonEvents]:
    """Subscribe; ready when an event made for the purpose came through."""
    events = DaemonEvents()
    process = await trio.lowlevel.open_process(
        daemon.ctr_command("events"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(events.read, process.stdout)
            await _until_subscribed(daemon, events)
            yield events
            nursery.cancel_scope.cancel()
    finally:
        process.kill()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
            await process.wait()
        await process.stdout.aclose()


async def _until_subscribed(daemon: Daemon, events: DaemonEvents) -> None:
    """ctr does not say when it is subscribed, so namespaces are made until one is told."""
    with trio.fail_after(10):
        number = 0
        while not events.lines:
            number += 1
            await daemon.ctr_ok("namespaces", "create", f"probe{number}")
            await trio.lowlevel.checkpoint()
