"""Terminals of init and exec: output to its last byte, input and its end, sizes, and nothing left of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import trio

from shim import errors
from tests.system.harness.fifos import holds, make_fifo, open_reader, open_writer
from tests.system.harness.processes import open_files
from tests.system.harness.runtimes import make_runtime
from tests.system.harness.task import RUNNING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.system.harness.daemons import Daemon
    from tests.system.harness.driver import Driver


def _fifos(directory: Path, name: str) -> tuple[Path, Path]:
    return make_fifo(directory / f"{name}.in"), make_fifo(directory / f"{name}.out")


async def test_init_with_a_terminal_reads_and_writes_it(driver: Driver) -> None:
    bundle = driver.bundle(["sh", "-c", "tty; read line; echo got $line"], terminal=True)
    stdin, stdout = _fifos(driver.directory, "init")
    shim = await driver.start(bundle)
    async with open_reader(stdout) as output:
        task = await shim.create(bundle, stdin=str(stdin), stdout=str(stdout), terminal=True)
        await task.start()
        async with open_writer(stdin) as writer:
            await output.wait_for(lambda data: b"/dev/pts/0\r\n" in data)
            await writer.send(b"word\n")
            assert (await task.wait()).exit_status == 0
            await task.delete()
            # The terminal echoes what is typed.
            assert await output.read_all() == b"/dev/pts/0\r\nword\r\ngot word\r\n"


@pytest.mark.better_than_peer("the Go shim hangs the terminal up, and the program dies of it")
async def test_data_then_the_end_of_input_ends_a_program_by_itself(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    for number, text in enumerate((b"one\n", b"no newline", b"")):
        stdin, stdout = _fifos(driver.directory, f"e{number}")
        exec_ = await task.exec(f"e{number}", ["cat"], stdin=str(stdin), stdout=str(stdout), terminal=True)
        async with open_reader(stdout) as output:
            await exec_.start()
            async with open_writer(stdin) as writer:
                await writer.send(text)
            await exec_.close_io()
            assert (await exec_.wait()).exit_status == 0
            await exec_.delete()
            line = text.replace(b"\n", b"\r\n")
            assert await output.read_all() == line + line


@pytest.mark.better_than_peer("as H1")
async def test_a_client_that_comes_back_finds_its_shell(driver: Driver) -> None:
    bundle = driver.bundle(["sh", "-c", "while read line; do echo got $line; done"], terminal=True)
    stdin, stdout = _fifos(driver.directory, "init")
    shim = await driver.start(bundle)
    task = await shim.create(bundle, stdin=str(stdin), stdout=str(stdout), terminal=True)
    await task.start()
    for word in (b"first", b"second"):
        async with open_reader(stdout) as output, open_writer(stdin) as writer:
            await writer.send(word + b"\n")
            await output.wait_for(holds(b"got " + word))
    assert (await task.state()).status == RUNNING
    await task.end()


@pytest.mark.better_than_peer("as H1")
async def test_output_of_an_ended_terminal_reaches_a_late_reader(driver: Driver) -> None:
    bundle = driver.bundle(["echo", "hello"], terminal=True)
    stdin, stdout = _fifos(driver.directory, "init")
    shim = await driver.start(bundle)
    with trio.fail_after(5):
        task = await shim.create(bundle, stdin=str(stdin), stdout=str(stdout), terminal=True)
        await task.start()
        await task.wait()
    async with open_reader(stdout) as output:
        await task.delete()
        assert await output.read_all() == b"hello\r\n"


@pytest.mark.better_than_peer("a stray process that keeps the terminal open")
async def test_a_stray_process_on_the_terminal_delays_the_delete_by_its_bound_only(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    before = open_files(task.shim.pid)
    _, stdout = _fifos(driver.directory, "e")
    script = "trap '' HUP; echo out; sleep 1000 & sleep 0.2"
    exec_ = await task.exec("e", ["sh", "-c", script], stdout=str(stdout), terminal=True)
    async with open_reader(stdout) as output:
        await exec_.start()
        await exec_.wait()
        with trio.fail_after(12):
            await exec_.delete()
        assert await output.read_all() == b"out\r\n"
    assert open_files(task.shim.pid).keys() == before.keys()


async def test_sizes_beyond_sixteen_bits_are_cut(driver: Driver) -> None:
    bundle = driver.bundle(["sh", "-c", "read line; stty size"], terminal=True)
    stdin, stdout = _fifos(driver.directory, "init")
    shim = await driver.start(bundle)
    async with open_reader(stdout) as output:
        task = await shim.create(bundle, stdin=str(stdin), stdout=str(stdout), terminal=True)
        await task.start()
        await task.resize(0, 0)
        await task.resize(65536 + 120, 65536 + 40)
        async with open_writer(stdin) as writer:
            await writer.send(b"\n")
        await task.wait()
        await task.delete()
        assert (await output.read_all()).splitlines()[-1] == b"40 120"


async def test_a_bundle_without_a_terminal_fails_the_create_and_leaves_no_socket(driver: Driver) -> None:
    bundle = driver.bundle(["true"], terminal=False)
    stdin, stdout = _fifos(driver.directory, "init")
    shim = await driver.start(bundle)
    with pytest.raises(errors.Unknown, match="OCI runtime create failed"):
        await shim.create(bundle, stdin=str(stdin), stdout=str(stdout), terminal=True)
    assert not list((driver.directory / "tmp").iterdir())


@pytest.mark.better_than_peer("the 1.6 Go shim runs other commands before", only="go-1.6")
async def test_the_runtime_has_no_stdio_of_its_own_beside_a_terminal(driver: Driver) -> None:
    runtime = make_runtime(driver.directory / "runtime")
    bundle = driver.bundle(["true"], terminal=True)
    stdin, stdout = _fifos(driver.directory, "init")
    shim = await driver.start(bundle)
    options = driver.options(binary_name=runtime.binary)
    async with open_reader(stdout):
        task = await shim.create(bundle, stdin=str(stdin), stdout=str(stdout), terminal=True, options=options)
        words = [line.split() for line in runtime.recorded("fds").splitlines() if " -> " in line]
        # The file is the script's own.
        standard = {word[-1] for word in words if word[-3] in {"0", "1", "2"} and not word[-1].endswith("/runtime/fds")}
        assert standard == {"/dev/null"}
        await task.end()


@pytest.mark.slow
@pytest.mark.better_than_peer("the Go shim leaves descriptors")
async def test_fifty_terminals_in_one_shim_leave_nothing(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    before = open_files(task.shim.pid)

    async def one(number: int) -> None:
        stdin, stdout = _fifos(driver.directory, f"t{number}")
        async with open_reader(stdout) as output:
            name = f"t{number}"
            exec_ = await task.exec(
                name, ["sh", "-c", "read x; echo $x"], stdin=str(stdin), stdout=str(stdout), terminal=True
            )
            await exec_.start()
            async with open_writer(stdin) as writer:
                await writer.send(f"{number}\n".encode())
                await exec_.wait()
            await exec_.delete()
            assert await output.read_all() == f"{number}\r\n{number}\r\n".encode()

    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(one, number)
    assert open_files(task.shim.pid).keys() == before.keys()
    assert not list(os.scandir(driver.directory / "tmp"))


async def _ctr_on_a_terminal(daemon: Daemon, identifier: str, args: list[str], typed: bytes) -> bytes:
    """What a user sees who runs `ctr run -t` at a terminal of his own and types `typed` when the prompt came."""
    master, slave = os.openpty()
    seen = bytearray()
    try:
        process = await trio.lowlevel.open_process(
            daemon.ctr_command(*daemon.run_arguments(identifier, args, "--rm", "--tty")),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=daemon.environment(),
        )
        os.close(slave)
        os.set_blocking(master, False)
        with trio.fail_after(20):
            while True:
                await trio.lowlevel.wait_readable(master)
                try:
                    seen += os.read(master, 65536)
                except OSError:  # the user's terminal has no program any more
                    break
                if typed and b"prompt" in seen:
                    os.write(master, typed)
                    typed = b""
            assert await process.wait() == 0, seen
    finally:
        os.close(master)
    return bytes(seen).replace(b"\r", b"")  # of two terminals, one behind the other


async def test_ctr_run_with_a_terminal(daemon: Daemon) -> None:
    script = "echo prompt; read line; echo got $line; tty"
    seen = await _ctr_on_a_terminal(daemon, "tty", ["sh", "-c", script], b"word\n")
    assert seen.endswith(b"prompt\nword\ngot word\n/dev/pts/0\n")


async def test_ctr_run_with_a_terminal_ends_at_the_users_end_of_input(daemon: Daemon) -> None:
    seen = await _ctr_on_a_terminal(daemon, "tty", ["sh", "-c", "echo prompt; cat; echo end"], b"typed\n\x04")
    assert seen.endswith(b"prompt\ntyped\ntyped\nend\n")


@pytest.mark.slow
@pytest.mark.better_than_peer("the Go shim loses the end of it at times")
async def test_ctr_run_with_a_terminal_shows_all_output(daemon: Daemon) -> None:
    seen = await _ctr_on_a_terminal(daemon, "tty", ["seq", "1", "100000"], b"")
    assert seen.endswith(b"".join(b"%d\n" % number for number in range(1, 100001)))


async def test_ctr_run_with_a_log_uri(daemon: Daemon) -> None:
    log = daemon.directory / "made" / "log"
    flags = ["--detach", "--log-uri", f"file://{log}"]
    await daemon.ctr_ok(*daemon.run_arguments("log", ["sh", "-c", "echo out; echo err >&2"], *flags))
    with trio.fail_after(10):
        while not log.exists() or len(log.read_text().splitlines()) < 2:
            await trio.lowlevel.checkpoint()
    assert sorted(log.read_text().splitlines()) == ["err", "out"]
    await daemon.ctr_ok("task", "delete", "--force", "log")
