"""The life of a process, walked completely: every state, every verb, both tables."""

from __future__ import annotations

import pytest

from shim.errors import FailedPrecondition, NotFound, wire_text
from shim.model import lifecycle
from shim.model.lifecycle import Refusal, State, Verb

TABLES = {"init": lifecycle.INIT, "exec": lifecycle.EXEC}

# What people know, from protocol.md 3.5 and 3.6, written out by hand so that an edit of the tables shows here.
REFUSALS = {
    ("init", State.CREATED): {
        Verb.PAUSE: "cannot pause task in created state",
        Verb.RESUME: "cannot resume task in created state",
        Verb.CHECKPOINT: "cannot checkpoint a task in created state",
    },
    ("init", State.CREATED_CHECKPOINT): {
        Verb.PAUSE: "cannot pause task in created state",
        Verb.RESUME: "cannot resume task in created state",
        Verb.CHECKPOINT: "cannot checkpoint a task in created state",
        Verb.EXEC: "cannot exec in a created state",
    },
    ("init", State.RUNNING): {
        Verb.START: "cannot start a running process",
        Verb.DELETE: "cannot delete a running process",
        Verb.RESUME: "cannot resume a running process",
    },
    ("init", State.PAUSED): {
        Verb.START: "cannot start a paused process",
        Verb.DELETE: "cannot delete a paused process",
        Verb.PAUSE: "cannot pause a paused container",
        Verb.EXEC: "cannot exec in a paused state",
    },
    ("init", State.STOPPED): {
        Verb.START: "cannot start a stopped process",
        Verb.PAUSE: "cannot pause a stopped container",
        Verb.RESUME: "cannot resume a stopped container",
        Verb.UPDATE: "cannot update a stopped container",
        Verb.CHECKPOINT: "cannot checkpoint a stopped container",
        Verb.EXEC: "cannot exec in a stopped state",
    },
    ("exec", State.CREATED): {Verb.KILL: "process not created"},
    ("exec", State.RUNNING): {
        Verb.START: "cannot start a running process",
        Verb.DELETE: "cannot delete a running process",
    },
    ("exec", State.STOPPED): {
        Verb.START: "cannot start a stopped process",
        Verb.RESIZE: "cannot resize a stopped container",
    },
}
MOVES = {
    ("init", State.CREATED): {Verb.START: State.RUNNING, Verb.DELETE: State.DELETED, Verb.EXIT: State.STOPPED},
    ("init", State.CREATED_CHECKPOINT): {
        Verb.START: State.RUNNING,
        Verb.DELETE: State.DELETED,
        Verb.EXIT: State.STOPPED,
    },
    ("init", State.RUNNING): {Verb.PAUSE: State.PAUSED, Verb.EXIT: State.STOPPED},
    ("init", State.PAUSED): {Verb.RESUME: State.RUNNING, Verb.EXIT: State.STOPPED},
    ("init", State.STOPPED): {Verb.DELETE: State.DELETED},
    ("exec", State.CREATED): {Verb.START: State.RUNNING, Verb.DELETE: State.DELETED, Verb.EXIT: State.STOPPED},
    ("exec", State.RUNNING): {Verb.EXIT: State.STOPPED},
    ("exec", State.STOPPED): {Verb.DELETE: State.DELETED},
}
NOT_OF_AN_EXEC = {Verb.PAUSE, Verb.RESUME, Verb.UPDATE, Verb.CHECKPOINT, Verb.EXEC}
EVERY_CELL = [
    (kind, state, verb)
    for kind, table in TABLES.items()
    for state in table
    for verb in Verb
    if state is not State.DELETED
]


@pytest.mark.parametrize(
    ("kind", "state", "verb"), EVERY_CELL, ids=[f"{k}-{s.value}-{v.value}" for k, s, v in EVERY_CELL]
)
def test_every_verb_in_every_state(kind: str, state: State, verb: Verb) -> None:
    table = TABLES[kind]
    text = REFUSALS.get((kind, state), {}).get(verb)
    if kind == "exec" and verb in NOT_OF_AN_EXEC:
        text = f"cannot {verb.value} an exec process"
    if text is not None:
        with pytest.raises(FailedPrecondition) as refused:
            lifecycle.after(table, state, verb)
        assert wire_text(refused.value) == f"{text}: failed precondition"
    elif state is State.STOPPED and verb is Verb.KILL:
        with pytest.raises(NotFound) as gone:
            lifecycle.after(table, state, verb)
        assert wire_text(gone.value) == "process already finished: not found"
    else:
        assert lifecycle.after(table, state, verb) is MOVES[kind, state].get(verb, state)


@pytest.mark.parametrize("kind", TABLES)
def test_a_deleted_process_is_not_found_for_every_verb(kind: str) -> None:
    for verb in set(Verb) - {Verb.EXIT}:
        with pytest.raises(NotFound):
            lifecycle.after(TABLES[kind], State.DELETED, verb)
    assert lifecycle.after(TABLES[kind], State.DELETED, Verb.EXIT) is State.DELETED


@pytest.mark.parametrize("kind", TABLES)
def test_each_table_answers_every_verb(kind: str) -> None:
    for state, row in TABLES[kind].items():
        assert set(row) == set(Verb), state
        assert all(isinstance(entry, State | Refusal) for entry in row.values())


def test_every_state_has_a_number_on_the_wire() -> None:
    assert set(lifecycle.STATUS) == set(State)
    assert lifecycle.STATUS[State.CREATED] == lifecycle.STATUS[State.CREATED_CHECKPOINT] == 1
    assert lifecycle.STATUS[State.STOPPED] == lifecycle.STATUS[State.DELETED] == 3
