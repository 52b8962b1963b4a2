"""The life of a process as tables: state x verb -> next state, or the refusal people know.

All decisions about order of calls are here and nowhere else; nothing in this file performs anything.  A refusal carries
the text of the reference shim (protocol.md 3.3, 3.5, 3.6); where that answers without a class although one fits, the
class is FailedPrecondition.  A deleted process is NotFound for every verb: that is what a caller meets who waited for a
deletion.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

import attrs

from shim.errors import FailedPrecondition, NotFound, ShimError

if TYPE_CHECKING:
    from collections.abc import Mapping

    Table = Mapping["State", Mapping["Verb", "State | Refusal"]]


class State(enum.Enum):
    """Where a process is in its life."""

    CREATED = "created"
    CREATED_CHECKPOINT = "created from checkpoint"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    DELETED = "deleted"


class Verb(enum.Enum):
    """What is asked of a process, or happens to it (EXIT)."""

    START = "start"
    DELETE = "delete"
    PAUSE = "pause"
    RESUME = "resume"
    UPDATE = "update"
    CHECKPOINT = "checkpoint"
    EXEC = "exec"
    KILL = "kill"
    RESIZE = "resize"
    EXIT = "exit"


@attrs.frozen
class Refusal:
    """An answer instead of a next state."""

    error: type[ShimError]
    text: str

    def as_error(self) -> ShimError:
        """The exception to raise."""
        return self.error(self.text)


def _no(text: str) -> Refusal:
    return Refusal(FailedPrecondition, text)


def _gone(verb: Verb) -> Refusal:
    text = "process already finished" if verb is Verb.KILL else f"cannot {verb.value} a deleted process"
    return Refusal(NotFound, text)


_GONE: Final = {verb: _gone(verb) for verb in Verb if verb is not Verb.EXIT} | {Verb.EXIT: State.DELETED}
_FINISHED: Final = Refusal(NotFound, "process already finished")

INIT: Final[Table] = {
    State.CREATED: {
        Verb.START: State.RUNNING,
        Verb.DELETE: State.DELETED,
        Verb.PAUSE: _no("cannot pause task in created state"),
        Verb.RESUME: _no("cannot resume task in created state"),
        Verb.UPDATE: State.CREATED,
        Verb.CHECKPOINT: _no("cannot checkpoint a task in created state"),
        Verb.EXEC: State.CREATED,
        Verb.KILL: State.CREATED,
        Verb.RESIZE: State.CREATED,
        Verb.EXIT: State.STOPPED,
    },
    State.CREATED_CHECKPOINT: {
        Verb.START: State.RUNNING,
        Verb.DELETE: State.DELETED,
        Verb.PAUSE: _no("cannot pause task in created state"),
        Verb.RESUME: _no("cannot resume task in created state"),
        Verb.UPDATE: State.CREATED_CHECKPOINT,
        Verb.CHECKPOINT: _no("cannot checkpoint a task in created state"),
        Verb.EXEC: _no("cannot exec in a created state"),
        Verb.KILL: State.CREATED_CHECKPOINT,
        Verb.RESIZE: State.CREATED_CHECKPOINT,
        Verb.EXIT: State.STOPPED,
    },
    State.RUNNING: {
        Verb.START: _no("cannot start a running process"),
        Verb.DELETE: _no("cannot delete a running process"),
        Verb.PAUSE: State.PAUSED,
        Verb.RESUME: _no("cannot resume a running process"),
        Verb.UPDATE: State.RUNNING,
        Verb.CHECKPOINT: State.RUNNING,
        Verb.EXEC: State.RUNNING,
        Verb.KILL: State.RUNNING,
        Verb.RESIZE: State.RUNNING,
        Verb.EXIT: State.STOPPED,
    },
    State.PAUSED: {
        Verb.START: _no("cannot start a paused process"),
        Verb.DELETE: _no("cannot delete a paused process"),
        Verb.PAUSE: _no("cannot pause a paused container"),
        Verb.RESUME: State.RUNNING,
        Verb.UPDATE: State.PAUSED,
        Verb.CHECKPOINT: State.PAUSED,
        Verb.EXEC: _no("cannot exec in a paused state"),
        Verb.KILL: State.PAUSED,
        Verb.RESIZE: State.PAUSED,
        Verb.EXIT: State.STOPPED,
    },
    State.STOPPED: {
        Verb.START: _no("cannot start a stopped process"),
        Verb.DELETE: State.DELETED,
        Verb.PAUSE: _no("cannot pause a stopped container"),
        Verb.RESUME: _no("cannot resume a stopped container"),
        Verb.UPDATE: _no("cannot update a stopped container"),
        Verb.CHECKPOINT: _no("cannot checkpoint a stopped container"),
        Verb.EXEC: _no("cannot exec in a stopped state"),
        Verb.KILL: _FINISHED,
        Verb.RESIZE: State.STOPPED,
        Verb.EXIT: State.STOPPED,
    },
    State.DELETED: _GONE,
}

_NOT_OF_AN_EXEC: Final = {
    verb: _no(f"cannot {verb.value} an exec process")
    for verb in (Verb.PAUSE, Verb.RESUME, Verb.UPDATE, Verb.CHECKPOINT, Verb.EXEC)
}

EXEC: Final[Table] = {
    State.CREATED: {
        **_NOT_OF_AN_EXEC,
        Verb.START: State.RUNNING,
        Verb.DELETE: State.DELETED,
        Verb.KILL: _no("process not created"),
        Verb.RESIZE: State.CREATED,
        Verb.EXIT: State.STOPPED,
    },
    State.RUNNING: {
        **_NOT_OF_AN_EXEC,
        Verb.START: _no("cannot start a running process"),
        Verb.DELETE: _no("cannot delete a running process"),
        Verb.KILL: State.RUNNING,
        Verb.RESIZE: State.RUNNING,
        Verb.EXIT: State.STOPPED,
    },
    State.STOPPED: {
        **_NOT_OF_AN_EXEC,
        Verb.START: _no("cannot start a stopped process"),
        Verb.DELETE: State.DELETED,
        Verb.KILL: _FINISHED,
        Verb.RESIZE: _no("cannot resize a stopped container"),
        Verb.EXIT: State.STOPPED,
    },
    State.DELETED: _GONE,
}

STATUS: Final[Mapping[State, int]] = {
    State.CREATED: 1,
    State.CREATED_CHECKPOINT: 1,
    State.RUNNING: 2,
    State.STOPPED: 3,
    State.DELETED: 3,
    State.PAUSED: 4,
}
"""Number of each state in containerd.v1.types.Status (protocol.md 3.2)."""

STATUS_PAUSING: Final = 5
"""What a running task is called while the runtime pauses it."""


def after(table: Table, state: State, verb: Verb) -> State:
    """The state that follows; raises the refusal's error where the table has one."""
    entry = table[state][verb]
    if isinstance(entry, Refusal):
        raise entry.as_error()
    return entry
