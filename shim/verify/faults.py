"""Fault runtimes for tests: one function for each step of a plan, and the made runtime with what it wrote down.

    runtime = make_fault_runtime(directory, {"kill": [touch("reached"), wait_for("go")]})
    ...                                     # the file's path is runtime.binary
    assert runtime.calls("kill") == 1

A test is told by `touch` that a command came to a step and lets it go on by `wait_for`: no test has to guess a time.
Where the touched path is a fifo (`FaultRuntime.fifo`), the step waits for a reader, and reading waits for the step.
A shim may start and kill by itself where `--version` shows a runtime that it knows: `unlike_runc` is against that.
Refuses, when the runtime is made, whatever the plan cannot say (shim.verify.faultplan).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypedDict

import attrs

from shim.verify.faultrun import write_fault_runtime

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Literal, Unpack

    from shim.verify.faultplan import Json, Step

    Verbs: TypeAlias = "Mapping[str, Sequence[Step]]"
    Stream: TypeAlias = Literal["stdout", "stderr"]


class When(TypedDict, total=False):
    """Which calls a step is for; without any, all of its verb."""

    times: int
    """Only the first so many calls of the verb."""
    since: int
    """Not before this call of the verb, the first is 1."""
    only: str
    """Only a command with this argument."""


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")


def _step(action: str, value: Json, when: When, **options: Json) -> Step:
    conditions: Step = {name: condition for name, condition in when.items() if isinstance(condition, (int, str))}
    return {action: value, **{name: option for name, option in options.items() if option is not None}, **conditions}


def delay(seconds: float, **when: Unpack[When]) -> Step:
    """Wait, then go on."""
    return _step("delay", seconds, when)


def hang(**when: Unpack[When]) -> Step:
    """Wait to be killed."""
    return _step("hang", True, when)


def fail(
    status: int = 1,
    *,
    message: str | bytes | None = None,
    log: str | bytes | None = None,
    log_error: str | None = None,
    **when: Unpack[When],
) -> Step:
    """End with `status`: `message` goes to stderr, `log` as it is and `log_error` as an error entry to the log."""
    texts: dict[str, Json] = {
        name: _text(given) for name, given in (("message", message), ("log", log)) if given is not None
    }
    return _step("fail", status, when, **texts, log_error=log_error)


def die(signum: int, **when: Unpack[When]) -> Step:
    """End by a signal."""
    return _step("signal", int(signum), when)


def text(given: str | bytes, *, to: Stream = "stdout", **when: Unpack[When]) -> Step:
    """Print this, nothing added."""
    return _step("text", _text(given), when, to=to)


def output(size: int, *, to: Stream = "stderr", **when: Unpack[When]) -> Step:
    """Print `size` bytes of numbered lines (shim.verify.faultrun.numbered)."""
    return _step("print", size, when, to=to)


def log(given: str | bytes, **when: Unpack[When]) -> Step:
    """Append this to the log as it is."""
    return _step("log", _text(given), when)


def log_error(message: str, **when: Unpack[When]) -> Step:
    """Append an error entry to the log, and go on."""
    return _step("log_error", message, when)


def leave_child(seconds: float, *, pid_file: str | None = None, **when: Unpack[When]) -> Step:
    """Leave a child in a session of its own that holds the standard descriptors; its pid is added to `pid_file`."""
    return _step("leave_child", seconds, when, pid_file=pid_file)


def record(path: str = "record", *, environment: Sequence[str] | None = None, **when: Unpack[When]) -> Step:
    """Note how the command was run, with those variables of the environment, None for all (`FaultRuntime.recorded`)."""
    names: list[Json] | str = "*" if environment is None else list(environment)
    return _step("record", path, when, environment=names)


def lie(value: Json, **when: Unpack[When]) -> Step:
    """Print `value` as JSON and end well; an object is laid over the one that the real runtime prints."""
    return _step("lie", value, when)


def touch(path: str, **when: Unpack[When]) -> Step:
    """Make a file, to say that this step was reached."""
    return _step("touch", path, when)


def wait_for(path: str, **when: Unpack[When]) -> Step:
    """Go on when the file exists."""
    return _step("wait_for", path, when)


def after(*steps: Step, **when: Unpack[When]) -> Step:
    """Steps for when the real runtime has ended."""
    return _step("after", list(steps), when)


def unlike_runc() -> list[Step]:
    """For the verb `--version`: a shim that does without a runtime that it knows runs this one for every command."""
    return [text("faulty-runtime version 1.0\nspec: 1.0.2\n"), fail(0)]


@attrs.frozen
class Recorded:
    """How one command was run."""

    argv: Sequence[str]
    """The arguments, without the runtime's own name."""
    pid: int
    ppid: int
    cwd: str
    """Empty when the directory was gone."""
    umask: int
    fds: Mapping[str, str]
    """Descriptor number, as text, to what /proc shows of it."""
    environment: Mapping[str, str]


@attrs.frozen
class FaultRuntime:
    """A made fault runtime; paths in its steps are beside `binary`."""

    binary: str
    runtime: str

    def plan(self, verbs: Verbs) -> None:
        """From the next command on do this instead; the counts begin anew."""
        steps: dict[str, Json] = {verb: list(given) for verb, given in verbs.items()}
        write_fault_runtime(self.binary, {"runtime": self.runtime, "verbs": steps})

    def file(self, name: str) -> Path:
        """A file that steps name."""
        return Path(self.binary).parent / name

    def fifo(self, name: str) -> Path:
        """A fifo for `touch`: reading it to its end returns when the step is reached."""
        os.mkfifo(self.file(name), 0o600)
        return self.file(name)

    def calls(self, verb: str) -> int:
        """How often the verb was called with the present plan."""
        counts = json.loads(Path(f"{self.binary}.calls").read_bytes())
        assert isinstance(counts, dict)
        return int(counts.get(verb, 0))

    def recorded(self, path: str = "record") -> list[Recorded]:
        """What `record` noted, in the order of the calls; empty when there was none."""
        if not self.file(path).exists():
            return []
        return [Recorded(**json.loads(line)) for line in self.file(path).read_text(encoding="utf-8").splitlines()]


def make_fault_runtime(
    directory: str | os.PathLike[str], verbs: Verbs, *, runtime: str = "runc", name: str = "faulty-runtime"
) -> FaultRuntime:
    """Make `directory`/`name`, in front of `runtime`; PlanError when a step cannot be."""
    made = FaultRuntime(binary=os.path.abspath(os.path.join(directory, name)), runtime=runtime)
    made.plan(verbs)
    return made
