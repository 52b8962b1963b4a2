"""Events to a daemon that is there, absent, slow, unwilling or gone (design section 8; field fault E5).

All over memory streams and an autojump clock, so that minutes pass at once.
"""

from __future__ import annotations

import itertools
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
from google.protobuf.empty_pb2 import Empty

from shim.errors import InvalidArgument, ResourceExhausted, ShimError, Unavailable
from shim.rpc import context
from shim.rpc.client import Client, open_client
from shim.rpc.event_queue import EXIT_TOPIC
from shim.rpc.publisher import Publisher
from shim.rpc.server import Service, TtrpcServer
from shim.wire.frames import MAX_LENGTH
from shim.wire.proto.events_pb2 import TaskExit, TaskOOM, TaskStart
from shim.wire.services import EVENTS
from shim.wire.times import nanoseconds
from tests.fakes.echo import MemoryListener

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from google.protobuf.message import Message
    from trio.testing import MockClock

    from shim.wire.proto.envelope_pb2 import Envelope
    from shim.wire.proto.events_ttrpc_pb2 import ForwardRequest


class Sink:
    """A daemon's end: `refuse` is raised for its topics, `stalls` makes each call hang, `absent` each dial fail."""

    def __init__(self) -> None:
        self.absent = False
        self.dial_hangs = False
        self.stalls = False
        self.refuse: dict[str, ShimError] = {}
        self.tried: list[tuple[float, Envelope]] = []
        self.got: list[str] = []
        self.dials: list[float] = []
        self.deadlines: list[float] = []
        self.server = TtrpcServer([Service(EVENTS, {"Forward": self.forward})])
        self.listener = MemoryListener()

    async def forward(self, request: ForwardRequest) -> Empty:
        envelope = request.envelope
        assert context.namespace.get() == envelope.namespace
        self.tried.append((trio.current_time(), envelope))
        self.deadlines.append(trio.current_effective_deadline() - trio.current_time())
        if self.stalls:
            await trio.sleep_forever()
        error = self.refuse.get(envelope.topic)
        if error is not None:
            raise error
        self.got.append(envelope.topic)
        return Empty()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Client]:
        self.dials.append(trio.current_time())
        if self.dial_hangs:
            await trio.sleep_forever()
        if self.absent:
            raise Unavailable("nobody")
        async with open_client(self.listener.connect()) as client:
            yield client

    async def hang_up(self) -> None:
        """Loses every connection, as a daemon that restarts."""
        for connection in self.server.connections:
            connection.stop(0)
        await trio.testing.wait_all_tasks_blocked()

    def tries(self) -> Counter[str]:
        return Counter(envelope.topic for _, envelope in self.tried)


@asynccontextmanager
async def open_sink(*, bound: int = 128) -> AsyncIterator[tuple[Sink, Publisher]]:
    sink = Sink()
    async with trio.open_nursery() as nursery:
        publisher = Publisher("ns", sink.connect, bound=bound)
        nursery.start_soon(sink.server.serve, sink.listener)
        nursery.start_soon(publisher.run_publisher)
        yield sink, publisher
        nursery.cancel_scope.cancel()


def start(publisher: Publisher, *topics: str) -> None:
    for topic in topics:
        publisher.publish(topic, TaskStart(container_id="c"))


async def test_events_arrive_in_order_in_their_envelope(autojump_clock: MockClock) -> None:
    async with open_sink() as (sink, publisher):
        events: list[tuple[str, Message]] = [
            ("/tasks/start", TaskStart(container_id="c", pid=7)),
            ("/tasks/oom", TaskOOM(container_id="c")),
            (EXIT_TOPIC, TaskExit(container_id="c", exit_status=3)),
        ]
        for topic, event in events:
            publisher.publish(topic, event)
        await trio.sleep(1)
        envelopes = [envelope for _, envelope in sink.tried]
        assert [envelope.topic for envelope in envelopes] == [topic for topic, _ in events]
        assert envelopes[0].namespace == "ns"
        assert envelopes[0].event.type_url == "containerd.events.TaskStart"
        assert TaskExit.FromString(envelopes[2].event.value).exit_status == 3
        assert (nanoseconds(envelopes[0].timestamp) or 0) > 10**18
        assert len(sink.dials) == 1
        assert all(deadline == pytest.approx(5, abs=0.1) for deadline in sink.deadlines)
        assert (publisher.queued, publisher.dropped) == (0, 0)


