"""What to do with a shim that a manager finds when it loads a bundle: one table from what the shim said.

A shim is *leaked* only when both of its answers say so: it names no process and its State does not know the task.  One
of them alone is no proof: a stopped task has no processes either, and its exit must be told before it goes (field fault
A1).  What a shim could not answer is never held against its task.  Pure; the asking is the caller's.
"""

from __future__ import annotations

import enum
from typing import Final

import attrs


class Pids(enum.Enum):
    """What Pids answered."""

    SOME = "some"
    NONE = "none"
    NOT_FOUND = "not found"
    FAILED = "failed"


class Seen(enum.Enum):
    """What State answered; LIVING is created, running, paused and whatever else is not stopped."""

    LIVING = "living"
    STOPPED = "stopped"
    NOT_FOUND = "not found"
    FAILED = "failed"


class Decision(enum.Enum):
    """What becomes of the bundle."""

    KEEP = "keep"
    REPORT_STOPPED = "report stopped"
    """Tell its exit once, then delete the task."""
    CLEAN_UP = "clean up"


_DECISIONS: Final = {
    (Pids.SOME, Seen.LIVING): Decision.KEEP,
    (Pids.SOME, Seen.STOPPED): Decision.KEEP,  # processes of a shared pid namespace outlive init for a moment
    (Pids.SOME, Seen.NOT_FOUND): Decision.KEEP,
    (Pids.SOME, Seen.FAILED): Decision.KEEP,
    (Pids.NONE, Seen.LIVING): Decision.KEEP,  # a created task, or one that Pids cannot look into
    (Pids.NONE, Seen.STOPPED): Decision.REPORT_STOPPED,
    (Pids.NONE, Seen.NOT_FOUND): Decision.CLEAN_UP,
    (Pids.NONE, Seen.FAILED): Decision.KEEP,
    (Pids.NOT_FOUND, Seen.LIVING): Decision.KEEP,
    (Pids.NOT_FOUND, Seen.STOPPED): Decision.REPORT_STOPPED,
    (Pids.NOT_FOUND, Seen.NOT_FOUND): Decision.CLEAN_UP,
    (Pids.NOT_FOUND, Seen.FAILED): Decision.KEEP,
    (Pids.FAILED, Seen.LIVING): Decision.KEEP,
    (Pids.FAILED, Seen.STOPPED): Decision.REPORT_STOPPED,  # some runtimes refuse to list the processes of such a task
    (Pids.FAILED, Seen.NOT_FOUND): Decision.KEEP,
    (Pids.FAILED, Seen.FAILED): Decision.KEEP,
}


@attrs.frozen
class LoadFacts:
    """What a shim said; `sandbox`: the id is a sandbox of ours, which needs no task."""

    pids: Pids
    state: Seen
    sandbox: bool = False


def decide(facts: LoadFacts) -> Decision:
    """What to do about a shim that answered so."""
    return Decision.KEEP if facts.sandbox else _DECISIONS[facts.pids, facts.state]
