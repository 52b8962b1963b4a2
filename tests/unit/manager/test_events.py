"""The event socket, its hand-over between managers, and what subscribers get."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import trio
from google.protobuf.empty_pb2 import Empty
from google.protobuf.timestamp_pb2 import Timestamp

from shim.errors import InvalidArgument, Unavailable
from shim.manager.events import EventFilter, EventHub, end_of_task
from shim.manager.eventsocket import EventSocket
from shim.manager.layout import Layout
from shim.manager.records import TaskExit
from shim.rpc.client import open_unix_client
from shim.wire.proto.envelope_pb2 import Envelope
from shim.wire.proto.events_ttrpc_pb2 import ForwardRequest
from shim.wire.services import EVENTS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def envelope(**changes: object) -> Envelope:
    fields = {"namespace": "ns", "topic": "/tasks/exit", "timestamp": Timestamp(seconds=1), **changes}
    return Envelope(**fields)  # type: ignore[arg-type]


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(str(tmp_path / "s"), str(tmp_path / "r"))
    made.prepare()
    return made


def event_socket(layout: Layout, on_event: Callable[[Envelope], None]) -> EventSocket:
    return EventSocket(layout, EventHub(on_event))


async def forward(layout: Layout, sent: Envelope) -> None:
    async with open_unix_client(layout.events_address) as client:
        await client.call(EVENTS, "Forward", ForwardRequest(envelope=sent), Empty)


async def forward_patiently(layout: Layout) -> None:
    """As a shim's publisher: again while nobody listens."""
    while True:
        try:
            await forward(layout, envelope())
        except* Unavailable:
            await trio.sleep(0.01)
        else:
            return


async def test_events_reach_the_callback_when_they_are_sound(layout: Layout) -> None:
    got: list[str] = []
    async with trio.open_nursery() as nursery:
        assert await nursery.start(event_socket(layout, lambda event: got.append(event.topic)).run)
        assert os.stat(layout.events_address).st_mode & 0o777 == 0o600
        async with open_unix_client(layout.events_address) as client:
            await client.call(EVENTS, "Forward", ForwardRequest(envelope=envelope()), Empty)
            for wrong in (
                envelope(namespace=""),
                envelope(namespace="a/b"),
                envelope(topic="tasks"),
                envelope(topic="/"),
                envelope(topic="/tasks//exit"),
                envelope(timestamp=None),
            ):
                with pytest.raises(InvalidArgument):
                    await client.call(EVENTS, "Forward", ForwardRequest(envelope=wrong), Empty)
        nursery.cancel_scope.cancel()
    assert got == ["/tasks/exit"]
    assert not os.path.exists(layout.events_address)


async def test_all_managers_get_an_event_once_and_another_takes_over(layout: Layout) -> None:
    got: list[str] = []
    with trio.fail_after(5):
        async with trio.open_nursery() as others:
            async with trio.open_nursery() as first:
                assert await first.start(event_socket(layout, lambda _: got.append("first")).run)
                second = event_socket(layout, lambda _: got.append("second"))
                third = event_socket(layout, lambda _: got.append("third"))
                for each in (second, third):
                    assert not await others.start(each.run)
                    await each.standing.wait()
                await forward(layout, envelope())
                while len(got) < 3:
                    await trio.testing.wait_all_tasks_blocked(0.01)
                assert sorted(got) == ["first", "second", "third"]
                await second.publish(envelope(topic="/tasks/delete"))
                while len(got) < 6:
                    await trio.testing.wait_all_tasks_blocked(0.01)
                assert sorted(got[3:]) == ["first", "second", "third"]
                got.clear()
                first.cancel_scope.cancel()
            await second.publish(envelope())  # waits for whoever comes next
            await forward_patiently(layout)
            while "second" not in got or "third" not in got:
                await trio.testing.wait_all_tasks_blocked(0.01)
            others.cancel_scope.cancel()
    assert "first" not in got
    assert not os.path.exists(layout.events_address)


