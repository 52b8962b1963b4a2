"""The figures of many answers, and the probe that asks for them at a steady pace."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
import trio
import trio.testing

from shim.errors import NotFound
from shim.model.budgets import Budget
from shim.verify.latency import Figures, Sample, StateProbe, figures_of, percentile
from shim.wire.proto.task_pb2 import StateResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    from shim.manager.connection import ShimConnection

BUDGET = Budget("io.containerd.timeout.task.state", 2.0)


def test_percentiles_are_values_that_were_seen() -> None:
    hundred = [float(number) for number in range(1, 101)]
    assert [percentile(hundred, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1.0, 50.0, 99.0, 100.0]
    assert percentile([7.0], 0.5) == 7.0
    assert percentile([], 0.5) == 0.0


def test_a_question_without_an_answer_counts_with_its_time() -> None:
    samples = [Sample(0, 0.001), Sample(1, 2.0, timed_out=True), Sample(2, 0.003)]
    assert figures_of(samples) == Figures(count=3, timed_out=1, p50=0.003, p99=2.0, worst=2.0)
    assert figures_of([]) == Figures()


class Shim:
    """Answers each State after as many seconds as it is told."""

    def __init__(self, delay: Callable[[int], float], error: Exception | None = None) -> None:
        self.asked: list[float] = []
        self._delay = delay
        self._error = error

    async def call(self, method: str, request: object, response: object, budget: Budget) -> StateResponse:
        self.asked.append(trio.current_time())
        with trio.move_on_after(budget.seconds):
            await trio.sleep(self._delay(len(self.asked)))
            if self._error is not None:
                raise self._error
            return StateResponse()
        raise budget.exceeded("no answer to State")

    def probe(self) -> StateProbe:
        return StateProbe(cast("ShimConnection", self), "one", BUDGET)


async def test_it_asks_on_while_nothing_is_answered(autojump_clock: trio.testing.MockClock) -> None:
    shim = Shim(lambda number: 1000.0 if number > 10 else 0.0)
    probe = shim.probe()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(probe.run_probe, 0.1)
        await trio.sleep(2.95)
        assert trio.current_time() - probe.oldest_asked_at == pytest.approx(1.95)
        probe.stop()
        await probe.wait_answered()
    assert [round(time - shim.asked[0], 3) for time in shim.asked] == [round(number / 10, 3) for number in range(30)]
    figures = probe.figures()
    assert (figures.count, figures.timed_out, figures.p50, figures.worst) == (30, 20, 2.0, 2.0)
    assert probe.oldest_asked_at == float("inf")


async def test_an_error_is_an_answer_too(autojump_clock: trio.testing.MockClock) -> None:
    probe = Shim(lambda number: 0.5, NotFound("container not created")).probe()
    await probe.ask()
    assert [(sample.seconds, sample.timed_out) for sample in probe.samples] == [(0.5, False)]
