"""The shim program itself: start, serve, delete, -info and -v as processes; rows O, P, U, V, Y and Z of its kind.

What a daemon does with the program is in the other files; here it is run by hand, also in ways that no daemon would.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from shim.boot.version import VERSION
from shim.rpc.client import open_unix_client
from shim.wire.proto import bootstrap_pb2, mount_pb2, runtime_info_pb2, task_pb2
from shim.wire.services import TASK_V2, TASK_V3
from shim.wire.typeurl import FEATURES_URL, pack
from tests.system.harness.bundles import make_bundle
from tests.system.harness.processes import all_pids, command_line, is_running, open_files, run_program, wait_ended
from tests.system.harness.runtimes import make_runtime
from tests.system.harness.subject import Generation, Kind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.system.harness.bundles import Bundle
    from tests.system.harness.driver import Driver

GROUP = "io.containerd.runc.v2.group"


@pytest.fixture(autouse=True)
def ours(driver: Driver) -> None:
    """These are about our program; a peer's command line is another."""
    if driver.subject.kind is not Kind.OURS:
        pytest.skip("the program of our shim is not under test")


def socket_of(address: str) -> Path:
    return Path(address.removeprefix("unix://"))


def sockets_of(driver: Driver) -> list[str]:
    found = [Path("/run/containerd/s"), driver.socket_dir]
    return [str(path) for directory in found if directory.is_dir() for path in directory.iterdir()]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


async def ended_and_clean(driver: Driver, pid: int) -> None:
    os.kill(pid, signal.SIGTERM)
    await wait_ended(pid, timeout=5)
    assert sockets_of(driver) == []


# -- start ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", list(Generation))
async def test_P1_each_generation_reads_the_answer_and_connects(driver: Driver, generation: Generation) -> None:
    bundle = driver.bundle(["true"])
    shim = await driver.start(bundle, generation=generation, options=driver.options())
    assert shim.answer.version == (3 if generation is Generation.V2 else 2)
    path = socket_of(shim.answer.address)
    assert path.parent == (driver.socket_dir if generation is Generation.V2 else Path("/run/containerd/s"))
    if generation is Generation.V2:
        assert os.readlink(bundle.file("s")) == str(driver.socket_dir)
        assert not bundle.file("address").exists()
        assert shim.answer.result is not None
        [claim] = shim.answer.result.extensions
        assert claim.value == pack(mount_pb2.MountCapabilities(), "type.googleapis.com/")
    else:
        assert bundle.file("address").read_text() == shim.answer.address
        assert not bundle.file("s").is_symlink()
    for service in (TASK_V2, TASK_V3):
        answer = await shim.client.call(service, "Connect", task_pb2.ConnectRequest(id="x"), timeout=5)
        assert isinstance(answer, task_pb2.ConnectResponse)
        assert answer.shim_pid == shim.pid


async def test_group_shares_one_shim(driver: Driver) -> None:
    first, second = (driver.bundle(["true"], annotations={GROUP: "g"}) for _ in range(2))
    one = await driver.start(first, generation=Generation.V1_6)
    two = await driver.start(second, generation=Generation.V1_6)
    assert (one.pid, one.answer.address) == (two.pid, two.answer.address)
    assert second.file("address").read_text() == two.answer.address
    driver.shims.remove(two)


async def test_start_without_a_spec_is_a_sandbox(driver: Driver) -> None:
    driver.bundles_dir.mkdir(parents=True)
    shim = await driver.start(make_bundle(driver.bundles_dir / "pod", "pod", None))
    assert shim.pid


async def test_parallel_starts_of_a_group_make_one_shim(driver: Driver) -> None:
    bundles = [driver.bundle(["true"], annotations={GROUP: "g"}) for _ in range(6)]
    answers: list[bytes] = []

    async def start(bundle: Bundle) -> None:
        done = await driver.run_start(bundle)
        assert done.status == 0, done.text
        answers.append(done.output)

    async with trio.open_nursery() as nursery:
        for bundle in bundles:
            nursery.start_soon(start, bundle)
    assert len(set(answers)) == 1
    shim = await driver.start(bundles[0])
    assert len(sockets_of(driver)) == 1
    await ended_and_clean(driver, shim.pid)


