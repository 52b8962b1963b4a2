"""What a Delete that hangs in the kernel costs everybody else of the same shim.

A task whose root lies on a disk that can be stopped is deleted while it is stopped.  State of that task is asked all
the time on a connection of its own, and a neighbour in the same shim has execs started, tasks killed and deleted; the
same is measured before, with nothing stuck.  A call that is not answered in time counts as that time.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import attrs
import trio

from shim.manager.bootstrap import Answer
from shim.manager.bundle import create_bundle, delete_bundle
from shim.manager.connection import connect
from shim.verify.latency import Sample, StateProbe
from shim.verify.slowdisk import open_slow_disk
from tools.bench_life import DELETE, KILL_WAIT, BenchTask, Stopwatch, open_shim, shut_down, time_exec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from shim.manager.connection import ShimConnection
    from shim.verify.slowdisk import SlowDisk
    from tools.bench_life import Bench

RUNTIME_STATES: Final = "/run/containerd/runc"
PROBE_SECONDS: Final = 2.0
CYCLES: Final = 5
PATIENCE_SECONDS: Final = 20.0
"""How long one block of neighbours' calls may take before it counts as not answered."""
INTO_THE_KERNEL_SECONDS: Final = 0.2
"""From when the runtime's state is gone until the Delete surely hangs in the unmount."""


@attrs.define
class Block:
    """What was measured while nothing, or a Delete, was stuck."""

    state: list[Sample] = attrs.field(factory=list)
    others: Stopwatch = attrs.field(factory=Stopwatch)
    unanswered: int = 0
    """Blocks in which the neighbours got no answer in time."""


@attrs.define
class StuckFigures:
    """Both blocks of one subject, over all its rounds."""

    idle: Block = attrs.field(factory=Block)
    stuck: Block = attrs.field(factory=Block)


async def time_stuck(bench: Bench, binary: str, task_id: str, directory: str, into: StuckFigures) -> None:
    """One round: idle, then stuck, in one shim."""
    await trio.to_thread.run_sync(os.mkdir, directory)
    try:
        async with open_slow_disk(bench.launcher.children, directory) as disk:
            watch = Stopwatch()
            async with open_shim(bench, binary, task_id, ["true"], watch, mounted=True) as task:
                await task.create([disk.overlay(bench.rootfs, task_id)])
                await task.start()
                await task.wait()
                disk.make_dirty(task.bundle.rootfs)
                await _measure(bench, task, task_id, into, disk)
                await shut_down(task)
    finally:
        await trio.to_thread.run_sync(os.rmdir, directory)


async def _measure(bench: Bench, task: BenchTask, task_id: str, into: StuckFigures, disk: SlowDisk) -> None:
    answer = Answer(task.shim.version, task.shim.address)
    second = await connect(bench.nursery, answer, bench.namespace, task_id)
    neighbour = await _new_task(bench, task.shim, f"{task_id}-n")
    try:
        await _block(bench, task_id, second, neighbour, into.idle)
        async with trio.open_nursery() as nursery:
            disk.freeze()
            try:
                nursery.start_soon(task.delete)
                await _wait_in_kernel(bench, task_id)
                await _block(bench, task_id, second, neighbour, into.stuck)
            finally:
                disk.thaw()
        await neighbour.kill_and_wait()
        await neighbour.delete()
    finally:
        second.close()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 10):
            await delete_bundle(neighbour.bundle)


async def _wait_in_kernel(bench: Bench, task_id: str) -> None:
    state = f"{RUNTIME_STATES}/{bench.namespace}/{task_id}"
    with trio.fail_after(PATIENCE_SECONDS):
        while await trio.to_thread.run_sync(os.path.exists, state):  # noqa: ASYNC110 - the runtime tells nobody
            await trio.sleep(0.01)
    await trio.sleep(INTO_THE_KERNEL_SECONDS)


async def _block(bench: Bench, task_id: str, second: ShimConnection, neighbour: BenchTask, block: Block) -> None:
    """State of the one task alone for a while, then the neighbours' calls."""
    probe = StateProbe(second, task_id, bench.launcher.budgets.state)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(probe.run_probe)
        await trio.sleep(PROBE_SECONDS)
        probe.stop()
    block.state += probe.samples
    with trio.move_on_after(PATIENCE_SECONDS) as scope:
        async for other in _others(bench, neighbour):
            await time_exec(neighbour, "e", block.others)
            with block.others.timed(KILL_WAIT):
                await other.kill_and_wait()
            with block.others.timed(DELETE):
                await other.delete()
    block.unanswered += scope.cancelled_caught


async def _others(bench: Bench, neighbour: BenchTask) -> AsyncIterator[BenchTask]:
    """One running task of the same shim after the other."""
    for number in range(CYCLES):
        other = await _new_task(bench, neighbour.shim, f"{neighbour.id}{number}")
        try:
            yield other
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 10):
                await delete_bundle(other.bundle)


async def _new_task(bench: Bench, shim: ShimConnection, task_id: str) -> BenchTask:
    bundle = await create_bundle(
        bench.launcher.layout, bench.namespace, task_id, bench.spec(task_id, ["sleep", "1000"])
    )
    task = BenchTask(shim, bundle)
    await task.create()
    await task.start()
    return task
