"""Fault rows Z: the environment of the shim's caller."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from tests.system.harness.processes import environment_of
from tests.system.harness.runtimes import make_runtime

if TYPE_CHECKING:
    from tests.system.harness.driver import Driver


async def test_Z1_notify_socket_is_not_passed_on(driver: Driver) -> None:
    runtime = make_runtime(driver.directory / "runtime")
    bundle = driver.bundle(["sleep", "1000"])
    shim = await driver.start(bundle, env={"NOTIFY_SOCKET": "/run/nobody-listens"})
    task = await shim.create(bundle, options=driver.options(binary_name=runtime.binary))
    with trio.fail_after(1):
        await task.start()
    assert "NOTIFY_SOCKET" not in runtime.recorded("env")
    assert not [entry for entry in environment_of(task.pid) if entry.startswith("NOTIFY_SOCKET=")]
