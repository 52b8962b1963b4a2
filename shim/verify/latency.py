"""How long answers took: the figures that are shown, and a probe that keeps asking State.

The probe asks at a steady pace whether or not the earlier ones were answered, as independent callers would.  One that
waited for each answer would ask hardly at all while the shim is stuck, and its median would show nothing of it.

Invariants: a question that got no answer in its time counts with that time and as timed out; questions are bounded by
their number a second and their time; the connection is one of its own, so nothing else is in the way of an answer.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import attrs
import trio

from shim.errors import ConnectionClosed, DeadlineExceeded, ShimError
from shim.wire.proto.task_pb2 import StateRequest, StateResponse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shim.manager.connection import ShimConnection
    from shim.model.budgets import Budget

PERIOD_SECONDS: Final = 0.01


@attrs.frozen
class Figures:
    """Seconds: median, 99th percentile and worst of `count` answers, of which `timed_out` never came (0: no answer)."""

    count: int = 0
    timed_out: int = 0
    p50: float = 0.0
    p99: float = 0.0
    worst: float = 0.0


@attrs.frozen
class Sample:
    """One question: when it was asked (trio's clock), and after how many seconds it was answered or given up."""

    asked_at: float
    seconds: float
    timed_out: bool = False


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest of the `ordered` values that at least `share` of them do not exceed; 0 for none."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def figures_of(samples: Sequence[Sample]) -> Figures:
    """The figures of all `samples`."""
    ordered = sorted(sample.seconds for sample in samples)
    timed_out = sum(sample.timed_out for sample in samples)
    return Figures(
        len(ordered), timed_out, percentile(ordered, 0.5), percentile(ordered, 0.99), ordered[-1] if ordered else 0.0
    )


class StateProbe:
    """Asks for the state of one task on a connection of its own."""

    def __init__(self, shim: ShimConnection, task_id: str, budget: Budget) -> None:
        self.samples: Final[list[Sample]] = []
        self._shim: Final = shim
        self._request: Final = StateRequest(id=task_id)
        self._budget: Final = budget
        self._open: Final[dict[int, float]] = {}
        self._number = 0
        self._stop = trio.CancelScope()
        self._answered = trio.Event()

    @property
    def oldest_asked_at(self) -> float:
        """When the oldest open question was asked (trio's clock); never (`math.inf`) when none is open."""
        return min(list(self._open.values()), default=math.inf)

    def figures(self) -> Figures:
        """Of all that is known by now."""
        return figures_of(list(self.samples))

    async def ask(self) -> None:
        """Ask once.  A shim that hung up, or answers with an error, has answered nothing of interest."""
        self._number += 1
        number, asked_at = self._number, trio.current_time()
        self._open[number] = asked_at
        try:
            await self._shim.call("State", self._request, StateResponse, self._budget)
        except ConnectionClosed:
            return
        except DeadlineExceeded:
            self.samples.append(Sample(asked_at, self._budget.seconds, timed_out=True))
        except ShimError:  # NotFound, once it was deleted: an answer all the same
            self.samples.append(Sample(asked_at, trio.current_time() - asked_at))
        else:
            self.samples.append(Sample(asked_at, trio.current_time() - asked_at))
        finally:
            del self._open[number]

    async def run_probe(self, period: float = PERIOD_SECONDS) -> None:
        """Ask every `period` seconds until `stop`."""
        async with trio.open_nursery() as nursery:
            with self._stop:
                due = trio.current_time()
                while True:
                    nursery.start_soon(self.ask)
                    due = max(due + period, trio.current_time())
                    await trio.sleep_until(due)
        self._answered.set()

    async def wait_answered(self) -> None:
        """After `stop`: until the last question was answered or given up."""
        await self._answered.wait()

    def stop(self) -> None:
        """Ask no more."""
        self._stop.cancel()