@pytest.mark.parametrize("generation", [Generation.V1_6, Generation.V2])
async def test_dead_socket_is_replaced(driver: Driver, generation: Generation) -> None:
    bundle = driver.bundle(["true"])
    first = await driver.start(bundle, generation=generation)
    await driver.kill_shim(first)
    second = await driver.start(bundle, generation=generation)
    assert second.answer.address == first.answer.address
    assert second.pid != first.pid
    driver.shims.remove(first)


async def test_O1_longest_names(driver: Driver) -> None:
    driver.namespace = "n" * 76
    driver.state = driver.directory / "deep" / ("d" * 100)
    bundle = driver.bundle(["true"], identifier="i" * 76)
    for generation in Generation:
        shim = await driver.start(bundle, generation=generation)
        assert len(str(socket_of(shim.answer.address))) <= 106
        await ended_and_clean(driver, shim.pid)


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ([], "namespace cannot be empty"),
        (["-namespace", "ns"], "id cannot be empty"),
        (["-namespace", "ns", "-id", ""], "id cannot be empty"),
        (["-namespace", "ns", "-id", "a/b"], "id 'a/b' is no identifier"),
        (["-namespace", "ns", "-id", ".."], "id '..' is no identifier"),
        (["-namespace", "../x", "-id", "a"], "namespace '../x' is no identifier"),
        (["-namespace", "ns", "-id", "a\n"], r"id 'a\n' is no identifier"),
        (["-namespace", "ns", "-id", "i" * 77], "77 characters"),
    ],
)
@pytest.mark.parametrize("action", ["start", "delete", ""])
async def test_O4_odd_names_are_refused(driver: Driver, words: list[str], fault: str, action: str) -> None:
    command = [str(driver.subject.path), *words, *([action] if action else [])]
    done = await run_program(command, cwd=driver.directory, env=driver.environment(Generation.V1_6))
    assert (done.status, done.output) == (1, b"")
    assert fault in done.errors.decode()
    assert len(done.errors.splitlines()) == 1
    assert sockets_of(driver) == []


async def test_unknown_flag_prints_usage(driver: Driver) -> None:
    done = await run_program([driver.subject.path, "-nope"], cwd=driver.directory)
    assert (done.status, done.output) == (2, b"")
    assert b"flag provided but not defined: -nope\nUsage of " in done.errors


async def test_unknown_action_is_refused(driver: Driver) -> None:
    done = await run_program([driver.subject.path, "-namespace", "n", "-id", "i", "stop"], cwd=driver.directory)
    assert done.status == 1
    assert b"unknown action 'stop'" in done.errors


@pytest.mark.parametrize(
    ("stdin", "fault"),
    [
        (b"junk", "neither bootstrap parameters nor options"),
        (b'{"version":3}', "neither bootstrap parameters nor options"),
        (bootstrap_pb2.BootstrapParams(instance_id="other", namespace="ns").SerializeToString() + b"\x18\x01", "other"),
        (b"\x0a\x03a/b", "type with url a/b: not found"),
    ],
)
async def test_junk_on_stdin_leaves_nothing(driver: Driver, stdin: bytes, fault: str) -> None:
    bundle = driver.bundle(["true"])
    before = sorted(bundle.path.iterdir())
    done = await driver.run_start(bundle, stdin=stdin)
    assert done.status == 1
    assert fault in done.text
    assert "\n" not in done.text
    assert sorted(bundle.path.iterdir()) == before
    assert sockets_of(driver) == []


async def test_broken_spec_leaves_nothing(driver: Driver) -> None:
    bundle = driver.bundle(["true"])
    bundle.file("config.json").write_text('{"annotations":')
    done = await driver.run_start(bundle)
    assert done.status == 1
    assert "config.json" in done.text
    assert sockets_of(driver) == []


async def test_socket_directory_too_long_is_named(driver: Driver) -> None:
    bundle = driver.bundle(["true"])
    params = bootstrap_pb2.BootstrapParams(
        instance_id=bundle.id, namespace=driver.namespace, socket_dir=f"{driver.directory}/{'d' * 60}"
    )
    done = await driver.run_start(bundle, stdin=params.SerializeToString())
    assert done.status == 1
    assert "at most 106" in done.text
    assert not bundle.file("s").is_symlink()


