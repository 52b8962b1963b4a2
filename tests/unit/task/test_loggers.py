"""Loggers: ready or refused, fed to the end, ended one way or another, reaped always."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from shim.errors import DeadlineExceeded, InvalidArgument, NotFound, Unknown
from shim.kernel import native
from shim.kernel.children import SubreaperChildren
from shim.model.budgets import Budget, Budgets
from shim.task import loggers
from shim.task.loggers import Owner
from shim.task.process import StdioPaths
from shim.task.stdio import open_streams
from tests.fakes.leaks import nothing_left
from tests.fakes.loggers import Logger, make_logger, read_report

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from shim.task.streams import Streams

__all__ = ["nothing_left"]

pytestmark = pytest.mark.usefixtures("nothing_left")

BUDGETS = attrs.evolve(Budgets(), logger_ready=Budget("ready", 3.0), logger_flush=Budget("flush", 1.0))


@pytest.fixture
async def children(nursery: trio.Nursery) -> AsyncIterator[SubreaperChildren]:
    native.set_subreaper(True)
    made = SubreaperChildren()
    await nursery.start(made.run_reaper)
    yield made
    native.set_subreaper(False)


@pytest.fixture
def logger(tmp_path: Path) -> Logger:
    return make_logger(tmp_path / "logger")


async def _open(children: SubreaperChildren, tmp_path: Path, uri: str, budgets: Budgets = BUDGETS) -> Streams:
    return await open_streams(
        StdioPaths(stdout=uri, stderr=uri),
        children=children,
        owner=Owner("me", "ns", str(tmp_path)),
        pipe_owner=(os.getuid(), os.getgid()),
        budgets=budgets,
    )


def _write(streams: Streams, number: int, data: bytes) -> None:
    os.write(streams.child_fds[number], data)


async def test_both_outputs_reach_the_logger_to_their_last_byte(
    children: SubreaperChildren, tmp_path: Path, logger: Logger, nursery: trio.Nursery
) -> None:
    out, err, report = (tmp_path / name for name in ("out", "err", "report"))
    streams = await _open(children, tmp_path, logger.uri(out=out, err=err, report=report))
    streams.start(nursery)
    await streams.connected()
    _write(streams, 1, b"to stdout")
    _write(streams, 2, b"to stderr")
    streams.release_child_ends()
    streams.process_ended()
    await streams.drained()
    assert children.processes() == ()
    assert (out.read_bytes(), err.read_bytes()) == (b"to stdout", b"to stderr")
    found = read_report(report)
    assert found.environment == {"CONTAINER_ID": "me", "CONTAINER_NAMESPACE": "ns"}
    assert found.directory == str(tmp_path)
    await streams.aclose()


@pytest.mark.parametrize("scheme", ["binary", "binary-v2"])
async def test_a_logger_that_never_gets_ready_is_killed(
    children: SubreaperChildren, tmp_path: Path, logger: Logger, scheme: str
) -> None:
    budgets = attrs.evolve(BUDGETS, logger_ready=Budget("ready", 0.5))
    with pytest.raises(DeadlineExceeded, match=r"no ready signal from logger .* within 500 ms \(ready\)"):
        await _open(children, tmp_path, logger.uri(scheme=scheme, ready="never", deaf="term"), budgets)
    assert children.processes() == ()


@pytest.mark.parametrize("ready", ["close", "exit"])
async def test_only_a_strict_logger_must_really_say_it(
    children: SubreaperChildren, tmp_path: Path, logger: Logger, ready: str, nursery: trio.Nursery
) -> None:
    with pytest.raises(Unknown, match="no ready signal"):
        await _open(children, tmp_path, logger.uri(scheme="binary-v2", ready=ready))
    assert children.processes() == ()
    streams = await _open(children, tmp_path, logger.uri(ready=ready))
    streams.start(nursery)
    await streams.connected()
    await streams.aclose()


async def test_a_caller_that_goes_away_takes_the_logger_with_it(
    children: SubreaperChildren, tmp_path: Path, logger: Logger
) -> None:
    with trio.move_on_after(0.3) as scope:
        await _open(children, tmp_path, logger.uri(ready="never"), Budgets())
    assert scope.cancelled_caught
    assert children.processes() == ()


async def test_programs_that_cannot_run_are_named(children: SubreaperChildren, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=f"{tmp_path}/none: no such program"):
        await _open(children, tmp_path, f"binary://{tmp_path}/none")
    (tmp_path / "text").write_text("no program")
    with pytest.raises(InvalidArgument, match=f"{tmp_path}/text: Permission denied"):
        await _open(children, tmp_path, f"binary://{tmp_path}/text")


async def _stop(streams: Streams, nursery: trio.Nursery, *, ran: bool = True) -> float:
    streams.start(nursery)
    await streams.connected()
    streams.release_child_ends()
    if ran:
        streams.process_ended()
    began = time.monotonic()
    await streams.aclose()
    return time.monotonic() - began


async def test_it_may_end_by_itself_within_its_budget(
    children: SubreaperChildren, tmp_path: Path, logger: Logger, nursery: trio.Nursery
) -> None:
    done = tmp_path / "done"
    streams = await _open(children, tmp_path, logger.uri(slow=0.5, done=done))
    assert 0.4 < await _stop(streams, nursery) < 1.0
    assert done.exists()


@pytest.mark.parametrize(("deaf", "least"), [("eof", 1.0), ("eof-term", 1.5)])
async def test_then_it_is_told_and_then_made_to(
    children: SubreaperChildren,
    tmp_path: Path,
    logger: Logger,
    nursery: trio.Nursery,
    monkeypatch: pytest.MonkeyPatch,
    deaf: str,
    least: float,
) -> None:
    monkeypatch.setattr(loggers, "TERM_SECONDS", 0.5)
    streams = await _open(children, tmp_path, logger.uri(deaf=deaf))
    assert least <= await _stop(streams, nursery) < least + 0.4
    assert children.processes() == ()


async def test_a_process_that_never_ran_has_nothing_to_flush(
    children: SubreaperChildren, tmp_path: Path, logger: Logger, nursery: trio.Nursery
) -> None:
    streams = await _open(children, tmp_path, logger.uri(deaf="eof"), Budgets())
    assert await _stop(streams, nursery, ran=False) < 1.0


async def test_patience_has_its_end(
    children: SubreaperChildren, tmp_path: Path, logger: Logger, nursery: trio.Nursery
) -> None:
    streams = await _open(children, tmp_path, logger.uri(deaf="eof"), Budgets())
    streams.start(nursery)
    await streams.connected()
    streams.release_child_ends()
    streams.process_ended()
    with trio.fail_after(2):
        await streams.aclose(patience_until=trio.current_time() + 0.2)


async def test_a_dead_logger_does_not_hold_the_container_up(
    children: SubreaperChildren, tmp_path: Path, logger: Logger, nursery: trio.Nursery
) -> None:
    streams = await _open(children, tmp_path, logger.uri(ready="exit"))
    streams.start(nursery)
    await streams.connected()
    writer = os.dup(streams.child_fds[1])
    streams.release_child_ends()
    with trio.fail_after(10):
        await trio.to_thread.run_sync(os.write, writer, b"x" * 5_000_000)
    os.close(writer)
    streams.process_ended()
    await streams.drained()
    await streams.aclose()
