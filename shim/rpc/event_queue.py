"""What waits to be published, and what goes when there is too much of it.  No I/O, no clock.

The order of publication is a promise, so events leave at the head only.  When the queue is full something must be
dropped: the oldest that may be, and exits only when nothing else is left, since a daemon that misses an exit waits for
ever (design section 8).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from shim.wire.proto.events_ttrpc_pb2 import ForwardRequest

QUEUE_EVENTS: Final = 2048
"""Events kept: what the reference shim keeps for retry (protocol.md 5.3), a few hundred kilobytes at the most."""
EXIT_TOPIC: Final = "/tasks/exit"


@attrs.frozen(eq=False)
class Queued:
    """An event with its topic and the time (the owner's clock, seconds) after which it is not tried again."""

    topic: str
    request: ForwardRequest
    expires: float


class EventQueue:
    """The events in order, and how many were dropped since the start."""

    def __init__(self, bound: int = QUEUE_EVENTS) -> None:
        self._bound: Final = bound
        self._events: deque[Queued] = deque()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._events)

    @property
    def head(self) -> Queued:
        """The oldest; IndexError when there is none."""
        return self._events[0]

    def push(self, event: Queued, in_flight: Queued | None = None) -> Queued | None:
        """Append; the event that had to go for it, if one had, which may be the new one itself.

        The one that is being sent right now stays: dropping it would not stop it.
        """
        if len(self._events) < self._bound:
            self._events.append(event)
            return None
        candidates = [kept for kept in self._events if kept is not in_flight] + [event]
        victim = next((each for each in candidates if each.topic != EXIT_TOPIC), candidates[0])
        self.dropped += 1
        if victim is not event:
            self._events.remove(victim)
            self._events.append(event)
        return victim

    def clear(self) -> int:
        """Give up all that is left; how many that was."""
        left = len(self._events)
        self.dropped += left
        self._events.clear()
        return left

    def discard(self, event: Queued, *, delivered: bool) -> None:
        """Take an event out that was delivered or given up; one that `push` dropped meanwhile is gone already."""
        try:
            self._events.remove(event)
        except ValueError:
            return
        if not delivered:
            self.dropped += 1