async def test_answer_that_nobody_takes_undoes_the_start(driver: Driver) -> None:
    bundle = driver.bundle(["true"])
    reader, writer = os.pipe()
    os.close(reader)
    with trio.fail_after(10):
        done = await trio.run_process(
            driver.command(bundle.id, "start"),
            stdin=driver.start_input(bundle.id, Generation.V1_6, None),
            cwd=bundle.path,
            env=driver.environment(Generation.V1_6),
            stdout=writer,
            capture_stderr=True,
            check=False,
        )
    os.close(writer)
    assert done.returncode == 1
    assert b"Broken pipe" in done.stderr
    assert not bundle.file("address").exists()
    assert sockets_of(driver) == []


async def test_start_killed_before_its_answer_takes_the_server_along(driver: Driver) -> None:
    bundle = driver.bundle(["true"])
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writer, b"x" * 4096):
            pass
    os.set_blocking(writer, True)
    start = await trio.lowlevel.open_process(
        driver.command(bundle.id, "start"),
        stdin=None,
        cwd=bundle.path,
        # Its server can be told from its children only when Python is this very process.
        env=driver.environment(Generation.V1_6) | {"MAX_SHIM_VERSION": "", "TRIO_SHIM_TEMPLATE": "off"},
        stdout=writer,
    )
    with trio.fail_after(10):
        while not bundle.file("address").exists():  # the last thing before the answer, which the full pipe holds up
            await trio.lowlevel.checkpoint()
    [path] = sockets_of(driver)
    server = [int(word) for word in Path(f"/proc/{start.pid}/task/{start.pid}/children").read_text().split()]
    start.kill()
    await start.wait()
    for pid in server:
        await wait_ended(pid, timeout=5)
    assert len(server) == 1
    assert not Path(path).exists()
    os.close(reader)
    os.close(writer)


async def test_A7_signal_before_the_server_is_ready(driver: Driver) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        for _ in range(3):
            bundle = driver.bundle(["true"])
            done = await driver.run_start(bundle)
            assert done.status == 0, done.text
            here = f"-address {driver.grpc_address}"
            found = [pid for pid in all_pids() if here in command_line(pid)]
            [server] = [pid for pid in found if is_running(pid)]
            os.kill(server, number)
            await wait_ended(server, timeout=5)
            assert sockets_of(driver) == []


# -- what the server is and holds -------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o077], ids=oct)
@pytest.mark.parametrize("generation", [Generation.V1_6, Generation.V2])
async def test_Y3_modes_whatever_the_umask(driver: Driver, generation: Generation, umask: int) -> None:
    bundle = driver.bundle(["true"])
    shim = await driver.start(bundle, generation=generation, umask=umask)
    path = socket_of(shim.answer.address)
    assert mode_of(path) == 0o600
    assert mode_of(path.parent) == 0o700
    if generation is Generation.V1_6:
        assert mode_of(bundle.file("address")) == 0o644


@pytest.fixture
def odd_fds(directory: Path) -> Iterator[list[int]]:
    path = directory / "held"
    path.touch()
    fds = [os.open(path, os.O_RDONLY) for _ in range(20)]
    yield fds
    for fd in fds:
        os.close(fd)


async def test_U6_inherited_descriptors_reach_nobody(driver: Driver, odd_fds: list[int]) -> None:
    runtime = make_runtime(driver.directory / "runtime")
    bundle = driver.bundle(["sleep", "1000"])
    shim = await driver.start(bundle, pass_fds=odd_fds)
    task = await shim.create(bundle, options=driver.options(binary_name=runtime.binary))
    await task.start()
    held = str(driver.directory / "held")
    assert held not in open_files(shim.pid).values()
    assert held not in open_files(task.pid).values()
    assert held not in runtime.recorded("fds")
    assert [open_files(shim.pid)[number] for number in range(3)] == ["/dev/null"] * 3


async def test_Z1_notify_socket_reaches_nobody(driver: Driver) -> None:
    runtime = make_runtime(driver.directory / "runtime")
    bundle = driver.bundle(["sleep", "1000"])
    shim = await driver.start(bundle, env={"NOTIFY_SOCKET": "/x", "GOMAXPROCS": "7"})
    task = await shim.create(bundle, options=driver.options(binary_name=runtime.binary))
    await task.start()
    assert "NOTIFY_SOCKET" not in runtime.recorded("env")
    assert "GOMAXPROCS=7" in runtime.recorded("env")


