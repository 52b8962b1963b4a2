"""The plan of a fault runtime: what it may say, and which of its steps apply to a command.

    {"runtime": "runc", "verbs": {"kill": [{"delay": 20}], "create": [{"fail": 1, "log_error": "no", "times": 1}]}}

`verbs` names the runtime's commands (`create`, `kill`, `features`, `--version`, ...; `*` is every command) and gives
each a list of steps, taken in their order; what is left over is done by `runtime`, with the arguments as they came.

    {"delay": SECONDS}                  {"hang": true}   until killed        {"signal": N}   ends itself by a signal
    {"fail": STATUS, "message"?: TEXT on stderr, "log"?: TEXT, "log_error"?: TEXT}
    {"log": TEXT}                       appends to the file of --log as it is (lone surrogates are bytes)
    {"log_error": TEXT}                 the same as a JSON line of level error
    {"text": TEXT, "to"?: "stdout" | "stderr"}           {"print": BYTES, "to"?: ...}   numbered lines of 16 bytes
    {"leave_child": SECONDS, "pid_file"?: PATH}          a child that holds stdin, stdout and stderr
    {"record": PATH, "environment"?: [NAME] | "*"}       appends argv, pid, ppid, cwd, umask, fds as one JSON line
    {"lie": VALUE}                      ends with VALUE as JSON; an object is laid over the one the runtime prints
    {"touch": PATH}                     tells a test that this step was reached
    {"wait_for": PATH}                  goes on when the file exists
    {"after": [STEP]}                   steps for when the runtime has ended; its status is then ours

Each step may say `"times": N` (only in the first N calls of its verb), `"since": N` (not before call N) and
`"only": WORD` (where WORD is an argument).  Relative paths are beside the file.  The calls of each verb are counted in
`<file>.calls`.  A plan that cannot be understood ends every command with status 125 and says why.

Invariants.  No I/O; only the standard library, and of that only what is quick to import: it is read for every command.
"""

from __future__ import annotations

import json

# Not from typing: importing that takes a third of a start.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Final, TypeAlias

    Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
    Step: TypeAlias = "dict[str, Json]"

EVERY_VERB: Final = "*"
NUMBER: Final = (int, float)
# Global options of the known runtimes that take the next word as their value.
_TAKES_VALUE: Final = frozenset(
    {"--root", "--log", "--log-format", "--log-level", "--criu", "--rootless", "--cgroup-manager"}
)
# Each action: what its value is, and the options it takes.  A step's action is the first that it has a key for.
_ACTIONS: Final[dict[str, tuple[type | tuple[type, ...], frozenset[str]]]] = {
    "delay": (NUMBER, frozenset()),
    "hang": (bool, frozenset()),
    "fail": (int, frozenset({"message", "log", "log_error"})),
    "signal": (int, frozenset()),
    "text": (str, frozenset({"to"})),
    "print": (int, frozenset({"to"})),
    "leave_child": (NUMBER, frozenset({"pid_file"})),
    "record": (str, frozenset({"environment"})),
    "lie": (object, frozenset()),
    "touch": (str, frozenset()),
    "wait_for": (str, frozenset()),
    "after": (list, frozenset()),
    "log": (str, frozenset()),
    "log_error": (str, frozenset()),
}
_OPTIONS: Final[dict[str, type | tuple[type, ...]]] = {
    "message": str,
    "log": str,
    "log_error": str,
    "to": str,
    "pid_file": str,
    "environment": (list, str),
    "times": int,
    "since": int,
    "only": str,
}
_CONDITIONS: Final = frozenset({"times", "since", "only"})


class PlanError(ValueError):
    """The plan is not one; the text says where."""


class Call:
    """One command line: its verb (empty when it has none) and the file of `--log` (empty when it has none)."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self.verb = ""
        self.log = ""
        rest = iter(self.words)
        for word in rest:
            name, equals, value = word.partition("=")
            if not word.startswith("-"):
                self.verb = word
                return
            if name in _TAKES_VALUE:
                value = value if equals else next(rest, "")
                self.log = value if name == "--log" else self.log
            elif name in {"--version", "-v"}:
                self.verb = "--version"
                return


def action_of(step: Step) -> str:
    """The action of a step; PlanError when it has none."""
    for action in _ACTIONS:
        if action in step:
            return action
    raise PlanError(f"a step without an action: {json.dumps(step)}")


def _check_step(step: Json, *, inside: bool = False) -> None:
    if not isinstance(step, dict):
        raise PlanError(f"a step must be an object: {json.dumps(step)}")
    action = action_of(step)
    kind, options = _ACTIONS[action]
    value = step[action]
    if not isinstance(value, kind) or (kind is not bool and kind is not object and isinstance(value, bool)):
        raise PlanError(f"{action} cannot be {json.dumps(value)}")
    for name in step.keys() - {action}:
        if name not in options | _CONDITIONS:
            raise PlanError(f"{action} does not take {name}")
        if not isinstance(step[name], _OPTIONS[name]):
            raise PlanError(f"{name} of {action} cannot be {json.dumps(step[name])}")
    if step.get("to", "stdout") not in {"stdout", "stderr"}:
        raise PlanError(f"{action} prints to stdout or stderr, not to {step['to']}")
    if isinstance(value, list) and action == "after":
        if inside:
            raise PlanError("after cannot be inside after")
        for each in value:
            _check_step(each, inside=True)


def check_plan(plan: Json) -> None:
    """Raise PlanError unless `plan` is one."""
    if not isinstance(plan, dict):
        raise PlanError("a plan must be an object")
    if unknown := plan.keys() - {"runtime", "verbs"}:
        raise PlanError(f"a plan has no {', '.join(sorted(unknown))}")
    verbs = plan.get("verbs", {})
    if not isinstance(plan.get("runtime", ""), str) or not isinstance(verbs, dict):
        raise PlanError("runtime must be a path, and verbs an object")
    for verb, steps in verbs.items():
        if not isinstance(steps, list):
            raise PlanError(f"the steps of {verb} must be a list")
        for step in steps:
            try:
                _check_step(step)
            except PlanError as error:
                raise PlanError(f"{verb}: {error}") from None


def select(plan: Mapping[str, Json], call: Call, count: int) -> list[Step]:
    """The steps that apply to `call`, which is call number `count` of its verb (the first is 1).  Pure.

    `plan` is a checked one.  Those of the verb come before those of every verb.
    """
    verbs = plan.get("verbs", {})
    assert isinstance(verbs, dict)
    chosen: list[Step] = []
    for verb in (call.verb, EVERY_VERB):
        steps = verbs.get(verb, [])
        assert isinstance(steps, list)
        chosen += [step for step in steps if isinstance(step, dict) and _applies(step, call, count)]
    return chosen


def _applies(step: Step, call: Call, count: int) -> bool:
    times, since, only = step.get("times", count), step.get("since", count), step.get("only")
    assert isinstance(times, int)
    assert isinstance(since, int)
    return since <= count <= times and (only is None or only in call.words)
