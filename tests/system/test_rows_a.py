"""Fault rows A: a shim process left behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.system.harness.processes import is_running, wait_ended

if TYPE_CHECKING:
    from tests.system.harness.daemons import Daemon
    from tests.system.harness.driver import Driver


async def test_A5_missing_runtime_is_named_and_leaves_no_shim(daemon: Daemon) -> None:
    missing = "/nonexistent/the-runtime"
    arguments = daemon.run_arguments("a5", ["true"], "--runc-binary", missing, runtime="io.containerd.runc.v2")
    done = await daemon.ctr(*arguments)
    assert done.status != 0
    assert missing in done.errors.decode()
    assert await daemon.ctr_ok("tasks", "list", "-q") == ""
    assert not list(daemon.bundles.iterdir()), "the daemon's clean-up left the bundle"


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