async def test_server_belongs_to_nobody(driver: Driver) -> None:
    bundle = driver.bundle(["true"])
    shim = await driver.start(bundle)
    assert os.getsid(shim.pid) == os.getpgid(shim.pid) == shim.pid
    assert os.readlink(f"/proc/{shim.pid}/cwd") == "/"
    assert Path(f"/proc/{shim.pid}/comm").read_text() == "containerd-shim\n"
    assert "Umask:\t0000" in Path(f"/proc/{shim.pid}/status").read_text()
    assert len(os.listdir(f"/proc/{shim.pid}/task")) == 1


@pytest.mark.parametrize(("own", "expected"), [(0, 1), (100, 101), (1000, 1000)])
async def test_V4_oom_score_is_one_above_the_daemon(driver: Driver, own: int, expected: int) -> None:
    mine = Path("/proc/self/oom_score_adj")
    before = mine.read_text()
    mine.write_text(str(own))
    try:
        shim = await driver.start(driver.bundle(["true"]))
    finally:
        mine.write_text(before)
    assert int(Path(f"/proc/{shim.pid}/oom_score_adj").read_text()) == expected


@pytest.fixture
async def cgroup(driver: Driver) -> AsyncIterator[str]:
    """A cgroup for a shim in every hierarchy, removed again."""
    path = driver.places.cgroup_path(f"shim-{driver.namespace}")
    roots = [root for root in Path("/sys/fs/cgroup").iterdir() if (root / "cgroup.procs").exists()]
    made = [Path(f"{root}{path}") for root in roots]
    for directory in made:
        directory.mkdir(parents=True)
    for name in ("cpus", "mems"):
        cpuset = Path(f"/sys/fs/cgroup/cpuset{path}/cpuset.{name}")
        if cpuset.exists():
            whole = Path(f"/sys/fs/cgroup/cpuset/cpuset.{name}").read_text()
            (cpuset.parent.parent / cpuset.name).write_text(whole)
            cpuset.write_text(whole)
    yield path
    await driver.close()
    for directory in made:
        directory.rmdir()


async def test_V6_shim_is_in_its_cgroup_before_its_first_task(driver: Driver, cgroup: str) -> None:
    shim = await driver.start(driver.bundle(["true"]), options=driver.options(shim_cgroup=cgroup))
    lines = Path(f"/proc/{shim.pid}/cgroup").read_text().splitlines()
    assert [line for line in lines if line.endswith(f":{cgroup}")]
    await ended_and_clean(driver, shim.pid)


@pytest.mark.parametrize("cgroup_path", ["/no/such/cgroup", "/../.."])
async def test_V6_missing_cgroup_is_named_and_leaves_nothing(driver: Driver, cgroup_path: str) -> None:
    bundle = driver.bundle(["true"])
    done = await driver.run_start(bundle, options=driver.options(shim_cgroup=cgroup_path))
    assert done.status == 1
    assert f"shim cgroup {cgroup_path} does not exist" in done.text
    assert not bundle.file("s").is_symlink()
    assert sockets_of(driver) == []


async def test_signal_shows_the_stacks_in_the_log(driver: Driver) -> None:
    shim = await driver.start(driver.bundle(["true"]))
    os.kill(shim.pid, signal.SIGUSR1)
    await shim.connect("x")
    assert "most recent call first" in shim.log.drain()


async def test_serves_a_given_descriptor_and_a_given_path(driver: Driver) -> None:
    bundle = driver.bundle(["true"])
    given, asked = driver.directory / "given", driver.directory / "asked"
    command = [str(driver.subject.path), "-namespace", driver.namespace, "-id", bundle.id, "-address", "/a"]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(given))
    listener.listen()

    def give() -> None:
        os.dup2(listener.fileno(), 3)

    run = partial(trio.lowlevel.open_process, cwd=bundle.path, env=driver.environment(Generation.V2))
    first = await run(command, preexec_fn=give, pass_fds=[3])
    second = await run([*command, "-socket", str(asked)])
    with trio.fail_after(10):
        while not asked.exists():
            await trio.lowlevel.checkpoint()
        for path, process in ((given, first), (asked, second)):
            async with open_unix_client(f"unix://{path}", dial_timeout=5) as client:
                answer = await client.call(TASK_V3, "Connect", task_pb2.ConnectRequest(id="x"), timeout=5)
                assert isinstance(answer, task_pb2.ConnectResponse)
                assert answer.shim_pid == process.pid
            listener.close()
            process.terminate()
            assert await process.wait() == 0
            assert not path.exists()


