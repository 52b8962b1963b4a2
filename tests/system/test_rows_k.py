"""Fault rows K: log files and loggers."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import pytest
import trio

from shim import errors
from tests.fakes.loggers import make_logger, read_report
from tests.system.harness.fifos import make_fifo, open_reader, open_writer
from tests.system.harness.processes import is_running, open_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.system.harness.bundles import Json
    from tests.system.harness.driver import Driver
    from tests.system.harness.task import Process

LINES: Final = 2000


async def _end(process: Process) -> None:
    await process.start()
    assert (await process.wait()).exit_status == 0
    await process.delete()


def _uri(path: Path) -> str:
    return f"file://{quote(str(path))}"


@pytest.fixture
def small_disk(directory: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    point = directory / "small"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", point], check=True, timeout=10)
    yield point
    subprocess.run(["umount", point], check=True, timeout=10)


# K1: ready or not


@pytest.mark.parametrize("ready", ["close", "exit"])
@pytest.mark.better_than_peer("a container of the Go shim is held up, or killed, by a logger that has ended")
async def test_K1_logger_that_ends_before_ready_counts_as_ready(driver: Driver, ready: str) -> None:
    logger = make_logger(driver.directory / "logger")
    bundle = driver.bundle(["sh", "-c", f"seq 1 {LINES * 100}"])
    shim = await driver.start(bundle)
    uri = logger.uri(ready=ready)
    task = await shim.create(bundle, stdout=uri, stderr=uri)
    # More than a pipe holds: a logger that is gone must not hold its container up.
    await _end(task)


@pytest.mark.parametrize("ready", ["close", "exit"])
@pytest.mark.better_than_peer("the Go shim leaves the logger and its pipes")
async def test_K1_strict_logger_that_ends_before_ready_fails_the_create(driver: Driver, ready: str) -> None:
    logger = make_logger(driver.directory / "logger")
    bundle = driver.bundle(["true"])
    shim = await driver.start(bundle)
    before = open_files(shim.pid)
    uri = logger.uri(scheme="binary-v2", ready=ready, pid=driver.directory / "pid")
    with pytest.raises(errors.ShimError):
        await shim.create(bundle, stdout=uri, stderr=uri)
    assert not is_running(int((driver.directory / "pid").read_text()))
    assert open_files(shim.pid).keys() == before.keys()
    task = await shim.create(bundle)
    await task.delete()


@pytest.mark.slow
@pytest.mark.better_than_peer("the Go shim waits without end for a logger to get ready")
async def test_K1_logger_that_never_gets_ready_is_killed_in_time(driver: Driver) -> None:
    logger = make_logger(driver.directory / "logger")
    bundle = driver.bundle(["true"])
    shim = await driver.start(bundle)
    before = open_files(shim.pid)
    uri = logger.uri(ready="never", deaf="term", pid=driver.directory / "pid")
    with (
        trio.fail_after(15),
        pytest.raises(errors.DeadlineExceeded, match=r"no ready signal from logger .* within 10 s"),
    ):
        await shim.create(bundle, stdout=uri, stderr=uri)
    assert not is_running(int((driver.directory / "pid").read_text()))
    assert open_files(shim.pid).keys() == before.keys()
    with pytest.raises(errors.NotFound):
        await shim.known(bundle.id).state()


@pytest.mark.parametrize("scheme", ["binary", "binary-v2"])
@pytest.mark.better_than_peer("binary-v2 is newer", only="go-1.6")
async def test_K1_absent_logger_is_named(driver: Driver, scheme: str) -> None:
    bundle = driver.bundle(["true"])
    shim = await driver.start(bundle)
    before = open_files(shim.pid)
    uri = f"{scheme}:///nonexistent/logger?a=b"
    with pytest.raises(errors.ShimError, match="/nonexistent/logger"):
        await shim.create(bundle, stdout=uri, stderr=uri)
    assert open_files(shim.pid).keys() == before.keys()


# K2: full disk


@pytest.mark.better_than_peer("the Go shim ends the copy at the first error")
async def test_K2_full_disk_costs_lines_and_no_time(driver: Driver, small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 500_000)
    log = small_disk / "log"
    told, stdin = make_fifo(driver.directory / "told"), make_fifo(driver.directory / "stdin")
    mount: Json = {"destination": "/mnt", "type": "bind", "source": str(driver.directory), "options": ["rbind"]}
    bundle = driver.bundle(["sh", "-c", "seq 1 700000; echo >/mnt/told; read x; echo after"], mounts=[mount])
    shim = await driver.start(bundle)
    async with open_reader(told) as wrote:
        task = await shim.create(bundle, stdin=str(stdin), stdout=_uri(log), stderr=_uri(log))
        await task.start()
        await wrote.read_all(timeout=30)
    assert log.stat().st_size < 600_000
    ballast.unlink()
    async with open_writer(stdin) as writer:
        await writer.send(b"\n")
        assert (await task.wait()).exit_status == 0
    await task.delete()
    lines = log.read_bytes().split(b"\n")
    assert lines[-2:] == [b"after", b""]
    # Whole lines, in order: those that found no room are missing, and the last that was in by half is whole.
    numbers = [int(line) for line in lines[:-2]]
    assert numbers == sorted(set(numbers))
    assert numbers[:1000] == list(range(1, 1001))
    assert 50_000 < len(numbers) < 150_000


# K4: files by URI


@pytest.mark.better_than_peer("the Go shim shares one file but writes what it reads, in chunks")
async def test_K4_both_streams_go_to_one_file_line_by_line(driver: Driver) -> None:
    log = driver.directory / "missing parent" / "100% more" / "log file"
    loop = f"i=0; while [ $i -lt {LINES} ]; do i=$((i+1)); printf 'NAME '; echo $i; done"
    script = f"{{ {loop.replace('NAME', 'out')}; }} & {{ {loop.replace('NAME', 'err')}; }} >&2; wait"
    bundle = driver.bundle(["sh", "-c", script])
    shim = await driver.start(bundle)
    await _end(await shim.create(bundle, stdout=_uri(log), stderr=_uri(log)))
    lines = log.read_text().splitlines()
    assert [line for line in lines if line.startswith("out")] == [f"out {number}" for number in range(1, LINES + 1)]
    assert [line for line in lines if line.startswith("err")] == [f"err {number}" for number in range(1, LINES + 1)]
    assert len(lines) == 2 * LINES
    assert stat.S_IMODE(log.stat().st_mode) == 0o644
    assert {stat.S_IMODE(path.stat().st_mode) for path in (log.parent, log.parent.parent)} == {0o755}


@pytest.mark.better_than_peer("the Go shim takes the sink of stdout for both")
async def test_K4_streams_may_have_files_of_their_own_and_keep_what_is_there(driver: Driver) -> None:
    out, err = driver.directory / "out", driver.directory / "err"
    out.write_text("before\n")
    words = ["sh", "-c", "echo out; echo err >&2"]
    task = await driver.run(["sleep", "1000"])
    await task.start()
    await _end(await task.exec("both", words, stdout=_uri(out), stderr=_uri(err)))
    assert (out.read_text(), err.read_text()) == ("before\nout\n", "err\n")
    await _end(await task.exec("second", words, stderr=_uri(err)))
    assert (out.read_text(), err.read_text()) == ("before\nout\n", "err\nerr\n")
    await _end(await task.exec("path", words, stdout=str(out), stderr=str(out)))
    assert sorted(out.read_text().splitlines()) == ["before", "err", "out", "out"]


async def test_K4_unknown_scheme_is_named(driver: Driver) -> None:
    bundle = driver.bundle(["true"])
    shim = await driver.start(bundle)
    with pytest.raises(errors.ShimError, match="unknown STDIO scheme npipe"):
        await shim.create(bundle, stdout="npipe:///x", stderr="npipe:///x")


# K6: a terminal with a logger


@pytest.mark.better_than_peer("the Go shim does not wait for the logger of a terminal")
async def test_K6_logger_gets_the_terminal(driver: Driver) -> None:
    logger = make_logger(driver.directory / "logger")
    out, pid = driver.directory / "out", driver.directory / "pid"
    bundle = driver.bundle(["sh", "-c", "read x; stty size"], terminal=True)
    stdin = make_fifo(driver.directory / "stdin")
    shim = await driver.start(bundle)
    task = await shim.create(bundle, stdin=str(stdin), stdout=logger.uri(out=out, pid=pid), terminal=True)
    await task.start()
    await task.resize(120, 40)
    async with open_writer(stdin) as writer:
        await writer.send(b"go\n")
        assert (await task.wait()).exit_status == 0
    await task.delete()
    assert out.read_bytes() == b"go\r\n40 120\r\n"
    assert not is_running(int(pid.read_text()))


@pytest.mark.better_than_peer("the Go shim knows no file behind a terminal")
async def test_K6_file_gets_the_terminal(driver: Driver) -> None:
    log = driver.directory / "log"
    bundle = driver.bundle(["echo", "hello"], terminal=True)
    shim = await driver.start(bundle)
    await _end(await shim.create(bundle, stdout=_uri(log), terminal=True))
    assert log.read_bytes() == b"hello\r\n"


# K8: the contract


@pytest.mark.parametrize("of_exec", [False, True])
@pytest.mark.better_than_peer("the Go shim gives the arguments in no order")
async def test_K8_logger_is_started_as_the_contract_says(driver: Driver, of_exec: bool) -> None:
    logger = make_logger(driver.directory / "logger")
    report, out, err = (driver.directory / name for name in ("report", "out", "err"))
    uri = logger.uri(out=out, report=report, err=err, zeta="a b", alpha="")
    words = ["sh", "-c", "echo out; echo err >&2"]
    if of_exec:
        task = await driver.run(["sleep", "1000"])
        await task.start()
        process: Process = await task.exec("the-exec", words, stdout=uri, stderr=uri)
    else:
        bundle = driver.bundle(words)
        shim = await driver.start(bundle)
        process = await shim.create(bundle, stdout=uri, stderr=uri)
    await _end(process)
    found = read_report(report)
    assert found.argv == [
        *("out", str(out), "report", str(report), "err", str(err)),
        *("zeta", "a b", "alpha", ""),
    ]
    owner = process.exec_id or process.id
    assert found.environment == {"CONTAINER_ID": owner, "CONTAINER_NAMESPACE": driver.namespace}
    named = {key: value for key, value in found.descriptors.items() if not value.startswith("/proc/")}
    assert named.keys() == {"0", "1", "2", "3", "4", "5"}
    assert {named[key] for key in "012"} == {os.devnull}
    assert len({named[key] for key in "345"}) == 3
    assert all(named[key].startswith("pipe:") for key in "345")
    assert (out.read_bytes(), err.read_bytes()) == (b"out\n", b"err\n")


# The end of a logger


@pytest.mark.slow
@pytest.mark.better_than_peer("the Go shim sends SIGTERM at once")
async def test_logger_may_flush_after_the_end_of_its_input(driver: Driver) -> None:
    logger = make_logger(driver.directory / "logger")
    out, done, pid = (driver.directory / name for name in ("out", "done", "pid"))
    bundle = driver.bundle(["echo", "hello"])
    shim = await driver.start(bundle)
    uri = logger.uri(out=out, slow=3, done=done, pid=pid)
    await _end(await shim.create(bundle, stdout=uri, stderr=uri))
    assert (out.read_bytes(), done.read_text()) == (b"hello\n", "done")
    assert not is_running(int(pid.read_text()))


@pytest.mark.slow
@pytest.mark.parametrize("deaf", ["eof", "eof-term"])
@pytest.mark.better_than_peer("the Go shim answers after its caller has gone")
async def test_logger_that_does_not_end_is_ended(driver: Driver, deaf: str) -> None:
    logger = make_logger(driver.directory / "logger")
    pid = driver.directory / "pid"
    bundle = driver.bundle(["echo", "hello"])
    shim = await driver.start(bundle)
    uri = logger.uri(deaf=deaf, pid=pid)
    task = await shim.create(bundle, stdout=uri, stderr=uri)
    await task.start()
    await task.wait()
    with trio.fail_after(18):
        await task.delete()
    assert not is_running(int(pid.read_text()))


@pytest.mark.better_than_peer("a container of the Go shim is held up by a logger that has ended")
async def test_logger_that_dies_does_not_take_the_container_with_it(driver: Driver) -> None:
    logger = make_logger(driver.directory / "logger")
    pid = driver.directory / "pid"
    bundle = driver.bundle(["sh", "-c", f"read x; seq 1 {LINES * 100}; echo done"])
    stdin = make_fifo(driver.directory / "stdin")
    shim = await driver.start(bundle)
    uri = logger.uri(pid=pid)
    task = await shim.create(bundle, stdin=str(stdin), stdout=uri, stderr=uri)
    await task.start()
    os.kill(int(pid.read_text()), signal.SIGKILL)
    async with open_writer(stdin) as writer:
        await writer.send(b"\n")
        assert (await task.wait()).exit_status == 0
    with trio.fail_after(5):
        await task.delete()
