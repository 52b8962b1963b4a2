from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from shim.kernel.leftovers import kill_group, kill_leftovers

if TYPE_CHECKING:
    from collections.abc import Iterator

ARGUMENTS = {"-id": "leftover-test", "-namespace": "ns"}
SLEEP = ("sh", "-c", "sleep 1000; true")


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """Alike in everything but what is looked for."""
    with subprocess.Popen([*SLEEP, "-id", "leftover-test", "-namespace", "other"], process_group=0) as process:
        yield process
        assert process.poll() is None
        os.killpg(process.pid, signal.SIGKILL)


def test_the_group_is_killed_with_all_its_members(pipe: tuple[int, int], bystander: subprocess.Popen[bytes]) -> None:
    process = subprocess.Popen(SLEEP, process_group=0)
    assert kill_leftovers(process.pid, pipe[0], {}) >= 1
    assert process.wait(5) == -signal.SIGKILL
    assert kill_leftovers(process.pid, pipe[0], {}) == 0


def test_who_holds_the_pipe_is_killed_and_we_who_hold_it_too_are_not(
    pipe: tuple[int, int], bystander: subprocess.Popen[bytes]
) -> None:
    process = subprocess.Popen(["sleep", "1000"], stdout=pipe[1], start_new_session=True)
    assert kill_leftovers(2**30, pipe[0], {}) >= 1
    assert process.wait(5) == -signal.SIGKILL


def test_a_server_is_known_by_all_of_its_arguments(pipe: tuple[int, int], bystander: subprocess.Popen[bytes]) -> None:
    process = subprocess.Popen(
        ["sh", "-c", "sleep 1000; true", "-namespace", "ns", "-id", "leftover-test"], process_group=0
    )
    assert kill_leftovers(2**30, pipe[0], ARGUMENTS) >= 1
    assert process.wait(5) == -signal.SIGKILL
    os.killpg(process.pid, signal.SIGKILL)  # its own sleep has none of the arguments


def test_a_group_that_is_gone_needs_nothing() -> None:
    process = subprocess.Popen(["true"], process_group=0)
    process.wait()
    kill_group(process.pid)
