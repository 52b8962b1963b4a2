"""The payload program, verb by verb, without a container."""

from __future__ import annotations

import fcntl
import hashlib
import os
import pty
import re
import signal
import struct
import subprocess
import termios
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest

from native.programs import HERE, ensure_program
from shim.verify.faultrun import numbered
from shim.verify.payload import find_payload

if TYPE_CHECKING:
    from collections.abc import Iterator

FAILED, MISUSED = 125, 126


@pytest.fixture(scope="module")
def payload() -> str:
    return str(ensure_program("shim-payload"))


def run(payload: str, words: str, *more: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([payload, *words.split(), *more], input=stdin, capture_output=True, check=False)


def report(process: subprocess.CompletedProcess[bytes]) -> dict[str, str]:
    return dict(line.split("=", 1) for line in process.stdout.decode().splitlines())


class Started:
    """A payload that runs on; its output by lines."""

    def __init__(self, payload: str, words: str) -> None:
        self.process = subprocess.Popen([payload, *words.split()], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.stdout: IO[bytes] = self.process.stdout

    def line(self) -> str:
        return self.stdout.readline().decode().removesuffix("\n")

    def end(self) -> int:
        self.process.kill()
        self.stdout.close()
        return self.process.wait()


@pytest.fixture
def started(payload: str, request: pytest.FixtureRequest) -> Iterator[Started]:
    made = Started(payload, request.param)
    yield made
    made.end()


def test_the_source_and_the_program_document_the_same_verbs(payload: str) -> None:
    comment = (HERE / "payload.c").read_text().partition("*/")[0]
    documented = [line.removeprefix(" *   ") for line in comment.splitlines() if re.match(r" \*   [a-z]", line)]
    assert run(payload, "help").stdout.decode().splitlines() == documented


def test_it_is_found_where_it_was_built(payload: str) -> None:
    assert find_payload() == Path(payload)


@pytest.mark.parametrize(
    ("words", "stdout", "stderr"),
    [
        ("print x", b"x", b""),
        ("print x stderr", b"", b"x"),
        ("print x both -- print y", b"xy", b"x"),
        ("print-lines 3", b"line 1\nline 2\nline 3\n", b""),
        ("print-lines 0", b"", b""),
        ("print-lines 2 stderr", b"", b"line 1\nline 2\n"),
        ("print-bytes 20", b"000000000000000\n0000", b""),
        ("tick 1 3", b"tick 1\ntick 2\ntick 3\n", b""),
        ("sleep 0.001 -- print z", b"z", b""),
    ],
)
def test_printing_is_exact(payload: str, words: str, stdout: bytes, stderr: bytes) -> None:
    done = run(payload, words)
    assert (done.stdout, done.stderr, done.returncode) == (stdout, stderr, 0)


def test_large_output_can_be_compared_by_its_hash(payload: str) -> None:
    done = run(payload, "print-bytes 3000001 both")
    wanted = hashlib.sha256(numbered(3000001)).digest()
    assert hashlib.sha256(done.stdout).digest() == wanted
    assert hashlib.sha256(done.stderr).digest() == wanted
    lines = run(payload, "print-lines 100000").stdout
    assert lines == b"".join(b"line %d\n" % number for number in range(1, 100001))


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("exit 0", 0),
        ("exit 255", 255),
        ("print-lines 1 -- exit 7 -- exit 8", 7),
        ("die KILL", -signal.SIGKILL),
        ("die TERM", -signal.SIGTERM),
        ("die SEGV", -signal.SIGSEGV),
        ("die ABRT", -signal.SIGABRT),
        ("die ILL", -signal.SIGILL),
        ("ignore TERM -- die TERM", -signal.SIGTERM),
        ("die 10", -10),
    ],
)
def test_it_ends_as_told(payload: str, words: str, status: int) -> None:
    assert run(payload, words).returncode == status


