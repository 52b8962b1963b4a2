"""Fault rows U: resources."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.system.harness.processes import open_files
from tests.system.harness.runtimes import make_runtime

if TYPE_CHECKING:
    from tests.system.harness.driver import Driver


@pytest.mark.better_than_peer("the Go shim passes on whatever descriptors its caller left open")
async def test_U6_descriptors_of_the_caller_go_nowhere(driver: Driver) -> None:
    runtime = make_runtime(driver.directory / "runtime")
    with ExitStack() as stack:
        odd = [os.open(driver.directory / f"odd-{number}", os.O_RDWR | os.O_CREAT) for number in range(20)]
        for fd in odd:
            stack.callback(os.close, fd)
        bundle = driver.bundle(["sleep", "1000"])
        shim = await driver.start(bundle, pass_fds=odd)
        task = await shim.create(bundle, options=driver.options(binary_name=runtime.binary))
        await task.start()
    for pid in (shim.pid, task.pid):
        assert not [path for path in open_files(pid).values() if "/odd-" in path]
    assert "/odd-" not in runtime.recorded("fds")
    assert "create" in runtime.recorded("argv")
