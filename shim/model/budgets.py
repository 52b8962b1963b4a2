"""Every budget of time that the two halves keep, with the key under which an administrator can change it.

Invariants: a budget is a positive, finite number of seconds and never "no limit"; whoever gives up because of one says
so with its key (design section 12), so that the reader of the message knows what to turn.  No clock is read here:
these are numbers, the waiting is the caller's.  Refuses durations that Go's notation does not know, and unknown keys.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

import attrs

from shim.errors import DeadlineExceeded, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(h|ms|us|µs|ns|m|s)", re.ASCII)


def parse_duration(text: str) -> float:
    """Seconds in a duration as Go writes it (`5s`, `1m30s`, `250ms`); InvalidArgument for anything else or nothing."""
    parts = list(_PART.finditer(text))
    if not parts or "".join(part.group() for part in parts) != text:
        raise InvalidArgument(f"{text!r:.40} is no duration: write it as 5s, 1m30s or 250ms")
    return math.fsum(float(part.group(1)) * _UNITS[part.group(2)] for part in parts)


def format_duration(seconds: float) -> str:
    """`seconds` for a message: `5 s`, `250 ms`, `5 min`."""
    if seconds >= 60 and seconds % 60 == 0:
        return f"{seconds / 60:g} min"
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:g} ms"


def _check_seconds(instance: object, attribute: attrs.Attribute[float], value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise InvalidArgument(f"a budget must be longer than nothing and end some time, not {value} s")


@attrs.frozen
class Budget:
    """So many seconds for one thing, under the key that changes it."""

    key: str
    seconds: float = attrs.field(validator=_check_seconds)

    def exceeded(self, what: str) -> DeadlineExceeded:
        """The error for `what` did not happen in time, as in `no answer to Connect within 5 s (KEY)`."""
        return DeadlineExceeded(f"{what} within {format_duration(self.seconds)} ({self.key})")


@attrs.frozen
class Budgets:
    """All budgets of design section 12; keys beginning with `io.containerd` are containerd's own."""

    load: Budget = attrs.field(default=Budget("io.containerd.timeout.shim.load", 5.0), kw_only=True)
    """Loading one shim after a restart, everything included."""
    cleanup: Budget = attrs.field(default=Budget("io.containerd.timeout.shim.cleanup", 5.0), kw_only=True)
    """Cleaning up after a shim that was given up on; detached from the caller, shielded."""
    shutdown: Budget = attrs.field(default=Budget("io.containerd.timeout.shim.shutdown", 3.0), kw_only=True)
    """The Shutdown call, and the wait for the shim to hang up after it."""
    state: Budget = attrs.field(default=Budget("io.containerd.timeout.task.state", 2.0), kw_only=True)
    """State as the manager asks it."""
    start: Budget = attrs.field(default=Budget("io.containerd.timeout.shim.start", 30.0), kw_only=True)
    """The shim's start command, until its answer was read and its socket could be dialled."""
    info: Budget = attrs.field(default=Budget("shim.timeout.info", 10.0), kw_only=True)
    """A shim's `-info`, whether asked when a manager opens or when a task needs it."""
    lock: Budget = attrs.field(default=Budget("shim.timeout.lock", 60.0), kw_only=True)
    """Waiting while another manager changes the same task: longer than a start and its clean-up take."""
    drain: Budget = attrs.field(default=Budget("shim.timeout.drain", 10.0), kw_only=True)
    """Waiting in Delete until a container's output is copied."""
    logger_ready: Budget = attrs.field(default=Budget("shim.timeout.logger.ready", 10.0), kw_only=True)
    """A logger program's ready signal."""
    logger_flush: Budget = attrs.field(default=Budget("shim.timeout.logger.flush", 12.0), kw_only=True)
    """A logger program's end after its input ended."""
    event_attempt: Budget = attrs.field(default=Budget("shim.timeout.event.attempt", 5.0), kw_only=True)
    """One attempt to hand an event over."""
    event_kept: Budget = attrs.field(default=Budget("shim.timeout.event.kept", 300.0), kw_only=True)
    """How long an event is tried again."""

    def with_durations(self, durations: Mapping[str, str]) -> Budgets:
        """These budgets with those named in `durations` (key -> Go duration) replaced.

        InvalidArgument names an unknown key or a value that is no duration.
        """
        by_key = {budget.key: name for name, budget in self._named().items()}
        changed: dict[str, Budget] = {}
        for key, text in durations.items():
            name = by_key.get(key)
            if name is None:
                raise InvalidArgument(f"no budget is called {key!r:.80}: known are {', '.join(sorted(by_key))}")
            try:
                changed[name] = Budget(key, parse_duration(text))
            except InvalidArgument as error:
                raise InvalidArgument(f"{key}: {error.message}") from error
        return Budgets(**{**self._named(), **changed})

    def _named(self) -> dict[str, Budget]:
        return {field.name: getattr(self, field.name) for field in attrs.fields(Budgets)}
