"""`shimctl run` for real: our manager over the shim under test and over the stock Go shims, with a real runc.

Each test runs the program as people do, in a state directory of its own; the census sees to it that nothing is left.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import termios
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from shim.manager.layout import Layout
from shim.manager.manager import ManagerConfig, TaskInputs, open_manager
from shim.manager.spec import RunSpec, default_spec
from shim.manager.stdio import Stdio, copy_output, open_stdio
from shim.wire.proto.mount_pb2 import Mount
from tests.system.conftest import KIND
from tests.system.harness.processes import Completed, environment_of, open_files, run_program, wait_ended
from tests.system.harness.subject import Kind, Subject, find_subject

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shim.manager.bundle import Bundle


pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
CGROUPS = Path("/sys/fs/cgroup")
# The manager's own suite covers the whole square: our shim and both stock ones; a foreign one is tried alone.
SHIMS = ["under test", "go-2.4", "go-1.6"] if KIND is Kind.OURS else ["under test"]


@attrs.frozen
class Shimctl:
    """The program, and the place and runtime of one test."""

    directory: Path
    runtime: str
    namespace: str
    """The test's own, so that what another run on this machine has is not counted as left by this one."""

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def bundles(self) -> Path:
        return self.state / "io.containerd.runtime.v2.task" / self.namespace

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(REPOSITORY), "XDG_CACHE_HOME": str(self.directory / "cache")}

    def argv(self, *words: str) -> list[str]:
        place = ["--state", str(self.state), "--root", str(self.directory / "root")]
        place += ["--namespace", self.namespace]
        return [sys.executable, "-m", "shim.cli.main", *place, *words]

    def run_argv(self, *words: str) -> list[str]:
        return self.argv("run", "--runtime", self.runtime, *words)

    async def __call__(self, *words: str, stdin: bytes = b"", umask: int = -1, fds: Sequence[int] = ()) -> Completed:
        return await run_program(self.argv(*words), env=self.env, stdin=stdin, umask=umask, pass_fds=fds)

    async def run(self, *words: str, stdin: bytes = b"", umask: int = -1, fds: Sequence[int] = ()) -> Completed:
        argv = self.run_argv(*words)
        return await run_program(argv, env=self.env, stdin=stdin, umask=umask, pass_fds=fds)

    def popen(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.run_argv(*words),
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def left(self) -> list[str]:
        """Bundles, work directories, cgroups and temporary files that are there now."""
        found = [str(path) for path in self.directory.glob("*/io.containerd.runtime.v2.task/*/*")]
        found += [str(path) for path in self.directory.glob("cache/shimctl/.*")]
        wanted = f"shimctl+{self.namespace}+*"
        found += [str(path) for path in (*CGROUPS.glob(wanted), *CGROUPS.glob(f"*/{wanted}"))]
        return found


@pytest.fixture(params=SHIMS)
def shimctl(
    request: pytest.FixtureRequest, subject: Subject, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shimctl]:
    chosen = subject
    if request.param != "under test":
        monkeypatch.setenv("SHIM_UNDER_TEST", request.param)
        chosen = find_subject(directory)
    made = Shimctl(directory, str(chosen.path), f"t{os.getpid()}-{directory.name}")
    yield made
    assert made.left() == []


async def read_until(process: subprocess.Popen[bytes], wanted: bytes) -> bytes:
    """What the program writes up to `wanted`."""
    assert process.stdout is not None
    got = b""
    with trio.fail_after(20):
        while wanted not in got:
            chunk = await trio.to_thread.run_sync(os.read, process.stdout.fileno(), 4096)
            assert chunk, got
            got += chunk
    return got


async def end_of(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    """Status, and the rest of both outputs."""
    with trio.fail_after(30):
        out, err = await trio.to_thread.run_sync(process.communicate)
    return process.returncode, out, err


async def test_output_and_status_are_the_containers(shimctl: Shimctl) -> None:
    done = await shimctl.run("--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.status, done.output, done.errors) == (7, b"out\n", b"err\n")


async def test_output_is_complete(shimctl: Shimctl) -> None:
    done = await shimctl.run("sh", "-c", "seq 1 200000; seq 1 200000 >&2")
    wanted = "".join(f"{number}\n" for number in range(1, 200_001)).encode()
    assert done.status == 0
    assert (done.output == wanted, done.errors == wanted) == (True, True)


async def test_input_is_passed_when_asked_for(shimctl: Shimctl) -> None:
    data = os.urandom(300_000)
    assert (await shimctl.run("-i", "cat", stdin=data)).output == data
    assert (await shimctl.run("cat", stdin=b"not for it")).output == b""


@pytest.mark.parametrize(
    ("command", "status"),
    [(["nope"], 127), (["/nope"], 127), (["/etc/passwd"], 126), (["sh", "-c", "kill -9 $$"], 137)],
)
async def test_the_exit_status_says_what_went_wrong(shimctl: Shimctl, command: list[str], status: int) -> None:
    done = (
        await shimctl.run(*command) if status != 137 else await shimctl.run("sh", "-c", "sh -c 'kill -9 $$'; exit $?")
    )
    assert done.status == status
    assert done.errors.count(b"\n") <= 1


async def test_the_container_is_as_users_of_ctr_expect(shimctl: Shimctl) -> None:
    script = (
        "id -u; hostname; pwd; grep NoNewPrivs /proc/self/status; ls /proc/acpi /sys/firmware; ulimit -n; "
        "touch /anywhere && echo wrote; echo x > /proc/sys/kernel/hostname || echo refused; ls /sys/class/net"
    )
    done = await shimctl.run("--id", "c1", "-e", "A=b", "sh", "-c", f"{script}; echo $A")
    text = done.output.decode()
    assert text.startswith("0\nc1\n/\nNoNewPrivs:\t1\n")
    assert "1024\nwrote\nrefused\nlo\nb\n" in text


async def test_a_given_directory_is_the_root_as_it_is(shimctl: Shimctl, rootfs: Path) -> None:
    done = await shimctl.run("--rootfs", str(rootfs), "/bin/busybox", "ls", "/")
    assert done.status == 0
    assert sorted(done.text.split()) == sorted(os.listdir(rootfs))


async def test_timings_tell_exit_pid_memory_and_steps(shimctl: Shimctl) -> None:
    done = await shimctl.run("--timings", "true")
    text = done.errors.decode()
    for pattern in (r"exit +0\n", r"pid +\d+\n", r"shim +pid \d+, [\d.]+ MiB PSS, task service v[23], "):
        assert re.search(pattern, text), text
    steps = re.findall(r"^(start shim|create|start|wait|delete|shutdown) +[\d.]+ ms$", text, re.MULTILINE)
    assert steps == ["start shim", "create", "start", "wait", "delete", "shutdown"]


async def test_signals_go_to_the_container(shimctl: Shimctl) -> None:
    traps = "; ".join(f"trap 'echo {name}' {name}" for name in ("INT", "HUP", "QUIT", "USR1", "USR2", "WINCH"))
    process = shimctl.popen(
        "sh", "-c", f"{traps}; trap 'echo TERM; exit 9' TERM; echo ready; while :; do sleep 0.05; done"
    )
    await read_until(process, b"ready\n")
    for name in ("HUP", "INT", "QUIT", "USR1", "USR2", "WINCH"):
        process.send_signal(getattr(signal, f"SIG{name}"))
        await read_until(process, f"{name}\n".encode())
    process.terminate()
    assert await end_of(process) == (9, b"TERM\n", b"")


async def test_a_second_interrupt_after_a_while_ends_a_container_that_ignores_it(shimctl: Shimctl) -> None:
    process = shimctl.popen("sh", "-c", "echo ready; exec sleep 100")
    await read_until(process, b"ready\n")
    process.send_signal(signal.SIGINT)
    await trio.sleep(1.1)  # what is tested is that time between the two
    process.send_signal(signal.SIGINT)
    status, _, _ = await end_of(process)
    assert status == 137


async def test_an_interrupt_at_any_moment_leaves_nothing(shimctl: Shimctl) -> None:
    await shimctl.run("true")  # makes the cache
    for delay in (0.2, 0.3, 0.35, 0.4, 0.45, 0.5):
        process = shimctl.popen("sleep", "0.5")
        await trio.sleep(delay)  # a moment of its life is what is tested, no order with anything
        process.send_signal(signal.SIGINT)
        status, _, errors = await end_of(process)
        assert status in {0, 130, -signal.SIGINT} or b"KeyboardInterrupt" in errors, (delay, status, errors)
        assert shimctl.left() == []


async def test_a_reader_that_goes_away_ends_the_container(shimctl: Shimctl) -> None:
    process = shimctl.popen("yes")
    await read_until(process, b"y\n")
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    status, _, _ = await end_of(process)
    assert status == 137


async def test_a_kept_container_is_named_and_can_be_deleted(shimctl: Shimctl) -> None:
    assert (await shimctl.run("--keep", "--id", "k1", "sh", "-c", "exit 3")).status == 3
    again = await shimctl.run("--id", "k1", "true")
    assert again.status == 125
    assert (
        f"task k1 in namespace {shimctl.namespace} is there already: stopped with status 3; remove it with shimctl"
        in again.errors.decode()
    )
    assert (await shimctl("delete", "k1")).status == 0
    gone = await shimctl("delete", "k1")
    assert (gone.status, gone.errors) == (
        125,
        f"shimctl: task k1 in namespace {shimctl.namespace}: not found\n".encode(),
    )


async def test_a_killed_shimctl_leaves_a_container_that_the_next_one_names(shimctl: Shimctl) -> None:
    process = shimctl.popen("--id", "k2", "sh", "-c", "echo ready; exec sleep 100")
    await read_until(process, b"ready\n")
    process.kill()
    await end_of(process)
    again = await shimctl.run("--id", "k2", "true")
    assert again.status == 125
    assert re.search(
        rb"is there already: running with pid \d+; end and remove it with shimctl .*delete --force k2", again.errors
    )
    refused = await shimctl("delete", "k2")
    assert refused.errors == b"shimctl: task must be stopped before deletion: running\n"
    assert (await shimctl("delete", "--force", "k2")).status == 0


async def test_a_shim_that_is_killed_takes_its_container_along_and_leaves_nothing(shimctl: Shimctl) -> None:
    process = shimctl.popen("--id", "k3", "sh", "-c", "echo ready; exec sleep 100")
    await read_until(process, b"ready\n")
    os.kill(shim_of(shimctl, "k3"), signal.SIGKILL)
    status, _, _ = await end_of(process)
    assert status == 137


async def test_what_is_left_of_a_shim_that_was_killed_alone_can_be_removed(shimctl: Shimctl) -> None:
    assert (await shimctl.run("--keep", "--id", "k4", "true")).status == 0
    shim = shim_of(shimctl, "k4")
    os.kill(shim, signal.SIGKILL)
    await wait_ended(shim, timeout=5)
    again = await shimctl.run("--id", "k4", "true")
    assert b"but its shim does not answer" in again.errors
    assert (await shimctl("delete", "k4")).status == 125
    assert (await shimctl("delete", "--force", "k4")).status == 0


async def test_a_terminal_is_one_to_both_sides(shimctl: Shimctl) -> None:
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (40, 120))
    argv = shimctl.run_argv("-it", "sh", "-c", "tty; stty size; read line; echo got $line; exit 4")
    process = subprocess.Popen(argv, env=shimctl.env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    got = b""
    sent = False
    with trio.fail_after(20):
        while True:
            try:
                chunk = await trio.to_thread.run_sync(os.read, master, 4096)
            except OSError:  # EIO: the program has ended
                break
            got += chunk
            if b"40 120" in got and not sent:
                os.write(master, b"hello\r")
                sent = True
    os.close(master)
    assert process.wait(10) == 4
    assert b"/dev/pts/0\r\n40 120\r\n" in got
    assert b"got hello\r\n" in got


async def test_runs_at_once_do_not_meet(shimctl: Shimctl) -> None:
    results: list[Completed] = []

    async def one(number: int) -> None:
        results.append(await shimctl.run("--id", f"p{number}", "sh", "-c", f"echo {number} > /f; cat /f"))

    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(one, number)
    assert sorted(done.text for done in results) == ["0", "1", "2", "3"]
    assert len(list((shimctl.directory / "cache" / "shimctl").iterdir())) == 1


async def test_two_at_once_on_one_id_make_one_container_and_delete_it_once(shimctl: Shimctl) -> None:
    results: list[Completed] = []

    async def do(*words: str) -> None:
        results.append(await shimctl(*words))

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            words = ["--runtime", shimctl.runtime, "--keep", "--id", "same", "sh", "-c", "echo here; sleep 3"]
            nursery.start_soon(do, "run", *words)
    made, refused = sorted(results, key=lambda done: done.status)
    assert (made.status, made.output, made.errors) == (0, b"here\n", b"")
    assert (refused.status, refused.output) == (125, b"")
    assert b"is there already: " in refused.errors
    results.clear()
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(do, "delete", "same")
    deleted, late = sorted(results, key=lambda done: done.status)
    assert (deleted.status, deleted.errors) == (0, b"")
    assert late.status == 125
    assert late.errors.endswith(b": not found\n")


@pytest.mark.parametrize("umask", [0o000, 0o077], ids=oct)
async def test_modes_do_not_depend_on_the_umask(shimctl: Shimctl, umask: int) -> None:
    """Field fault Y3."""
    assert (await shimctl.run("--keep", "--id", "u1", "true", umask=umask)).status == 0
    bundle = shimctl.bundles / "u1"
    wide = [
        f"{oct(path.lstat().st_mode)} {path.name}"
        for path in bundle.iterdir()
        if path.is_file() and path.lstat().st_mode & 0o133 and path.name not in {"log.json", "init.pid", "address"}
    ]
    assert wide == []
    assert bundle.stat().st_mode & 0o777 == 0o700
    assert (bundle / "log").stat().st_mode & 0o777 == 0o700
    assert (await shimctl("delete", "u1")).status == 0


async def test_descriptors_of_ours_do_not_reach_the_shim(shimctl: Shimctl, directory: Path) -> None:
    """Field fault R3."""
    held = [os.open(directory, os.O_RDONLY) for _ in range(30)]
    try:
        done = await shimctl.run("--keep", "--id", "f1", "true", fds=held)
        assert done.status == 0
        shim = shim_of(shimctl, "f1")
        assert str(directory) not in open_files(shim).values()
        assert f"NAMESPACE={shimctl.namespace}" in environment_of(shim) or "containerd-shim-trio" in shimctl.runtime
    finally:
        for fd in held:
            os.close(fd)
    assert (await shimctl("delete", "f1")).status == 0


async def test_the_second_run_of_an_id_that_runs_harms_nothing(shimctl: Shimctl) -> None:
    """Field fault M5."""
    process = shimctl.popen(
        "--id", "m5", "sh", "-c", "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    )
    await read_until(process, b"ready\n")
    again = await shimctl.run("--id", "m5", "true")
    assert again.status == 125
    process.terminate()
    assert await end_of(process) == (5, b"bye\n", b"")


def shim_of(shimctl: Shimctl, task_id: str) -> int:
    """The pid of the shim that serves the task: who was started with its id."""
    address = json.loads((shimctl.bundles / task_id / "bootstrap.json").read_bytes())["address"]
    assert address.startswith("unix:///")
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").split()  # argv, or a title
        except OSError:
            continue
        theirs = f"{shimctl.state}/manager.sock".encode() in words
        if theirs and b"-id" in words and words[words.index(b"-id") + 1] == task_id.encode():
            found.append(int(entry.name))
    assert len(found) == 1, found
    return found[0]


async def test_a_user_namespace_can_enter_its_bundle(shimctl: Shimctl, rootfs: Path) -> None:
    """Field fault Y1: the root file system is mounted in the bundle, which only its group may enter."""
    layout = Layout(str(shimctl.state), str(shimctl.directory / "root"))
    document = json.loads(
        default_spec(RunSpec(shimctl.namespace, "y1", ["/bin/busybox", "sh", "-c", "echo $(id -u) inside"]))
    )
    document["linux"]["namespaces"].append({"type": "user"})
    mapping = [{"containerID": 0, "hostID": 100_000, "size": 65_536}]
    document["linux"] |= {"uidMappings": mapping, "gidMappings": mapping}
    opened: list[Stdio] = []
    got = bytearray()

    def prepare(bundle: Bundle) -> TaskInputs:
        stdio = open_stdio(bundle.path, stdin=False, terminal=False)
        opened.append(stdio)
        mount = Mount(type="bind", source=str(rootfs), options=["rbind", "ro"])
        return TaskInputs([mount], "", stdio.stdout_path, stdio.stderr_path)

    async def take(data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        got.extend(data)

    with trio.fail_after(30):
        async with open_manager(ManagerConfig(layout)) as manager:
            spec = json.dumps(document).encode()
            task = await manager.create(shimctl.namespace, "y1", spec, runtime=shimctl.runtime, prepare=prepare)
            bundle = os.stat(task.bundle.path)
            assert (bundle.st_mode & 0o777, bundle.st_gid) == (0o710, 100_000)
            with opened[0] as stdio:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(copy_output, stdio.stdout, take)
                    await task.start()
                    assert (await task.wait()).status == 0
            await task.delete()
    assert bytes(got) == b"0 inside\n"