async def test_serving_nothing_is_an_error(driver: Driver) -> None:
    command = [str(driver.subject.path), "-namespace", "n", "-id", "i"]
    done = await run_program(command, cwd=driver.directory)
    assert done.status == 1
    assert b"no listening socket at descriptor 3" in done.errors
    done = await run_program([*command, "-socket", f"/tmp/{'x' * 102}"], cwd=driver.directory)
    assert done.status == 1
    assert b"at most 106" in done.errors


# -- delete -----------------------------------------------------------------------------------------------------------


async def test_P2_killed_shims_leave_no_socket_after_delete(driver: Driver) -> None:
    for number in range(20):
        generation = Generation.V1_6 if number % 2 else Generation.V2
        bundle = driver.bundle(["true"])
        shim = await driver.start(bundle, generation=generation)
        await driver.kill_shim(shim)
        driver.shims.remove(shim)
        done, answer = await driver.delete_command(bundle)
        assert (done.status, done.errors) == (0, b"")
        assert (answer.pid, answer.exit_status) == (0, 137)
    assert sockets_of(driver) == []


MISSING = ["nothing", "init.pid", "runtime", "options.json", "address", "s", "config.json", "bootstrap.json", "log"]


@pytest.mark.parametrize("generation", [Generation.V1_6, Generation.V2])
@pytest.mark.parametrize("missing", [*MISSING, "all", "empty init.pid", "junk", "rootfs"])
async def test_P4_delete_with_a_file_missing(driver: Driver, missing: str, generation: Generation) -> None:
    bundle = driver.bundle(["sleep", "1000"])
    shim = await driver.start(bundle, generation=generation)
    task = await shim.create(bundle)
    await task.start()
    await driver.kill_shim(shim)
    driver.shims.remove(shim)
    if generation is Generation.V2:  # as the daemon does after a start
        bundle.file("bootstrap.json").write_text(json.dumps({"version": 3, "address": shim.answer.address}))
    if missing == "empty init.pid":
        bundle.file("init.pid").write_text("")
    elif missing == "junk":
        for name in ("init.pid", "runtime", "options.json", "exit.json", "address"):
            bundle.file(name).write_bytes(b"\xff\0{")
    elif missing == "rootfs":
        bundle.file("rootfs").rmdir()
    elif missing == "all":
        for path in bundle.path.iterdir():
            if path.name not in {"rootfs", "init.pid", "bootstrap.json"}:
                path.unlink()
    else:
        bundle.file(missing).unlink(missing_ok=True)
    done, answer = await driver.delete_command(bundle)
    assert done.status == 0, done.errors
    known = missing != "junk"  # the runtime's own record tells the pid too, where its root is known
    assert (answer.pid, answer.exit_status) == (task.pid if known else 0, 137)
    assert sockets_of(driver) == []
    if missing in {"options.json", "all", "junk"}:
        # The runtime's root stood only there: what is known by its pid is ended all the same.
        bundle.file("options.json").write_text(f'{{"root":"{driver.runc_root}"}}')
        bundle.file("runtime").unlink(missing_ok=True)
        if known:
            assert not is_running(task.pid)
        done, _ = await driver.delete_command(bundle)
        assert done.status == 0
    assert not is_running(task.pid)


