"""Each end is told once, to whom it belongs."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
import trio

from shim.errors import NotFound
from shim.kernel import procfs
from shim.kernel.children import KEPT_EXITS, Child, Command, Exit, SubreaperChildren, open_children
from shim.kernel.commands import run

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 20.0


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE):
        while not condition():
            await trio.lowlevel.checkpoint()


async def orphan(children: SubreaperChildren, script: str) -> int:
    """The pid of a grandchild whose parent has ended."""
    # An echo of the shell's own would let the shell reap the grandchild, when that has ended by then.
    completed = await run(children, Command(["/bin/sh", "-c", f"sh -c '{script}' & exec echo $!"]))
    return int(completed.stdout)


async def test_many_may_wait_and_a_cancelled_wait_costs_the_others_nothing(children: SubreaperChildren) -> None:
    child = children.spawn(Command(["/bin/sleep", "1000"]))
    ends: list[Exit] = []

    async def wait() -> None:
        ends.append(await child.wait())

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(wait)
            with trio.CancelScope() as scope:
                scope.cancel()
                await child.wait()
            assert child.exit is None
            child.send_signal(signal.SIGTERM)
    assert {(end.pid, end.status, end.signal) for end in ends} == {(child.pid, 143, signal.SIGTERM)}
    assert len(ends) == 3
    assert await child.wait() == child.exit


async def test_a_signal_to_an_ended_child_is_not_found(children: SubreaperChildren) -> None:
    child = children.spawn(Command(["/bin/true"]))
    await child.wait()
    assert child.pidfd == -1
    with pytest.raises(NotFound, match="process already finished"):
        child.send_signal(signal.SIGKILL)


async def test_two_hundred_children_at_once_each_get_their_own_status(children: SubreaperChildren) -> None:
    statuses: dict[int, int] = {}

    async def one(number: int) -> None:
        completed = await run(children, Command(["/bin/sh", "-c", f"exit {number}"]))
        statuses[number] = completed.exit.status

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(one, number)
    assert statuses == {number: number for number in range(200)}
    assert children.processes() == ()


async def test_the_living_are_listed_oldest_first(children: SubreaperChildren) -> None:
    made = [children.spawn(Command(["/bin/sleep", "1000"])) for _ in range(3)]
    assert list(children.processes()) == made
    for child in made:
        child.send_signal(signal.SIGKILL)
    for child in made:
        await child.wait()
    assert children.processes() == ()
    assert "sleep" in repr(made[0])


async def test_an_end_before_the_adoption_is_kept_for_it(children: SubreaperChildren) -> None:
    mark = children.mark()
    pid = await orphan(children, "exit 7")
    await until(lambda: children.mark() > mark)
    child = children.adopt(pid, mark)
    assert child.exit is not None
    assert (child.exit.pid, child.exit.status) == (pid, 7)
    with pytest.raises(NotFound):
        children.adopt(pid, mark)


async def test_an_end_before_the_mark_is_somebody_elses(children: SubreaperChildren) -> None:
    mark = children.mark()
    pid = await orphan(children, "exit 7")
    await until(lambda: children.mark() > mark)
    with pytest.raises(NotFound):
        children.adopt(pid, children.mark())


async def test_a_running_orphan_is_adopted_once(children: SubreaperChildren) -> None:
    mark = children.mark()
    pid = await orphan(children, "exec sleep 1000")
    child = children.adopt(pid, mark)
    assert children.adopt(pid, mark) is child
    assert child.exit is None
    child.send_signal(signal.SIGKILL)
    assert (await child.wait()).status == 137


async def test_only_children_of_ours_are_adopted(children: SubreaperChildren) -> None:
    for pid in (os.getpid(), 1, 0, -1, 4_000_000):
        with pytest.raises(NotFound):
            children.adopt(pid, 0)


async def test_orphans_of_orphans_leave_no_zombie(children: SubreaperChildren) -> None:
    mark = children.mark()
    script = "sh -c 'sh -c \"true & true & true\" & true & exit' & exit"
    await run(children, Command(["/bin/sh", "-c", script]))
    await until(lambda: procfs.children(os.getpid()) == [])
    assert children.mark() > mark


async def test_kept_ends_are_bounded() -> None:
    children = SubreaperChildren()
    for _ in range(KEPT_EXITS + 5):
        children.keep(Exit(pid=10_000_000 + children.mark(), status=0, at_ns=0))
    assert children.kept == KEPT_EXITS
    with pytest.raises(NotFound):
        children.adopt(10_000_000, 0)
    assert children.adopt(10_000_005, 0).exit is not None


async def test_those_that_ended_before_the_reaper_ran_are_told(nursery: trio.Nursery) -> None:
    children = SubreaperChildren()
    child = children.spawn(Command(["/bin/true"]))
    os.waitid(os.P_PIDFD, child.pidfd, os.WEXITED | os.WNOWAIT)
    await nursery.start(children.run_reaper)
    assert (await child.wait()).status == 0


async def test_a_reaper_that_stops_lets_the_pidfds_go() -> None:
    children = SubreaperChildren()
    async with trio.open_nursery() as nursery:
        await nursery.start(children.run_reaper)
        child = children.spawn(Command(["/bin/cat"]))  # ends by itself: its stdin is null
        os.waitid(os.P_PIDFD, child.pidfd, os.WEXITED)
        nursery.cancel_scope.cancel()
    assert child.pidfd == -1


async def test_a_crash_of_the_reaper_ends_what_it_runs_in(monkeypatch: pytest.MonkeyPatch) -> None:
    children = SubreaperChildren()
    with pytest.RaisesGroup(RuntimeError):
        async with trio.open_nursery() as nursery:
            await nursery.start(children.run_reaper)

            def broken(_: Child, __: Exit) -> None:
                raise RuntimeError

            monkeypatch.setattr(Child, "finish", broken)
            child = children.spawn(Command(["/bin/true"]))
            await child.wait()
    child.release()


async def test_the_manager_waits_only_for_its_own() -> None:
    foreign = os.posix_spawn("/bin/true", ["true"], {})
    async with open_children() as children:
        child = children.spawn(Command(["/bin/sh", "-c", "kill -KILL $$"]))
        assert children.processes() == (child,)
        assert (await child.wait()).signal == signal.SIGKILL
        assert children.processes() == ()
        assert children.mark() == 0
        with pytest.raises(NotFound):
            children.adopt(1, 0)
    assert os.waitpid(foreign, 0) == (foreign, 0)


async def test_leaving_the_manager_leaves_the_child_running() -> None:
    async with open_children() as children:
        child = children.spawn(Command(["/bin/sleep", "1000"]))
    assert child.pidfd == -1
    assert procfs.state(child.pid) in "RSD"
    os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)
