"""Each fault of the fault runtime in front of the real runc; no shim takes part."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from shim.verify import faults
from shim.verify.faultrun import numbered
from tests.system.harness.bundles import Bundle, Spec, make_bundle

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Literal

    from shim.verify.faultplan import Step
    from shim.verify.faults import FaultRuntime
    from tests.system.harness.places import Places

UMASK = 0o022


class Box:
    """One container of a fault runtime, driven with the words that a shim uses (protocol.md 8.1)."""

    def __init__(self, directory: Path, bundle: Bundle) -> None:
        self.runtime: FaultRuntime = faults.make_fault_runtime(directory, {})
        self.bundle = bundle
        self.log = bundle.file("log.json")
        self.stdout = directory / "stdout"
        self.stderr = directory / "stderr"
        self.common = ["--root", str(directory / "runc"), "--log", str(self.log), "--log-format", "json"]

    def plan(self, **verbs: list[Step]) -> None:
        self.runtime.plan(verbs)

    def begin(self, *words: str) -> subprocess.Popen[bytes]:
        """Output goes to files: a container keeps what `create` was given."""
        with self.stdout.open("wb") as out, self.stderr.open("wb") as err:
            return subprocess.Popen(
                [self.runtime.binary, *self.common, *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=self.bundle.path,
                umask=UMASK,
            )

    def run(self, *words: str) -> int:
        return self.begin(*words).wait(timeout=30)

    def create(self) -> int:
        return self.run(*self.create_words())

    def create_words(self) -> list[str]:
        return ["create", "--bundle", str(self.bundle.path), "--pid-file", str(self.pid_file), self.bundle.id]

    @property
    def pid_file(self) -> Path:
        return self.bundle.file("init.pid")

    def state(self) -> str:
        """The status by the real runtime; empty when it knows no such container."""
        done = subprocess.run(["runc", *self.common[:2], "state", self.bundle.id], capture_output=True, check=False)
        return str(json.loads(done.stdout)["status"]) if done.returncode == 0 else ""

    def errors(self) -> list[str]:
        """The messages of the log's entries of level error."""
        entries = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [entry["msg"] for entry in entries if entry["level"] == "error"]


@pytest.fixture
def box(places: Places, directory: Path, rootfs: Path) -> Iterator[Box]:
    spec = Spec(args=["sleep", "600"], cgroups_path=places.cgroup_path(f"f{directory.name}"), root=str(rootfs))
    made = Box(directory, make_bundle(directory / "bundle", "faulted", spec))
    yield made
    subprocess.run(["runc", *made.common[:2], "delete", "--force", made.bundle.id], capture_output=True, check=True)


def test_without_a_fault_it_is_runc(box: Box) -> None:
    assert box.create() == 0
    assert int(box.pid_file.read_text()) > 0
    assert (box.run("start", "faulted"), box.state()) == (0, "running")
    assert box.run("ps", "--format", "json", "faulted") == 0
    assert json.loads(box.stdout.read_bytes()) == [int(box.pid_file.read_text())]
    assert box.run("kill", "faulted", "9") == 0
    assert box.run("features") == 0
    assert box.run("delete", "--force", "faulted") == 0
    assert (box.state(), box.run("delete", "faulted")) == ("", 1)
    assert box.errors() == ["container does not exist"]


def test_delay(box: Box) -> None:
    box.plan(create=[faults.delay(0.3)])
    begun = time.monotonic()
    assert (box.create(), box.state()) == (0, "created")
    assert time.monotonic() - begun >= 0.3


def test_fail_and_then_work(box: Box) -> None:
    box.plan(create=[faults.fail(3, message="no room", log="{junk\n", log_error="disk full", times=1)])
    assert (box.create(), box.state()) == (3, "")
    assert box.stderr.read_bytes() == b"no room\n"
    junk, entry = box.log.read_text().splitlines()
    assert (junk, json.loads(entry)["msg"]) == ("{junk", "disk full")
    assert (box.create(), box.state(), box.runtime.calls("create")) == (0, "created", 2)


def test_fail_after_the_work_was_done(box: Box) -> None:
    box.plan(create=[faults.after(faults.fail(1, log_error="too late"))])
    assert (box.create(), box.state()) == (1, "created")
    assert box.errors() == ["too late"]


