"""Input that is wrong: each a clear error of the right class, nothing left behind, the shim alive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from google.protobuf.any_pb2 import Any as AnyMessage

from shim import errors
from shim.wire.proto import task_pb2
from tests.system.harness.bundles import Bundle, make_bundle
from tests.system.harness.processes import run_program
from tests.system.harness.runtimes import make_runtime
from tests.system.harness.task import RUNNING

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

    from tests.system.harness.driver import Driver
    from tests.system.harness.task import Shim


def _sockets(driver: Driver) -> list[str]:
    return [path.name for path in driver.socket_dir.iterdir()] if driver.socket_dir.is_dir() else []


async def _refused_start(driver: Driver, bundle: Bundle, command: list[str]) -> str:
    """The error text of a start command that must fail and leave no socket."""
    done = await driver.run_start(bundle, command=command)
    assert done.status != 0
    assert _sockets(driver) == []
    assert len(done.text) < 2000, "an error, not a traceback"
    assert "Traceback" not in done.text
    return done.text


async def _still_works(driver: Driver, shim: Shim) -> None:
    """The shim takes another task, the whole way."""
    task = await shim.create(driver.bundle(["true"]))
    await task.start()
    assert (await task.wait()).exit_status == 0
    await task.delete()


def _nothing_left(driver: Driver, bundle: Bundle) -> None:
    assert not list(driver.runc_root.glob("*/*")), "runtime state"
    with open("/proc/self/mountinfo") as table:
        assert not [line for line in table if line.split()[4].startswith(str(bundle.path))], "mounts"


async def test_unknown_flag(driver: Driver) -> None:
    bundle = driver.bundle(["true"])
    text = await _refused_start(driver, bundle, [*driver.command(bundle.id), "-no-such-flag", "start"])
    assert "no-such-flag" in text


async def test_flag_without_its_value(driver: Driver) -> None:
    bundle = driver.bundle(["true"])
    text = await _refused_start(driver, bundle, [str(driver.subject.path), "-namespace"])
    assert "namespace" in text


async def test_missing_namespace(driver: Driver) -> None:
    bundle = driver.bundle(["true"])
    command = [str(driver.subject.path), "-id", bundle.id, "-address", str(driver.grpc_address), "start"]
    assert "namespace" in await _refused_start(driver, bundle, command)


@pytest.mark.better_than_peer("the Go shim says that the bootstrap parameters do not match")
async def test_missing_id(driver: Driver) -> None:
    bundle = driver.bundle(["true"])
    command = [str(driver.subject.path), "-namespace", "x", "-address", str(driver.grpc_address), "start"]
    assert "id" in (await _refused_start(driver, bundle, command)).split()


@pytest.mark.better_than_peer("the Go shim takes any other word for the serving command")
async def test_unknown_action(driver: Driver) -> None:
    bundle = driver.bundle(["true"])
    assert "no-such-action" in await _refused_start(driver, bundle, driver.command(bundle.id, "no-such-action"))


@pytest.mark.parametrize("content", [b"{ not json", b"\xff\xfe", b"[]"], ids=["broken", "binary", "list"])
async def test_unreadable_config_at_start(driver: Driver, content: bytes) -> None:
    bundle = driver.bundle(["true"])
    bundle.file("config.json").write_bytes(content)
    await _refused_start(driver, bundle, driver.command(bundle.id, "start"))


async def test_unreadable_config_at_create(driver: Driver) -> None:
    bundle = driver.bundle(["true"])
    shim = await driver.start(bundle)
    good = bundle.file("config.json").read_bytes()
    bundle.file("config.json").write_bytes(b"{ not json")
    with pytest.raises(errors.ShimError) as caught:
        await shim.create(bundle)
    assert "Traceback" not in caught.value.message
    assert type(caught.value) in {errors.Unknown, errors.InvalidArgument}
    _nothing_left(driver, bundle)
    bundle.file("config.json").write_bytes(good)
    await (await shim.create(bundle)).delete()


async def test_unknown_options_type(driver: Driver) -> None:
    bundle = driver.bundle(["true"])
    shim = await driver.start(bundle)
    unknown = AnyMessage(type_url="example.test/no.such.Options", value=b"\x0a\x01x")
    with pytest.raises((errors.InvalidArgument, errors.Unknown), match=r"no\.such\.Options"):
        await shim.create(bundle, options=unknown)
    _nothing_left(driver, bundle)
    await (await shim.create(bundle)).delete()


@pytest.mark.better_than_peer("the Go shim answers Unknown")
async def test_unknown_options_type_is_an_invalid_argument(driver: Driver) -> None:
    bundle = driver.bundle(["true"])
    shim = await driver.start(bundle)
    unknown = AnyMessage(type_url="example.test/no.such.Options", value=b"\x0a\x01x")
    with pytest.raises(errors.InvalidArgument):
        await shim.create(bundle, options=unknown)


async def test_missing_runtime(driver: Driver) -> None:
    bundle = driver.bundle(["true"])
    shim = await driver.start(bundle)
    with pytest.raises(errors.ShimError, match="/nonexistent/runtime"):
        await shim.create(bundle, options=driver.options(binary_name="/nonexistent/runtime"))
    _nothing_left(driver, bundle)
    await (await shim.create(bundle)).delete()


async def test_missing_program_in_the_container(driver: Driver) -> None:
    bundle = driver.bundle(["/no/such/program"])
    shim = await driver.start(bundle)
    with pytest.raises(errors.Unknown, match=r"OCI runtime create failed: .*/no/such/program"):
        await shim.create(bundle)
    _nothing_left(driver, bundle)
    await _still_works(driver, shim)


async def test_missing_bundle(driver: Driver) -> None:
    bundle = driver.bundle(["true"])
    shim = await driver.start(bundle)
    missing = Bundle("missing", driver.bundles_dir / "missing")
    with pytest.raises(errors.NotFound):
        await shim.create(missing)
    assert not missing.path.exists()
    await _still_works(driver, shim)


async def test_second_create_of_a_live_id(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    with pytest.raises((errors.AlreadyExists, errors.Unknown)):
        await task.shim.create(task.bundle)
    assert (await task.state()).status == RUNNING
    await _still_works(driver, task.shim)


@pytest.mark.better_than_peer("the Go shim gives the runtime's error, as Unknown")
async def test_second_create_of_a_live_id_already_exists(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    with pytest.raises(errors.AlreadyExists):
        await task.shim.create(task.bundle)
    other = make_bundle(driver.bundles_dir / "other", "other", driver.spec(["true"], "other"))
    with pytest.raises(errors.AlreadyExists):
        await task.shim.create(other, identifier=task.id)


async def test_calls_for_an_unknown_task(driver: Driver) -> None:
    bundle = driver.bundle(["true"])
    shim = await driver.start(bundle)
    nobody = shim.known("nobody")
    for call in (nobody.start, nobody.state, nobody.wait, nobody.kill, nobody.delete):
        with pytest.raises(errors.NotFound):
            await call()
    assert (await shim.connect("nobody")).task_pid == 0


@pytest.mark.parametrize(
    ("method", "request_type"),
    [
        ("Pids", task_pb2.PidsRequest),
        ("Pause", task_pb2.PauseRequest),
        ("Resume", task_pb2.ResumeRequest),
        ("Stats", task_pb2.StatsRequest),
        ("Exec", task_pb2.ExecProcessRequest),
        ("ResizePty", task_pb2.ResizePtyRequest),
        ("CloseIO", task_pb2.CloseIORequest),
        ("Update", task_pb2.UpdateTaskRequest),
        ("Checkpoint", task_pb2.CheckpointTaskRequest),
    ],
)
async def test_other_calls_for_an_unknown_task(
    driver: Driver, method: str, request_type: Callable[..., Message]
) -> None:
    shim = await driver.start(driver.bundle(["true"]))
    with pytest.raises(errors.NotFound):
        await shim.send(method, request_type(id="nobody"))


async def test_failed_create_leaves_no_process(driver: Driver) -> None:
    runtime = make_runtime(driver.directory / "runtime")
    runtime.fail_create(b'{"level":"error","msg":"no luck today"}\n')
    bundle = driver.bundle(["sleep", "1000"])
    shim = await driver.start(bundle)
    options = driver.options(binary_name=runtime.binary)
    for _ in range(3):
        with pytest.raises(errors.Unknown, match="no luck today"):
            await shim.create(bundle, options=options)
    _nothing_left(driver, bundle)
    with pytest.raises(errors.NotFound):
        await shim.known(bundle.id).state()
    assert driver.sink.of(bundle.id) == []
    runtime.work()
    task = await shim.create(bundle, options=options)
    await task.start()
    await task.end()


async def test_version_needs_nothing_else(driver: Driver) -> None:
    done = await run_program([driver.subject.path, "-v"])
    assert done.status == 0
    assert "ersion" in done.text


async def test_failed_start_of_init_leaves_the_task_deletable(driver: Driver) -> None:
    # The program goes away between Create and Start: only the kernel, at Start, can tell.
    bundle = driver.bundle(
        ["/mnt/program"],
        mounts=[{"destination": "/mnt", "type": "bind", "source": str(driver.directory / "x"), "options": ["rbind"]}],
    )
    source = driver.directory / "x"
    source.mkdir()
    program = source / "program"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    shim = await driver.start(bundle)
    task = await shim.create(bundle)
    program.write_text("not a program")
    try:
        await task.start()
    except errors.ShimError:
        pass
    else:
        assert (await task.wait()).exit_status != 0
    await task.end()
    await _still_works(driver, shim)