@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [
        ("", MISUSED, "no verb"),
        ("dance", MISUSED, "dance"),
        ("exit", MISUSED, "exit"),
        ("exit 256", MISUSED, "256"),
        ("exit -1", MISUSED, "-1"),
        ("exit 1x", MISUSED, "1x"),
        ("exit 1 2", MISUSED, "2"),
        ("print x nowhere", MISUSED, "nowhere"),
        ("die NOTHING", MISUSED, "NOTHING"),
        ("sleep long", MISUSED, "long"),
        ("print a --", MISUSED, "no verb"),
        ("chdir /no/such", FAILED, "/no/such: No such file or directory"),
        ("close 99", FAILED, "close: Bad file descriptor"),
        ("ignore KILL", FAILED, "ignore: Invalid argument"),
    ],
)
def test_words_that_make_no_sense_and_work_that_fails_are_told_apart(
    payload: str, words: str, status: int, reason: str
) -> None:
    done = run(payload, words)
    assert done.returncode == status
    assert reason in done.stderr.decode()


def test_nothing_is_done_when_a_later_verb_is_not_one(payload: str) -> None:
    assert run(payload, "print a -- dance").stdout == b""


def test_cat_copies_every_byte(payload: str) -> None:
    sent = bytes(range(256)) * 1000
    assert run(payload, "cat -- print end", stdin=sent).stdout == sent + b"end"


def test_reopen_writes_through_a_new_descriptor(payload: str, tmp_path: Path) -> None:
    place = tmp_path / "out"
    with place.open("wb") as out:
        subprocess.run([payload, "print", "a", "--", "reopen", "b"], stdout=out, check=True)
    assert place.read_bytes() == b"ab\n"


@pytest.mark.parametrize("started", ["wait-signal -- wait-signal -- exit 3"], indirect=True)
def test_signals_are_waited_for_and_named(started: Started) -> None:
    for signum in (signal.SIGTERM, signal.SIGWINCH):
        assert started.line() == "waiting"
        started.process.send_signal(signum)
        assert started.line() == f"signal {signum.value}"
    assert started.process.wait() == 3


@pytest.mark.parametrize("started", ["ignore TERM -- print-lines 1 -- tick 1"], indirect=True)
def test_an_ignored_signal_does_nothing(started: Started) -> None:
    assert started.line() == "line 1"
    started.process.send_signal(signal.SIGTERM)
    assert [started.line() for _ in range(20)] == [f"tick {number}" for number in range(1, 21)]
    assert started.end() == -signal.SIGKILL


@pytest.mark.parametrize("started", ["spawn 3 600 -- print-lines 1 -- pause"], indirect=True)
def test_children_are_started_and_not_waited_for(started: Started) -> None:
    assert started.line() == "line 1"
    pid = started.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    assert len(children) == 3
    for child in children:
        os.kill(int(child), signal.SIGKILL)


def test_a_daemon_keeps_stdout_when_its_parents_are_gone(payload: str) -> None:
    started = Started(payload, "daemon 600 -- exit 4")
    assert started.process.wait() == 4
    # Its session has its parent's pid, which has ended; nobody else has this pipe.
    os.set_blocking(started.stdout.fileno(), False)
    assert started.stdout.read() is None
    pipe = f"pipe:[{os.fstat(started.stdout.fileno()).st_ino}]"
    holders = [path for path in Path("/proc").glob("[0-9]*/fd/1") if _target(path) == pipe]
    assert len(holders) == 1
    pid = int(holders[0].parts[2])
    pidfd = os.pidfd_open(pid)
    assert os.getsid(pid) not in {pid, os.getsid(0)}
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)
    os.set_blocking(started.stdout.fileno(), True)
    assert started.stdout.read() == b""
    started.stdout.close()