def test_end_by_a_signal(box: Box) -> None:
    box.plan(create=[faults.die(signal.SIGKILL)])
    assert (box.create(), box.state()) == (-signal.SIGKILL, "")


def test_hang_until_killed(box: Box) -> None:
    box.create()
    box.plan(start=[faults.touch("reached"), faults.hang()])
    reached = box.runtime.fifo("reached")
    process = box.begin("start", "faulted")
    assert reached.read_bytes() == b""
    assert process.poll() is None
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert box.state() == "created"


def test_go_on_when_told(box: Box) -> None:
    box.create()
    box.plan(start=[faults.touch("reached"), faults.wait_for("go")])
    reached = box.runtime.fifo("reached")
    process = box.begin("start", "faulted")
    assert (reached.read_bytes(), box.state()) == (b"", "created")
    box.runtime.file("go").touch()
    assert (process.wait(), box.state()) == (0, "running")


def test_tell_when_the_work_was_done(box: Box) -> None:
    box.create()
    box.plan(start=[faults.after(faults.touch("started"), faults.wait_for("go"))])
    started = box.runtime.fifo("started")
    process = box.begin("start", "faulted")
    assert (started.read_bytes(), box.state(), process.poll()) == (b"", "running", None)
    box.runtime.file("go").touch()
    assert process.wait() == 0


@pytest.mark.parametrize("to", ["stdout", "stderr"])
def test_print_a_megabyte(box: Box, to: Literal["stdout", "stderr"]) -> None:
    box.plan(create=[faults.output(1 << 20, to=to), faults.fail(1)])
    assert box.create() == 1
    assert (box.stdout if to == "stdout" else box.stderr).read_bytes() == numbered(1 << 20)


def test_leave_a_child_that_holds_the_pipes(box: Box) -> None:
    box.create()
    box.plan(state=[faults.leave_child(600, pid_file="child")])
    process = subprocess.Popen([box.runtime.binary, *box.common, "state", "faulted"], stdout=subprocess.PIPE)
    assert process.wait() == 0
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    assert json.loads(process.stdout.read())["status"] == "created"
    assert process.stdout.read() is None, "the pipe has ended"
    os.kill(int(box.runtime.file("child").read_text()), signal.SIGKILL)
    os.set_blocking(process.stdout.fileno(), True)
    assert process.stdout.read() == b""
    process.stdout.close()


def test_record_how_it_was_run(box: Box) -> None:
    box.plan(create=[faults.record(environment=["PATH"])])
    process = box.begin(*box.create_words())
    assert process.wait() == 0
    (recorded,) = box.runtime.recorded()
    assert list(recorded.argv) == [*box.common, *box.create_words()]
    assert (recorded.pid, recorded.ppid) == (process.pid, os.getpid())
    assert (recorded.cwd, recorded.umask) == (str(box.bundle.path), UMASK)
    assert recorded.fds == {"0": "/dev/null", "1": str(box.stdout), "2": str(box.stderr)}
    assert recorded.environment == {"PATH": os.environ["PATH"]}


def test_lie_in_state(box: Box) -> None:
    box.create()
    box.plan(state=[faults.lie({"status": "stopped"})], ps=[faults.lie([1])])
    assert box.run("state", "faulted") == 0
    told = json.loads(box.stdout.read_bytes())
    assert (told["status"], told["pid"]) == ("stopped", int(box.pid_file.read_text()))
    assert box.state() == "created"
    assert box.run("ps", "faulted") == 0
    assert json.loads(box.stdout.read_bytes()) == [1]


def test_be_a_runtime_that_nobody_knows(box: Box) -> None:
    box.runtime.plan({"--version": faults.unlike_runc()})
    assert box.run("--version") == 0
    assert box.stdout.read_bytes().startswith(b"faulty-runtime version 1.0\n")
    assert (box.runtime.calls("--version"), box.create()) == (1, 0)


def test_a_fault_for_one_signal_only(box: Box) -> None:
    box.create()
    box.run("start", "faulted")
    box.plan(kill=[faults.fail(1, message="container not running", only="9")])
    assert (box.run("kill", "faulted", "15"), box.run("kill", "faulted", "9")) == (0, 1)
