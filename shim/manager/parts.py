"""What every part of one manager works with; made when the manager opens, shared by its tasks."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import attrs
import trio

from shim.errors import ShimError
from shim.manager.events import end_of_task

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shim.manager.activations import Activations
    from shim.manager.bundle import Bundle
    from shim.manager.events import EventHub
    from shim.manager.eventsocket import EventSocket
    from shim.manager.launch import Launcher
    from shim.manager.layout import Layout
    from shim.manager.records import TaskExit
    from shim.model.budgets import Budgets
    from shim.wire.proto.envelope_pb2 import Envelope

LOG: Final = logging.getLogger("shim.manager")


@attrs.frozen
class Parts:
    """`nursery` holds connections, logs, watchers and jobs, and ends with the manager."""

    launcher: Launcher
    nursery: trio.Nursery
    hub: EventHub
    socket: EventSocket
    activations: Activations | None = None

    @property
    def layout(self) -> Layout:
        """Where things are."""
        return self.launcher.layout

    @property
    def budgets(self) -> Budgets:
        """How long things may take."""
        return self.launcher.budgets

    async def tell_end(self, bundle: Bundle, end: TaskExit) -> None:
        """Publish the exit and the deletion of a task whose shim does not; what it has told itself is not repeated.

        Bounded by the clean-up budget, shielded; failures are logged, for the deletion must go on.
        """
        await self._tell(bundle, *end_of_task(bundle.namespace, bundle.id, end))

    async def tell_exit(self, bundle: Bundle, end: TaskExit) -> None:
        """The same for the exit alone."""
        await self._tell(bundle, end_of_task(bundle.namespace, bundle.id, end)[0])

    async def _tell(self, bundle: Bundle, *envelopes: Envelope) -> None:
        with trio.move_on_after(self.budgets.cleanup.seconds, shield=True) as scope:
            for envelope in envelopes:
                if self.hub.has_seen(envelope):
                    continue
                try:
                    await self.socket.publish(envelope)
                except ShimError as error:
                    LOG.warning("task %s: %s was not published: %s", bundle.id, envelope.topic, error)
        if scope.cancelled_caught:
            LOG.warning("task %s: nobody took the events of its end", bundle.id)

    async def try_step(self, name: str, step: Callable[[], Awaitable[object]]) -> bool:
        """One step of a clean-up: within a clean-up budget of its own, shielded, its failure logged; whether it did."""
        with trio.move_on_after(self.budgets.cleanup.seconds, shield=True):
            try:
                await step()
            except (ShimError, OSError) as error:
                LOG.info("%s: %s", name, error)
                return False
            return True
        LOG.info("%s: not done within %g s", name, self.budgets.cleanup.seconds)
        return False
