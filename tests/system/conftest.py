"""Fixtures of the system suite: needs root, a real runc, a static busybox, and for some tests containerd."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.system.harness.bundles import make_rootfs
from tests.system.harness.census import Census, end_leftovers, end_templates, settle, take_census
from tests.system.harness.daemons import Daemon, open_daemon
from tests.system.harness.driver import Driver, open_driver
from tests.system.harness.places import Places, enter_private_mounts, make_places, remove_places
from tests.system.harness.subject import (
    Generation,
    Kind,
    Subject,
    containerd_of,
    ctr_of,
    find_subject,
    generations_of,
    wanted_kind,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

HERE = Path(__file__).parent
WANTED = os.environ.get("SHIM_UNDER_TEST", "")
KIND = wanted_kind()
DESELECTED = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "better_than_peer(reason, only=None): ours does what a stock Go shim (or only the one named) does not; "
        "left out, and reported, when that is under test",
    )


def _why_left_out(item: pytest.Item) -> str:
    """The reason why the shim under test is not asked this; empty when it is."""
    if KIND is Kind.OURS or HERE not in item.path.parents:
        return ""
    for marker in item.iter_markers("better_than_peer"):
        if marker.kwargs.get("only", KIND.value) == KIND.value:
            return str(marker.args[0])
    if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
        for value in item.callspec.params.values():
            if isinstance(value, Generation) and value not in generations_of(KIND):
                return f"containerd {value.value} cannot start this shim"
    return ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out, and report, what only our shim promises."""
    reasons = {item: _why_left_out(item) for item in items}
    left_out = [item for item in items if reasons[item]]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        config.stash[DESELECTED] = [f"{item.nodeid}: {reasons[item]}" for item in left_out]
        items[:] = [item for item in items if not reasons[item]]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a daemon that is not here, and say which: raised in an async fixture the reason would be lost."""
    callspec = getattr(item, "callspec", None)
    wanted = callspec.params.get("daemon") if callspec is not None else None
    if isinstance(wanted, Generation):
        containerd_of(wanted)
        ctr_of(wanted)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name what was left out and why."""
    left_out = config.stash.get(DESELECTED, [])
    if left_out:
        terminalreporter.section("left out: ours does better than the shim under test")
        for line in left_out:
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def places() -> Iterator[Places]:
    if os.geteuid() != 0:
        pytest.skip("the system suite needs root")
    enter_private_mounts()
    made = make_places()
    yield made
    end_templates()
    remove_places(made)


@pytest.fixture(scope="session")
def subject(places: Places) -> Subject:
    """The shim under test."""
    directory = places.root / "bin"
    directory.mkdir()
    return find_subject(directory)


@pytest.fixture(scope="session")
def rootfs(places: Places) -> Path:
    """The busybox root file system that the containers share."""
    return make_rootfs(places.root / "rootfs")


@pytest.fixture(scope="session")
def numbers() -> Iterator[int]:
    """Numbers for the tests of this run: short directory names, hence short socket paths."""
    return itertools.count(1)


@pytest.fixture
def directory(places: Places, numbers: Iterator[int]) -> Path:
    """The test's own directory."""
    made = places.root / str(next(numbers))
    made.mkdir(mode=0o755)
    return made


@pytest.fixture(autouse=True)
def census(places: Places, directory: Path, request: pytest.FixtureRequest) -> Iterator[Census]:
    """Fails a test that leaves anything behind."""
    before = take_census(places, directory)
    yield before
    after = take_census(places, directory)
    if after.facts - before.facts:
        settle(after, before)
        after = take_census(places, directory)
    left = sorted(after.facts - before.facts)
    if left:
        end_leftovers(after, before)
        pytest.fail("left behind:\n" + "\n".join(left))


@pytest.fixture
async def driver(subject: Subject, places: Places, directory: Path, rootfs: Path) -> AsyncIterator[Driver]:
    """A pretended daemon for the shim under test, of the newest generation that the shim understands."""
    async with open_driver(subject, places, directory, rootfs) as opened:
        yield opened


@pytest.fixture(params=[Generation.V1_6, Generation.V2], ids=lambda generation: generation.value)
async def daemon(
    request: pytest.FixtureRequest, subject: Subject, directory: Path, rootfs: Path
) -> AsyncIterator[Daemon]:
    """A real containerd of each generation in turn."""
    async with open_daemon(request.param, subject, directory, rootfs) as opened:
        yield opened
