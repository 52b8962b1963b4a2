"""Fault rows O: names and long strings."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

import pytest
from google.protobuf.any_pb2 import Any as AnyMessage

from shim import errors
from shim.wire.proto import task_pb2
from shim.wire.typeurl import PROCESS_URL
from tests.system.harness.bundles import make_process
from tests.system.harness.fifos import open_reader
from tests.system.harness.raw import open_raw, request_body
from tests.system.harness.task import STOPPED

if TYPE_CHECKING:
    from tests.system.harness.daemons import Daemon
    from tests.system.harness.driver import Driver

LONGEST: Final = 76
ODD_IDS: Final = ["a/b", "..", "../escape", ".hidden", "", "two\nlines", "x" * (LONGEST + 1), "ends-", "a b", "a\0b"]
GOOD_IDS: Final = ["a.b", "a-b", "a_b", "0", "A.b-c_d.0", "x" * LONGEST]


async def test_O1_longest_names_in_a_deep_directory(driver: Driver) -> None:
    driver.namespace = "n" * LONGEST
    driver.state = driver.directory / ("d" * 120) / ("e" * 120)
    driver.state.mkdir(parents=True)
    bundle = driver.bundle(["echo", "hello"], identifier="i" * LONGEST)
    shim = await driver.start(bundle)
    assert len(shim.answer.address.removeprefix("unix://")) <= 107
    stdout = driver.directory / "stdout"
    async with open_reader(stdout) as output:
        task = await shim.create(bundle, stdout=str(stdout), stderr=str(stdout))
        await task.start()
        assert (await task.wait()).exit_status == 0
        assert (await task.delete()).exit_status == 0
        assert await output.read_all() == b"hello\n"


async def test_O1_longest_names_under_a_daemon(daemon: Daemon) -> None:
    daemon.namespace = "n" * LONGEST
    done = await daemon.run("i" * LONGEST, ["echo", "hello"], "--rm")
    assert (done.status, done.output) == (0, b"hello\n")


async def test_O3_long_argument_reaches_the_container(driver: Driver) -> None:
    argument = "x" * (120 << 10)
    bundle = driver.bundle(["sh", "-c", "echo ${#0}", argument])
    shim = await driver.start(bundle)
    path = bundle.file("stdout")
    async with open_reader(path) as output:
        task = await shim.create(bundle, stdout=str(path), stderr=str(path))
        await task.start()
        await task.wait()
        await task.delete()
        assert await output.read_all() == f"{len(argument)}\n".encode()


async def test_O3_too_large_environment_is_the_kernels_error(driver: Driver) -> None:
    large = [f"V{number}={'x' * (100 << 10)}" for number in range(30)]
    bundle = driver.bundle(["true"], env=large)
    shim = await driver.start(bundle)
    path = bundle.file("stdout")
    async with open_reader(path) as output:
        task = await shim.create(bundle, stdout=str(path), stderr=str(path))
        try:
            await task.start()
        except errors.ShimError as error:
            reason = error.message
            await task.end()
        else:
            assert (await task.wait()).exit_status != 0
            await task.delete()
            reason = (await output.read_all()).decode()
    assert "argument list too long" in reason
    again = await shim.create(driver.bundle(["true"]))
    await again.start()
    assert (await again.wait()).exit_status == 0


async def test_O3_too_large_request_is_refused_and_the_next_works(driver: Driver) -> None:
    task = await driver.run(["true"])
    with pytest.raises(errors.ResourceExhausted):
        await task.shim.known("x" * (5 << 20)).state()
    await task.start()
    assert (await task.wait()).exit_status == 0


@pytest.mark.parametrize("identifier", GOOD_IDS)
async def test_O4_ids_of_the_rule_work(driver: Driver, identifier: str) -> None:
    bundle = driver.bundle(["true"], identifier=identifier)
    shim = await driver.start(bundle)
    task = await shim.create(bundle)
    await task.start()
    assert (await task.wait()).exit_status == 0
    await task.delete()
    assert (await task.shim.connect(identifier)).task_pid == 0
    await driver.sink.wait_for_topic(identifier, "/tasks/delete")


@pytest.mark.better_than_peer("the Go shim leaves ids to the daemon and to runc")
async def test_O4_odd_ids_are_refused_by_create(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    before = sorted(driver.directory.rglob("*"))
    for identifier in ODD_IDS:
        with pytest.raises(errors.InvalidArgument):
            await task.shim.create(task.bundle, identifier=identifier)
        assert (await task.state()).status < STOPPED
    assert sorted(driver.directory.rglob("*")) == before


@pytest.mark.better_than_peer("the Go shim leaves ids to the daemon and to runc")
@pytest.mark.parametrize("identifier", [odd for odd in ODD_IDS if "\0" not in odd])
async def test_O4_odd_ids_are_refused_by_the_start_command(driver: Driver, identifier: str) -> None:
    bundle = driver.bundle(["true"])
    done = await driver.run_start(bundle, command=driver.command(identifier, "start"))
    assert done.status != 0
    assert re.search(r"\bid(entifier)?\b", done.text)
    assert not driver.socket_dir.exists() or not list(driver.socket_dir.iterdir())


async def test_O3_long_argument_reaches_an_exec(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    argument = "x" * (120 << 10)
    path = driver.directory / "stdout"
    async with open_reader(path) as output:
        exec_ = await task.exec("e", ["sh", "-c", "echo ${#0}", argument], stdout=str(path), stderr=str(path))
        await exec_.start()
        assert (await exec_.wait()).exit_status == 0
        await exec_.delete()
        assert await output.read_all() == f"{len(argument)}\n".encode()


async def test_O3_too_large_environment_of_an_exec_is_the_kernels_error(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    large = [f"V{number}={'x' * (100 << 10)}" for number in range(30)]
    for number in range(3):
        path = driver.directory / f"stdout{number}"
        async with open_reader(path) as output:
            exec_ = await task.exec("e", ["true"], env=large, stdout=str(path), stderr=str(path))
            await exec_.start()  # runc has handed over when the kernel refuses
            assert (await exec_.wait()).exit_status not in {0, 137}
            await exec_.delete()
            assert b"argument list too long" in await output.read_all()
        assert await task.run_exec("e", ["sh", "-c", "exit 3"]) == 3


async def test_O3_too_large_exec_is_refused_and_the_next_works(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    spec = json.dumps(make_process(["true"], env=["V=" + "x" * (5 << 20)])).encode()
    with pytest.raises(errors.ResourceExhausted):
        await task.exec_spec("e", spec)  # our client sends no such frame
    request = task_pb2.ExecProcessRequest(id=task.id, exec_id="e", spec=AnyMessage(type_url=PROCESS_URL, value=spec))
    async with open_raw(task.shim.answer.address) as raw:
        await raw.send(1, request_body(task.shim.service, "Exec", request))
        assert (await raw.receive()).code == errors.ResourceExhausted.code
        state = task_pb2.StateRequest(id=task.id)
        await raw.send(3, request_body(task.shim.service, "State", state))
        assert (await raw.receive()).code == 0
    assert await task.run_exec("e", ["sh", "-c", "exit 3"]) == 3


@pytest.mark.parametrize("identifier", [*GOOD_IDS, "e" * 71])
async def test_O4_exec_ids_of_the_rule_work(driver: Driver, identifier: str) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    exec_ = await task.exec(identifier, ["sh", "-c", "exit 3"])
    await exec_.start()
    assert (await exec_.wait()).exit_status == 3
    assert (await exec_.state()).id == identifier
    assert task.bundle.file(f"{identifier}.pid").exists()
    await exec_.delete()
    assert not task.bundle.file(f"{identifier}.pid").exists()
    await driver.sink.wait_for_topic(task.id, "/tasks/exit")


@pytest.mark.better_than_peer("the Go shim leaves ids to the daemon")
async def test_O4_odd_exec_ids_are_refused(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    before = sorted(driver.directory.rglob("*"))
    for identifier in ODD_IDS:
        with pytest.raises(errors.InvalidArgument, match="exec id"):
            await task.exec(identifier, ["true"])
    for call in (task.known_exec("../escape").state, task.known_exec("a/b").start, task.known_exec("..").delete):
        with pytest.raises(errors.NotFound):
            await call()
    assert sorted(driver.directory.rglob("*")) == before


@pytest.mark.better_than_peer("the Go shim lets such an exec write and then remove the pid file of init")
async def test_O4_exec_id_that_names_a_file_of_init_is_refused(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    with pytest.raises(errors.InvalidArgument, match="exec id init"):
        await task.exec("init", ["true"])
    assert task.bundle.file("init.pid").read_text() == str(task.pid)
    for identifier in ("config", "log", "exit", "options"):  # these name no file that an exec writes
        assert await task.run_exec(identifier, ["true"]) == 0
    assert task.bundle.read_json("options.json")