async def test_delete_twice_and_from_a_sibling(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    await driver.kill_shim(task.shim)
    driver.shims.remove(task.shim)
    sibling = driver.bundle(["true"])
    before = sorted(task.bundle.path.iterdir())
    command = driver.command(task.id, "delete")
    environment = driver.environment(Generation.V2)
    for _ in range(2):
        done = await run_program(command, cwd=sibling.path, env=environment)
        assert (done.status, done.errors) == (0, b"")
        answer = task_pb2.DeleteResponse.FromString(done.output)
        assert (answer.pid, answer.exit_status) == (task.pid, 137)
        assert not is_running(task.pid)
    assert sorted({*task.bundle.path.iterdir()} - {task.bundle.file("log.json")}) == [
        path for path in before if path.name != "log.json"
    ]


async def test_P6_delete_of_one_member_leaves_the_other(driver: Driver) -> None:
    first, second = (driver.bundle(["sleep", "1000"], annotations={GROUP: "g"}) for _ in range(2))
    shim = await driver.start(first)
    await driver.run_start(second)
    one, two = await shim.create(first), await shim.create(second)
    await one.start()
    await two.start()
    done, answer = await driver.delete_command(first)
    assert done.status == 0, done.errors
    assert (answer.pid, answer.exit_status) == (one.pid, 137)
    assert first.path.exists()
    assert is_running(two.pid)
    assert is_running(shim.pid)
    assert len(sockets_of(driver)) == 1
    assert (await shim.connect(two.id)).task_pid == two.pid


async def test_N6_id_is_free_again_after_delete(driver: Driver) -> None:
    task = await driver.run(["sleep", "1000"])
    await task.start()
    await driver.kill_shim(task.shim)
    driver.shims.remove(task.shim)
    assert (await driver.delete_command(task.bundle))[0].status == 0
    for path in task.bundle.path.iterdir():
        if path.name not in {"config.json", "log", "rootfs"}:
            path.unlink()
    shim = await driver.start(task.bundle)
    again = await shim.create(task.bundle)
    await again.start()
    assert is_running(again.pid)


async def test_recycled_pid_is_not_killed(driver: Driver) -> None:
    bundle = driver.bundle(["true"])
    bundle.file("init.pid").write_text(str(os.getpid()))
    done, answer = await driver.delete_command(bundle)
    assert done.status == 0
    assert (answer.pid, answer.exit_status) == (os.getpid(), 137)


async def test_record_of_another_task_is_not_believed(driver: Driver) -> None:
    bundle = driver.bundle(["true"])
    bundle.file("exit.json").write_text(
        '{"Timestamp":"2026-01-02T03:04:05Z","Pid":9,"Status":7,"Namespace":"x","ID":"y"}'
    )
    _, answer = await driver.delete_command(bundle)
    assert (answer.pid, answer.exit_status) == (0, 137)
    bundle.file("exit.json").write_text('{"Timestamp":"2026-01-02T03:04:05Z","Pid":9,"Status":7}')
    _, answer = await driver.delete_command(bundle)
    assert (answer.pid, answer.exit_status, answer.exited_at.seconds) == (9, 7, 1_767_323_045)


async def test_hanging_runtime_does_not_hold_delete(driver: Driver) -> None:
    bundle = driver.bundle(["true"])
    script = driver.directory / "hang"
    script.write_text("#!/bin/sh\nexec sleep 1000\n")
    script.chmod(0o755)
    bundle.file("runtime").write_text(str(script))
    with trio.fail_after(4.5):
        done, answer = await driver.delete_command(bundle)
    assert done.status == 0
    assert answer.exit_status == 137
    assert b"did not end within" in done.errors


# -- information ------------------------------------------------------------------------------------------------------


async def test_info(driver: Driver) -> None:
    options = driver.options(systemd_cgroup=True)
    done = await run_program([driver.subject.path, "-info"], stdin=options.SerializeToString(), cwd=driver.directory)
    assert (done.status, done.errors) == (0, b"")
    info = runtime_info_pb2.RuntimeInfo.FromString(done.output)
    assert (info.name, info.version.version) == ("io.containerd.trio.v2", VERSION)
    assert info.options == options
    assert info.features.type_url == FEATURES_URL
    assert b"ociVersionMin" in info.features.value
    assert not info.annotations


async def test_info_without_options_and_of_a_runtime_without_features(driver: Driver) -> None:
    done = await run_program([driver.subject.path, "-info"], cwd=driver.directory)
    info = runtime_info_pb2.RuntimeInfo.FromString(done.output)
    assert not info.HasField("options")
    options = driver.options(binary_name="/bin/false")
    done = await run_program([driver.subject.path, "-info"], stdin=options.SerializeToString(), cwd=driver.directory)
    assert done.status == 0
    assert not runtime_info_pb2.RuntimeInfo.FromString(done.output).HasField("features")


async def test_info_of_a_missing_runtime_is_an_error(driver: Driver) -> None:
    options = driver.options(binary_name="no-such-runtime")
    done = await run_program([driver.subject.path, "-info"], stdin=options.SerializeToString(), cwd=driver.directory)
    assert (done.status, done.output) == (1, b"")
    assert b"no-such-runtime" in done.errors


@pytest.mark.parametrize("flag", ["-v", "--version"])
async def test_version(driver: Driver, flag: str) -> None:
    done = await run_program([driver.subject.path, flag], cwd=driver.directory)
    assert (done.status, done.errors) == (0, b"")
    assert VERSION in done.text