async def test_e5_a_sink_that_comes_back_gets_everything_in_order_with_the_first_time(
    autojump_clock: MockClock,
) -> None:
    async with open_sink() as (sink, publisher):
        sink.absent = True
        start(publisher, "/a")
        publisher.publish(EXIT_TOPIC, TaskExit())
        await trio.sleep(8)
        assert publisher.queued == 2
        pauses = [later - earlier for earlier, later in itertools.pairwise(sink.dials)]
        assert pauses == sorted(pauses)
        assert 0.05 <= pauses[0] <= 0.2
        sink.absent = False
        await trio.sleep(5.1)
        assert sink.got == ["/a", EXIT_TOPIC]


async def test_a_retried_event_keeps_the_time_of_its_first_attempt(autojump_clock: MockClock) -> None:
    async with open_sink() as (sink, publisher):
        sink.refuse["/a"] = Unavailable("not now")
        start(publisher, "/a")
        await trio.sleep(3)
        assert len(sink.tried) > 2
        assert len({nanoseconds(envelope.timestamp) for _, envelope in sink.tried}) == 1


@pytest.mark.parametrize("error", [Unavailable("x"), ResourceExhausted("x")])
async def test_a_failure_that_may_pass_blocks_those_behind(autojump_clock: MockClock, error: ShimError) -> None:
    async with open_sink() as (sink, publisher):
        sink.refuse["/a"] = error
        start(publisher, "/a", "/b")
        await trio.sleep(30)
        assert sink.got == []
        sink.refuse.clear()
        await trio.sleep(6)
        assert sink.got == ["/a", "/b"]
        assert publisher.dropped == 0


async def test_any_other_refusal_drops_that_event_and_goes_on(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_sink() as (sink, publisher):
        sink.refuse["/a"] = InvalidArgument("bad topic")
        start(publisher, "/a", "/b")
        await trio.sleep(1)
        assert sink.got == ["/b"]
        assert sink.tries()["/a"] == 1
        assert publisher.dropped == 1
        assert len([record for record in caplog.records if "/a" in record.getMessage()]) == 1


async def test_a_sink_that_stalls_is_given_five_seconds_a_time_and_a_new_connection(autojump_clock: MockClock) -> None:
    async with open_sink() as (sink, publisher):
        sink.stalls = True
        start(publisher, "/a", "/b")
        await trio.sleep(17)
        times = [time for time, _ in sink.tried]
        assert len(times) >= 3
        assert all(later - earlier >= 5 for earlier, later in itertools.pairwise(times))
        assert len(sink.dials) == len(times)
        sink.stalls = False
        await trio.sleep(11)
        assert sink.got == ["/a", "/b"]


async def test_a_dial_that_hangs_is_given_five_seconds(autojump_clock: MockClock) -> None:
    async with open_sink() as (sink, publisher):
        sink.dial_hangs = True
        start(publisher, "/a")
        await trio.sleep(12)
        assert len(sink.dials) >= 2
        sink.dial_hangs = False
        await trio.sleep(11)
        assert sink.got == ["/a"]


async def test_a_connection_lost_while_idle_is_made_again_at_once(autojump_clock: MockClock) -> None:
    async with open_sink() as (sink, publisher):
        start(publisher, "/a")
        await trio.sleep(1)
        await sink.hang_up()
        start(publisher, "/b")
        await trio.sleep(0.2)
        assert sink.got == ["/a", "/b"]


async def test_an_event_in_flight_when_the_connection_is_lost_is_sent_again(autojump_clock: MockClock) -> None:
    async with open_sink() as (sink, publisher):
        sink.stalls = True
        start(publisher, "/a")
        await trio.sleep(1)
        await sink.hang_up()
        sink.stalls = False
        await trio.sleep(1)
        assert sink.got == ["/a"]
        assert sink.tries()["/a"] == 2


async def test_an_event_is_kept_for_five_minutes(autojump_clock: MockClock) -> None:
    async with open_sink() as (sink, publisher):
        sink.absent = True
        start(publisher, "/a")
        await trio.sleep(200)
        start(publisher, "/b")
        assert publisher.queued == 2
        await trio.sleep(101)
        assert publisher.queued == 1
        sink.absent = False
        await trio.sleep(6)
        assert sink.got == ["/b"]
        assert publisher.dropped == 1


async def test_a_full_queue_drops_the_oldest_that_is_no_exit(autojump_clock: MockClock) -> None:
    async with open_sink(bound=4) as (sink, publisher):
        sink.absent = True
        start(publisher, EXIT_TOPIC, "/a", "/b")
        await trio.sleep(1)
        start(publisher, EXIT_TOPIC, "/c", EXIT_TOPIC, EXIT_TOPIC)
        assert (publisher.queued, publisher.dropped) == (4, 3)
        start(publisher, "/d")
        assert (publisher.queued, publisher.dropped) == (4, 4)
        sink.absent = False
        await trio.sleep(6)
        assert sink.got == [EXIT_TOPIC] * 4


async def test_of_exits_only_the_oldest_goes(autojump_clock: MockClock) -> None:
    async with open_sink(bound=2) as (sink, publisher):
        sink.absent = True
        for number in range(3):
            publisher.publish(EXIT_TOPIC, TaskExit(pid=number))
        sink.absent = False
        await trio.sleep(6)
        assert [TaskExit.FromString(envelope.event.value).pid for _, envelope in sink.tried] == [1, 2]


async def test_an_event_on_its_way_is_not_dropped_for_room(autojump_clock: MockClock) -> None:
    async with open_sink(bound=2) as (sink, publisher):
        sink.stalls = True
        start(publisher, "/a", "/b")
        await trio.sleep(1)
        start(publisher, "/c")
        sink.stalls = False
        await trio.sleep(10)
        assert sink.got == ["/a", "/c"]
        assert publisher.dropped == 1


async def test_an_event_that_can_never_be_sent_blocks_nobody(autojump_clock: MockClock) -> None:
    async with open_sink() as (sink, publisher):
        publisher.publish("/a", TaskOOM(container_id="x" * MAX_LENGTH))
        start(publisher, "/b")
        await trio.sleep(1)
        assert sink.got == ["/b"]
        assert publisher.dropped == 1


async def test_without_address_events_are_dropped_and_counted(autojump_clock: MockClock) -> None:
    publisher = Publisher("ns", None)
    start(publisher, "/a", "/b")
    assert (publisher.queued, publisher.dropped) == (0, 2)
    with trio.fail_after(1):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publisher.run_publisher)
            await publisher.flush()
            nursery.cancel_scope.cancel()