def _target(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def test_memory_is_taken_for_real(payload: str) -> None:
    started = Started(payload, "alloc 32 -- print-lines 1 -- pause")
    assert started.line() == "line 1"
    status = Path(f"/proc/{started.process.pid}/status").read_text()
    resident = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert resident is not None
    assert 32 * 1024 <= int(resident[1]) < 40 * 1024
    started.end()


def test_files_and_descriptors(payload: str, tmp_path: Path) -> None:
    place = tmp_path / "file"
    words = f"chdir {tmp_path} -- touch empty -- write-file file 100000 -- open file -- close 0 -- report"
    shown = report(run(payload, words))
    assert place.read_bytes() == numbered(100000)
    assert (tmp_path / "empty").read_bytes() == b""
    assert shown["cwd"] == str(tmp_path)
    assert shown["fd.3"] == str(place)
    assert "fd.0" not in shown
    assert shown["stdin"] == "closed"


def test_it_goes_on_when_the_file_is_there(payload: str, tmp_path: Path) -> None:
    gate, reached = tmp_path / "gate", tmp_path / "reached"
    os.mkfifo(reached)
    started = Started(payload, f"touch {reached} -- wait-file {gate} -- print-lines 1")
    assert reached.read_bytes() == b""
    assert started.process.poll() is None
    gate.touch()
    assert started.line() == "line 1"
    assert started.process.wait() == 0
    started.end()


def inherited_ignored() -> int:
    """The signals that this process ignores and passes on; subprocess gives those back that Python itself ignores."""
    (line,) = (text for text in Path("/proc/self/status").read_text().splitlines() if text.startswith("SigIgn"))
    own = sum(1 << (number - 1) for number in (signal.SIGPIPE, signal.SIGXFSZ))
    return int(line.split()[1], 16) & ~own


def test_report_says_who_and_how(payload: str) -> None:
    process = subprocess.run(
        [payload, "ignore", "USR1", "--", "report"],
        env={"ONE": "1", "LINES": "a\\\nb"},
        cwd="/",
        umask=0o027,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    shown = report(process)
    assert (shown["uid"], shown["gid"], shown["ppid"]) == (str(os.getuid()), str(os.getgid()), str(os.getpid()))
    assert (shown["umask"], shown["cwd"], shown["comm"]) == ("0027", "/", "shim-payload")
    assert (shown["env.ONE"], shown["env.LINES"]) == ("1", "a\\\\\\nb")
    assert (shown["arg.1"], shown["arg.4"]) == ("ignore", "report")
    assert shown["oom_score_adj"] == Path("/proc/self/oom_score_adj").read_text().strip()
    assert {key for key in shown if key.startswith("fd.")} == {"fd.0", "fd.1", "fd.2"}
    assert shown["fd.0"] == "/dev/null"
    assert int(shown["signals.ignored"], 16) == 1 << (signal.SIGUSR1 - 1) | inherited_ignored()
    assert not [key for key in shown if key.startswith("tty.")]


def test_report_tells_the_states_of_stdin(payload: str, tmp_path: Path) -> None:
    def state(stdin: int | IO[bytes]) -> str:
        done = subprocess.run([payload, "report"], stdin=stdin, capture_output=True, check=True)
        return report(done)["stdin"]

    assert state(subprocess.DEVNULL) == "eof"
    read_fd, write_fd = os.pipe()
    assert state(read_fd) == "open"
    os.write(write_fd, b"x")
    assert state(read_fd) == "data"
    os.read(read_fd, 1)
    os.close(write_fd)
    assert state(read_fd) == "eof"
    os.close(read_fd)
    place = tmp_path / "in"
    place.write_bytes(b"x")
    with place.open("rb") as opened:
        assert state(opened) == "data"
        opened.seek(1)
        assert state(opened) == "eof"


def test_report_measures_a_terminal(payload: str) -> None:
    ours_fd, theirs_fd = pty.openpty()
    fcntl.ioctl(theirs_fd, termios.TIOCSWINSZ, struct.pack("4H", 40, 120, 0, 0))
    done = subprocess.run([payload, "report"], stdin=theirs_fd, stdout=subprocess.PIPE, stderr=theirs_fd, check=True)
    os.close(theirs_fd)
    os.close(ours_fd)
    shown = report(done)
    assert (shown["tty.0"], shown["tty.2"]) == ("40 120", "40 120")
    assert "tty.1" not in shown
    assert shown["stdin"] == "open"
