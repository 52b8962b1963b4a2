"""Fault rows Y: permissions."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.system.harness.fifos import open_reader

if TYPE_CHECKING:
    from tests.system.harness.driver import Driver


@pytest.mark.parametrize(
    "umask",
    [
        pytest.param(
            0o000, id="000", marks=pytest.mark.better_than_peer("the Go shim lets the runtime write its pid file 0666")
        ),
        pytest.param(0o077, id="077"),
    ],
)
async def test_Y3_files_are_not_writable_for_others(driver: Driver, umask: int) -> None:
    bundle = driver.bundle(["true"])
    given = {path.name for path in bundle.path.iterdir()}
    shim = await driver.start(bundle, umask=umask)
    task = await shim.create(bundle)
    await task.start()
    await task.wait()
    socket = Path(shim.answer.address.removeprefix("unix://"))
    assert stat.S_IMODE(socket.stat().st_mode) == 0o600
    assert socket.parent.stat().st_mode & 0o077 == 0
    modes = {
        path.name: oct(stat.S_IMODE(path.stat().st_mode))
        for path in bundle.path.iterdir()
        if path.name not in given and not path.is_symlink() and path.stat().st_mode & 0o022
    }
    assert modes == {}


async def test_Y5_a_program_without_rights_can_reopen_its_stdout(driver: Driver) -> None:
    bundle = driver.bundle(["sh", "-c", "echo reopened > /proc/self/fd/1; echo err > /dev/stderr"], user=(1000, 1000))
    shim = await driver.start(bundle)
    async with open_reader(bundle.file("stdout")) as output, open_reader(bundle.file("stderr")) as errors:
        task = await shim.create(
            bundle,
            stdout=str(bundle.file("stdout")),
            stderr=str(bundle.file("stderr")),
            options=driver.options(io_uid=1000, io_gid=1000),
        )
        await task.start()
        assert (await task.wait()).exit_status == 0
        await task.delete()
        assert (await output.read_all(), await errors.read_all()) == (b"reopened\n", b"err\n")
