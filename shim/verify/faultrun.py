"""The fault runtime: given as the runtime binary it delays, fails, hangs, floods, leaks or lies, then runs runc.

A runtime is known to its callers by a path only, and their environment is not ours to change, so a fault runtime is a
file: a small executable that `write_fault_runtime` makes, with its plan (shim.verify.faultplan) beside it in
`<file>.json` and the number of calls of each verb in `<file>.calls`.  A plan that cannot be understood ends every
command with status 125 and says why.

Invariants.  Only the standard library: it starts for every command.  The runtime sees the environment and descriptors
that came, not what Python made of them; SIGPIPE, SIGXFSZ and SIGINT are as in a new program.  Without `after` and `lie`
it also has our pid, hence the caller's parent-death signal.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time

from shim.verify import faultplan
from shim.verify.faultplan import NUMBER, Call, action_of, check_plan, select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Final, NoReturn

    from shim.verify.faultplan import Json, Step

BAD_PLAN: Final = 125
NO_RUNTIME: Final = 127
USAGE: Final = """\
Usage: shim-faultrun make PLAN.json FILE    make FILE, an executable to be given as the runtime binary
       shim-faultrun --help                 this text

Give FILE wherever a path of runc is asked for (BinaryName in the runtime's options).
"""


def count_call(path: str, verb: str) -> int:
    """Note one more call of `verb` in the counter file; returns its number."""
    counter_fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(counter_fd, fcntl.LOCK_EX)
        counts: dict[str, int] = json.loads(os.read(counter_fd, 65536) or b"{}")
        counts[verb] = counts.get(verb, 0) + 1
        os.truncate(counter_fd, 0)
        os.pwrite(counter_fd, json.dumps(counts).encode(), 0)
    finally:
        os.close(counter_fd)
    return counts[verb]


def numbered(size: int) -> bytes:
    """What `print` prints: lines of 16 bytes, each the number of its line, cut at `size`."""
    return b"".join(b"%015d\n" % line for line in range(-(-size // 16)))[:size]


class FaultRun:
    """One command under way: does the steps, then becomes the runtime."""

    def __init__(self, file: str, words: Sequence[str]) -> None:
        self._file = os.path.abspath(file)
        self._call = Call(words)
        self._environment = _given_environment()
        self._after: list[Step] = []
        self._runtime = "runc"

    def run(self) -> NoReturn:
        """Do what the plan says; never returns."""
        # Python ignores these two, and what is ignored stays so in the programs that it becomes.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # one that was ignored stays so
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            with open(f"{self._file}.json", encoding="utf-8") as opened:
                plan = json.load(opened)
            check_plan(plan)
        except (OSError, ValueError) as error:
            self._fail(BAD_PLAN, f"fault runtime: no plan: {error}")
        self._runtime = plan.get("runtime", self._runtime)
        for step in select(plan, self._call, count_call(f"{self._file}.calls", self._call.verb)):
            self._do(step)
        if not self._after:
            self._become()
        status, _ = self._spawn(capture=False)
        for step in self._after:
            self._do(step)
        _end_as(status)

    def _path(self, value: Json) -> str:
        return os.path.join(os.path.dirname(self._file), str(value))

    def _do(self, step: Step) -> None:  # noqa: C901 - one branch for each action
        action = action_of(step)
        value = step[action]
        if action == "delay" and isinstance(value, NUMBER):
            time.sleep(value)
        elif action == "hang" and value:
            while True:
                signal.pause()
        elif action == "fail" and isinstance(value, int):
            self._log(step)
            self._fail(value, str(step.get("message", "")))
        elif action == "signal" and isinstance(value, int):
            _end_as(-value)
        elif action == "text":
            _write(_descriptor(step), _bytes(value))
        elif action == "print" and isinstance(value, int):
            _write(_descriptor(step), numbered(value))
        elif action == "leave_child" and isinstance(value, NUMBER):
            self._leave_child(value, step.get("pid_file"))
        elif action == "record":
            self._record(self._path(value), step.get("environment", []))
        elif action == "lie":
            self._lie(value)
        elif action == "touch":
            os.close(os.open(self._path(value), os.O_WRONLY | os.O_CREAT, 0o644))
        elif action == "wait_for":
            while not os.path.exists(self._path(value)):
                time.sleep(0.002)
        elif action == "after" and isinstance(value, list):
            self._after += [each for each in value if isinstance(each, dict)]
        else:
            self._log(step)

    def _log(self, step: Step) -> None:
        text = _bytes(step.get("log", ""))
        if "log_error" in step:
            entry = {
                "level": "error",
                "msg": step["log_error"],
                "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }
            text += json.dumps(entry).encode() + b"\n"
        if text and self._call.log:
            _append(self._call.log, text)

    def _fail(self, status: int, message: str) -> NoReturn:
        if message:
            _write(2, _bytes(message if message.endswith("\n") else message + "\n"))
        os._exit(status)  # noqa: TID251 - a program of its own

    def _record(self, path: str, wanted: Json) -> None:
        environment = {os.fsdecode(name): os.fsdecode(value) for name, value in self._environment.items()}
        if isinstance(wanted, list):
            environment = {name: value for name, value in environment.items() if name in wanted}
        umask = os.umask(0o077)
        os.umask(umask)
        facts = {
            "argv": self._call.words,
            "pid": os.getpid(),
            "ppid": os.getppid(),
            "cwd": _cwd(),
            "umask": umask,
            "fds": _open_fds(),
            "environment": environment,
        }
        _append(path, json.dumps(facts).encode() + b"\n")

    def _lie(self, value: Json) -> NoReturn:
        if isinstance(value, dict):
            try:
                truth = json.loads(self._spawn(capture=True)[1])
            except ValueError:
                truth = None
            value = {**truth, **value} if isinstance(truth, dict) else value
        _write(1, json.dumps(value).encode() + b"\n")
        os._exit(0)  # noqa: TID251 - a program of its own

    def _leave_child(self, seconds: float, pid_file: Json) -> None:
        child = os.fork()  # noqa: TID251 - a program of its own
        if child == 0:
            os.setsid()
            time.sleep(seconds)
            os._exit(0)  # noqa: TID251 - the child ends
        if pid_file is not None:
            _append(self._path(pid_file), f"{child}\n".encode())

    def _become(self) -> NoReturn:
        """Be the runtime from here on; the pid, the parent-death signal and the descriptors stay."""
        arguments = [self._runtime, *self._call.words]
        try:
            os.execvpe(self._runtime, arguments, self._environment)
        except OSError as error:
            self._fail(NO_RUNTIME, f"fault runtime: {self._runtime}: {error.strerror}")

    def _spawn(self, *, capture: bool) -> tuple[int, bytes]:
        """Run the runtime as a child that dies with us; its status (negative: a signal) and captured stdout."""
        import ctypes  # it is slow to import, and few commands come here

        libc = ctypes.CDLL(None)
        parent = os.getpid()
        read_fd, write_fd = os.pipe()
        child = os.fork()  # noqa: TID251 - a program of its own
        if child == 0:
            libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            if os.getppid() != parent:
                os._exit(NO_RUNTIME)  # noqa: TID251 - the child ends
            if capture:
                os.dup2(write_fd, 1)
            self._become()
        os.close(write_fd)
        output = b""
        # Without capture the runtime's exec closes the pipe at once; what it leaves behind never holds it.
        while capture and (part := os.read(read_fd, 65536)):
            output += part
        os.close(read_fd)
        _, status = os.waitpid(child, 0)  # noqa: TID251 - a program of its own
        return os.waitstatus_to_exitcode(status), output


def _given_environment() -> dict[bytes, bytes]:
    """The environment as it came: Python adds LC_CTYPE to its own where no locale was set."""
    with open("/proc/self/environ", "rb") as opened:
        pairs = [entry.partition(b"=") for entry in opened.read().split(b"\0") if entry]
    return {name: value for name, _, value in pairs}


def _end_as(status: int) -> NoReturn:
    """End with `status`; a negative one is a signal."""
    if status < 0:
        if -status not in {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status if status >= 0 else 128 - status)  # noqa: TID251 - a program of its own


def _descriptor(step: Step) -> int:
    return 2 if step.get("to") == "stderr" else 1


def _bytes(text: Json) -> bytes:
    return str(text).encode("utf-8", "surrogateescape")


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _append(path: str, data: bytes) -> None:
    """Add `data` in one write: lines of commands that run at the same time do not mix."""
    append_fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    _write(append_fd, data)
    os.close(append_fd)


def _cwd() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def _open_fds() -> dict[str, str]:
    """The open descriptors and what they are, without the one that lists them."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
    return found


def run(file: str, words: Sequence[str]) -> NoReturn:
    """What a made file calls with its own path and its arguments."""
    FaultRun(file, words).run()


def write_fault_runtime(path: str, plan: Json) -> str:
    """Make the executable `path` and its plan `<path>.json`, and forget earlier calls; returns the path, absolute.

    The executable names this interpreter and this package, so it works as long as they are there.  An existing one
    gets the new plan at its next call.  Raises PlanError for a plan that is none, ValueError for an interpreter whose
    path cannot stand in a `#!` line.
    """
    check_plan(plan)
    path = os.path.abspath(path)
    interpreter = os.path.realpath(sys.executable)
    first_line = f"#!{interpreter} -IS\n"
    if len(first_line) > 255 or " " in interpreter:
        raise ValueError(f"no #! line can name {interpreter}")
    modules = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    text = (
        f"{first_line}# A fault runtime; its plan is beside it, in a file of the same name with .json at the end.\n"
        f"import sys\nsys.dont_write_bytecode = True\nsys.path.append({modules!r})\n"
        "from shim.verify.faultrun import run\nrun(__file__, sys.argv[1:])\n"
    )
    _replace(f"{path}.json", json.dumps(plan, indent=1) + "\n", 0o644)
    _replace(f"{path}.calls", "{}", 0o644)
    _replace(path, text, 0o755)
    return path


def _replace(path: str, text: str, mode: int) -> None:
    fresh = f"{path}.{os.getpid()}"
    with open(fresh, "w", encoding="utf-8") as opened:
        os.fchmod(opened.fileno(), mode)
        opened.write(text)
    os.rename(fresh, path)


def main() -> NoReturn:
    """The installed program: makes fault runtimes, explains them, and is one itself where a plan lies beside it."""
    if os.path.exists(f"{sys.argv[0]}.json"):
        run(sys.argv[0], sys.argv[1:])
    words = sys.argv[1:]
    if words[:1] == ["make"] and len(words) == 3:
        try:
            with open(words[1], encoding="utf-8") as opened:
                plan = json.load(opened)
            print_path = write_fault_runtime(words[2], plan)
        except (OSError, ValueError) as error:
            sys.stderr.write(f"shim-faultrun: {error}\n")
            sys.exit(1)  # noqa: TID251 - a program of its own
        sys.stdout.write(f"{print_path}\n")
        sys.exit(0)  # noqa: TID251 - a program of its own
    asked = words[:1] in (["help"], ["--help"], ["-h"])
    reason = "" if asked else f"shim-faultrun: there is no plan beside {sys.argv[0]}\n\n"
    stream = sys.stdout if asked else sys.stderr
    stream.write(f"{reason}{USAGE}\n{faultplan.__doc__}")
    sys.exit(0 if asked else 2)  # noqa: TID251 - a program of its own


if __name__ == "__main__":
    main()
