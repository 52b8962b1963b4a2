"""Fault rows M: order of calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shim import errors
from tests.system.harness.processes import is_running
from tests.system.harness.task import RUNNING

if TYPE_CHECKING:
    from tests.system.harness.bundles import Bundle
    from tests.system.harness.daemons import Daemon
    from tests.system.harness.driver import Driver


def _content(bundle: Bundle) -> dict[str, bytes]:
    """What a refused second Create must not touch; the runtime appends to its log whatever happens."""
    return {path.name: path.read_bytes() for path in bundle.path.iterdir() if path.is_file() and path.suffix != ".log"}


async def test_M5_second_create_of_an_id_leaves_the_first_alone(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    before = _content(task.bundle)
    before.pop("log.json", None)
    with pytest.raises((errors.AlreadyExists, errors.Unknown)):
        await task.shim.create(task.bundle)
    after = _content(task.bundle)
    after.pop("log.json", None)
    assert after == before
    assert (await task.state()).status == RUNNING
    assert is_running(task.pid)


async def test_M5_second_start_command_gives_the_same_shim(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    again = await driver.start(task.bundle)
    assert again.pid == task.shim.pid
    assert again.answer.address == task.shim.answer.address
    assert (await task.state()).status == RUNNING
    driver.shims.remove(again)


async def test_M5_daemon_refuses_a_second_run_of_an_id(daemon: Daemon) -> None:
    await daemon.ctr_ok(*daemon.run_arguments("m5", ["sleep", "1000"], "--detach"))
    (pid,) = [int(line.split()[0]) for line in (await daemon.ctr_ok("tasks", "ps", "m5")).splitlines()[1:]]
    done = await daemon.run("m5", ["true"])
    assert done.status != 0
    assert b"already exists" in done.errors
    assert "RUNNING" in await daemon.ctr_ok("tasks", "list")
    assert is_running(pid)
    assert (daemon.bundles / "m5" / "config.json").exists()