async def test_a_manager_that_is_stopped_does_not_hold_up_another(layout: Layout) -> None:
    """The lock is held, and nobody answers on the socket."""
    sock = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    await sock.bind(layout.events_address)
    sock.listen(8)
    from shim.kernel.locks import open_directory_lock

    async with open_directory_lock(layout.events_lock, seconds=1), trio.open_nursery() as nursery:
        with trio.fail_after(1):
            assert not await nursery.start(event_socket(layout, lambda _: None).run)
        nursery.cancel_scope.cancel()
    sock.close()


async def test_a_socket_that_a_dead_manager_left_is_replaced(layout: Layout) -> None:
    with open(layout.events_address, "x"):
        pass
    async with trio.open_nursery() as nursery:
        assert await nursery.start(event_socket(layout, lambda _: None).run)
        nursery.cancel_scope.cancel()


async def test_a_callback_that_fails_does_not_reach_the_shim(layout: Layout) -> None:
    def fail(_: Envelope) -> None:
        raise ValueError("a bug of the callback")

    async with trio.open_nursery() as nursery:
        await nursery.start(event_socket(layout, fail).run)
        await forward(layout, envelope())
        nursery.cancel_scope.cancel()


async def test_a_subscriber_gets_what_its_filter_lets_pass() -> None:
    exit_a, delete_a = end_of_task("ns", "a", TaskExit(3, 5, 42))
    exit_b, _ = end_of_task("ns", "b", TaskExit(3, 5, 43))
    elsewhere, _ = end_of_task("other", "a", TaskExit(3, 5, 44))
    wanted = [
        (EventFilter(), [exit_a, delete_a, exit_b, elsewhere]),
        (EventFilter(namespace="ns"), [exit_a, delete_a, exit_b]),
        (EventFilter(topics=("/tasks/delete",)), [delete_a]),
        (EventFilter(topics=("/tasks",)), [exit_a, delete_a, exit_b, elsewhere]),
        (EventFilter(topics=("/task",)), []),
        (EventFilter(namespace="ns", container="a"), [exit_a, delete_a]),
    ]
    for each, passed in wanted:
        hub = EventHub(lambda _: None)
        with hub.subscribe(each) as events:
            for sent in (exit_a, delete_a, exit_b, elsewhere):
                hub.dispatch(sent)
            assert [await anext(events) for _ in passed] == passed
            with trio.move_on_after(0.01) as scope:
                await anext(events)
            assert scope.cancelled_caught


async def test_a_subscriber_that_is_slow_loses_the_oldest_and_is_told(autojump_clock: trio.testing.MockClock) -> None:
    hub = EventHub(lambda _: None)
    with hub.subscribe(EventFilter(), bound=2) as slow, hub.subscribe(EventFilter()) as quick:
        for number in range(5):
            hub.dispatch(envelope(topic=f"/n{number}"))
        assert [(await anext(slow)).topic for _ in range(2)] == ["/n3", "/n4"]
        assert slow.missed == 3
        assert [(await anext(quick)).topic for _ in range(5)] == [f"/n{number}" for number in range(5)]
        assert quick.missed == 0


def test_the_same_end_is_known_when_it_comes_again() -> None:
    hub = EventHub(lambda _: None)
    gone, deleted = end_of_task("ns", "a", TaskExit(3, 5, 42))
    hub.dispatch(gone)
    again, _ = end_of_task("ns", "a", TaskExit(9, 6, 42))
    other, _ = end_of_task("ns", "a", TaskExit(3, 5, 43))
    assert (hub.has_seen(again), hub.has_seen(deleted), hub.has_seen(other)) == (True, False, False)


async def test_the_end_of_a_process_is_told_once_whoever_tells_it() -> None:
    got: list[Envelope] = []
    hub = EventHub(got.append)
    gone, deleted = end_of_task("ns", "a", TaskExit(3, 5, 42))
    again, _ = end_of_task("ns", "a", TaskExit(9, 6, 42))
    nameless, _ = end_of_task("ns", "a", TaskExit(9, 6, 0))  # a pid that nobody knows is the identity of nothing
    for sent in (gone, again, deleted, gone, nameless, nameless):
        hub.dispatch(sent)
    assert got == [gone, deleted, nameless, nameless]
