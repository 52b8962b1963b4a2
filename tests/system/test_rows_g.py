"""Fault rows G: who reaps what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.system.harness.fifos import open_reader
from tests.system.harness.processes import is_running, parent_of

if TYPE_CHECKING:
    from tests.system.harness.driver import Driver

ORPHANING = 'sh -c "sleep 1000 & echo made"; exec sleep 2000'


async def test_G5_orphans_belong_to_their_own_init(driver: Driver) -> None:
    bundle = driver.bundle(["sh", "-c", ORPHANING])
    shim = await driver.start(bundle)
    async with open_reader(bundle.file("stdout")) as output:
        task = await shim.create(bundle, stdout=str(bundle.file("stdout")), stderr=str(bundle.file("stdout")))
        await task.start()
        await output.wait_for(lambda data: data == b"made\n")
        (orphan,) = [pid for pid in await task.pids() if pid != task.pid and parent_of(pid) == task.pid]
        assert is_running(orphan)
        await driver.kill_shim(shim)
        done, _ = await driver.delete_command(bundle)
        assert done.status == 0, done.errors
    assert not is_running(task.pid)
    assert not is_running(orphan)