async def timed_flush(publisher: Publisher) -> float:
    start_time = trio.current_time()
    await publisher.flush()
    return trio.current_time() - start_time


async def test_a_flush_of_nothing_takes_no_time(autojump_clock: MockClock) -> None:
    async with open_sink() as (_, publisher):
        assert await timed_flush(publisher) == 0


async def test_a_flush_sends_what_is_queued(autojump_clock: MockClock) -> None:
    async with open_sink() as (sink, publisher):
        start(publisher, "/a", "/b", "/c")
        assert await timed_flush(publisher) < 0.1
        assert sink.got == ["/a", "/b", "/c"]


async def test_a_flush_ends_a_pause_and_tries_each_once(autojump_clock: MockClock) -> None:
    async with open_sink() as (sink, publisher):
        sink.absent = True
        start(publisher, "/a", "/b", "/c")
        await trio.sleep(30)
        dials = len(sink.dials)
        assert await timed_flush(publisher) <= 2
        assert len(sink.dials) - dials <= 3
        assert (publisher.queued, publisher.dropped) == (0, 3)


async def test_a_flush_to_a_sink_that_came_back_delivers(autojump_clock: MockClock) -> None:
    async with open_sink() as (sink, publisher):
        sink.absent = True
        start(publisher, "/a", "/b", "/c")
        await trio.sleep(30)
        sink.absent = False
        assert await timed_flush(publisher) < 0.1
        assert sink.got == ["/a", "/b", "/c"]
        assert publisher.dropped == 0


@pytest.mark.parametrize("waited", [0.0, 1.0])
async def test_a_flush_to_a_sink_that_stalls_gives_each_its_attempt(autojump_clock: MockClock, waited: float) -> None:
    async with open_sink() as (sink, publisher):
        sink.stalls = True
        start(publisher, "/a", "/b", "/c", "/d")
        if waited:
            await trio.sleep(waited)
        assert await timed_flush(publisher) == pytest.approx(2, abs=0.05)
        assert sink.tries() == {"/a": 1, "/b": 1, "/c": 1, "/d": 1}
        assert (publisher.queued, publisher.dropped) == (0, 4)


async def test_a_flush_tries_no_event_twice(autojump_clock: MockClock) -> None:
    async with open_sink() as (sink, publisher):
        sink.refuse["/a"] = Unavailable("x")
        sink.refuse["/b"] = InvalidArgument("x")
        start(publisher, "/a", "/b", "/c")
        assert await timed_flush(publisher) < 0.1
        assert sink.got == ["/c"]
        assert sink.tries() == {"/a": 1, "/b": 1, "/c": 1}
        assert publisher.dropped == 2


async def test_a_flush_to_a_dial_that_hangs_ends_in_time(autojump_clock: MockClock) -> None:
    async with open_sink() as (sink, publisher):
        sink.dial_hangs = True
        start(publisher, "/a", "/b")
        await trio.sleep(1)
        assert await timed_flush(publisher) <= 2.05
        assert (publisher.queued, publisher.dropped) == (0, 2)
