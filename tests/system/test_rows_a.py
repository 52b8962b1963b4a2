"""Fault rows A: a shim process left behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from shim import errors
from shim.rpc.client import open_unix_client
from shim.verify import faults
from shim.wire.proto import task_pb2
from tests.system.harness.processes import is_running, wait_ended
from tests.system.harness.subject import Kind
from tests.system.harness.task import CREATED

if TYPE_CHECKING:
    from google.protobuf.any_pb2 import Any as AnyMessage

    from tests.system.harness.bundles import Bundle
    from tests.system.harness.daemons import Daemon
    from tests.system.harness.driver import Driver
    from tests.system.harness.task import Shim, Task


async def test_A5_missing_runtime_is_named_and_leaves_no_shim(daemon: Daemon) -> None:
    missing = "/nonexistent/the-runtime"
    arguments = daemon.run_arguments("a5", ["true"], "--runc-binary", missing, runtime="io.containerd.runc.v2")
    done = await daemon.ctr(*arguments)
    assert done.status != 0
    assert missing in done.errors.decode()
    assert await daemon.ctr_ok("tasks", "list", "-q") == ""
    assert not list(daemon.bundles.iterdir()), "the daemon's clean-up left the bundle"


async def test_A2_a_caller_that_dies_during_create_leaves_a_whole_task_or_none(driver: Driver) -> None:
    runtime = faults.make_fault_runtime(driver.directory, {"create": [faults.touch("reached"), faults.wait_for("go")]})
    reached = runtime.fifo("reached")
    bundle = driver.bundle(["sleep", "1000"])
    shim = await driver.start(bundle)
    request = task_pb2.CreateTaskRequest(
        id=bundle.id, bundle=str(bundle.path), options=driver.options(binary_name=runtime.binary)
    )
    async with trio.open_nursery() as nursery:

        async def create() -> None:
            async with open_unix_client(shim.answer.address) as client:
                await client.call(shim.service, "Create", request, namespace=shim.namespace)

        nursery.start_soon(create)
        with trio.fail_after(10):
            await trio.to_thread.run_sync(reached.read_bytes, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()  # the connection goes with its task
    runtime.file("go").touch()
    client = await driver.connect(shim.answer.address)
    known = attrs.evolve(shim, client=client).known(bundle.id)
    try:
        state = await known.state()
    except errors.NotFound:
        pass  # rolled back, or about to be
    else:
        assert state.status == CREATED
        await known.kill(signal.SIGKILL)
        await known.wait()
        await known.delete()
    if driver.subject.kind is Kind.OURS:
        runtime.plan({})
        with trio.fail_after(5):
            task = await create_again(shim, bundle, driver.options(binary_name=runtime.binary))
        await task.end()
    with trio.fail_after(5):
        await shim.shutdown()
    assert not list(driver.runc_root.glob("*/*"))


async def create_again(shim: Shim, bundle: Bundle, options: AnyMessage) -> Task:
    """Create, as soon as the id is free: what is being undone still has it."""
    while True:
        try:
            return await shim.create(bundle, options=options)
        except errors.AlreadyExists:
            await trio.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_A7_signal_ends_the_shim_and_delete_cleans_the_rest(driver: Driver, number: int) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    os.kill(task.shim.pid, number)
    await wait_ended(task.shim.pid, timeout=5)
    assert not Path(task.shim.answer.address.removeprefix("unix://")).exists()
    assert is_running(task.pid), "the container must outlive its shim"
    done, answer = await driver.delete_command(task.bundle)
    assert done.status == 0, done.errors
    assert (answer.pid, answer.exit_status) == (task.pid, 137)
    assert not is_running(task.pid)
