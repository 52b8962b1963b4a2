"""`shimctl demo` as a person runs it: its result, and that nothing of it is left however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest
import trio

from tests.system.harness.loops import loops_below
from tests.system.harness.processes import run_program, wait_ended
from tests.system.harness.slowdisk import is_mounted
from tests.system.harness.subject import REPOSITORY, Kind

if TYPE_CHECKING:
    from pathlib import Path

    from tests.system.harness.subject import Subject

SIZE: Final = "32M"
PHASES: Final = {"runtime state gone", "mount gone", "Delete answered"}


def command(directory: Path, *words: str) -> list[str]:
    """shimctl in places of the test's own."""
    place = ["--state", str(directory / "state"), "--root", str(directory / "root")]
    return [sys.executable, "-m", "shim.cli.main", *place, "demo", "--size", SIZE, *words]


def environment(subject: Subject, directory: Path) -> dict[str, str]:
    """One in which the shim under test is found first, by its name."""
    path = f"{subject.path.parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(REPOSITORY), "XDG_CACHE_HOME": str(directory / "cache")}


def assert_nothing_is_left(directory: Path) -> None:
    assert loops_below(directory) == {}
    assert not is_mounted(directory)
    assert list((directory / "root" / "tmp").iterdir()) == []
    assert list((directory / "root").glob("*/*/*")) == []
    assert list((directory / "state").glob("*/*/*")) == []


@pytest.fixture(autouse=True)
def _only_ours(subject: Subject) -> None:
    if subject.kind is not Kind.OURS:
        pytest.skip("the program of our shim is not under test")


async def test_it_ends_with_the_figures_of_both_and_leaves_nothing(subject: Subject, directory: Path) -> None:
    done = await run_program(
        command(directory, "--json", "--runtime", str(subject.path)), env=environment(subject, directory), timeout=60
    )
    assert done.status == 0, done.errors.decode()
    result = json.loads(done.output)
    assert result["size"] == 32 << 20
    assert [run["runtime"] for run in result["runs"]] == ["io.containerd.trio.v2", str(subject.path)]
    for run in result["runs"]:
        assert set(run["phases_seconds"]) == PHASES
        assert run["phases_seconds"]["Delete answered"] >= run["phases_seconds"]["runtime state gone"] > 0
        assert run["state_idle"]["asked"] > 10
        during = run["state_during_delete"]
        assert during["timed_out"] == 0
        assert 0 < during["p50_seconds"] <= during["p99_seconds"] <= during["worst_seconds"] < 1
    assert b"Delete answered" in done.errors
    assert_nothing_is_left(directory)


async def test_a_size_without_room_is_refused_before_anything_is_made(subject: Subject, directory: Path) -> None:
    done = await run_program(command(directory, "--size", "900000G"), env=environment(subject, directory))
    assert (done.status, done.output) == (125, b"")
    assert b"ask for a smaller size" in done.errors
    assert_nothing_is_left(directory)


async def test_an_unknown_runtime_is_told_at_once(subject: Subject, directory: Path) -> None:
    done = await run_program(
        command(directory, "--runtime", "io.containerd.none.v9"), env=environment(subject, directory)
    )
    assert done.status == 125
    assert b"containerd-shim-none-v9" in done.errors
    assert_nothing_is_left(directory)


@pytest.mark.parametrize("line", ["making a disk", "State of an idle shim", "filling its root", "  Delete, "])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_interrupted_at_any_step_it_takes_everything_away(
    subject: Subject, directory: Path, line: str, number: int
) -> None:
    run = partial(
        trio.run_process,
        command(directory, "--runtime", str(subject.path)),
        env=environment(subject, directory),
        stdout=subprocess.PIPE,
        check=False,
    )
    async with trio.open_nursery() as nursery:
        process: trio.Process = await nursery.start(run)
        assert process.stdout is not None
        seen = b""
        with trio.fail_after(30):
            while line.encode() not in seen:
                seen += await process.stdout.receive_some()
            process.send_signal(number)
            while await process.stdout.receive_some():
                pass
        await wait_ended(process.pid, timeout=30)
    assert process.returncode == 128 + number
    assert_nothing_is_left(directory)
