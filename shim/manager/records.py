"""The files of a bundle that a manager writes for the next manager: where the shim is, and what was done already.

Invariants: each is replaced in one step; a file that is damaged, or was written by a version that we do not know, is
an error that says so and is left as it is.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

import attrs

from shim.convert import deleted_from_json, deleted_to_json
from shim.errors import DataLoss, ShimError, Unavailable, Unimplemented
from shim.kernel.files import read_bounded
from shim.manager.bootstrap import Answer, answer_to_json, parse_answer
from shim.manager.bundle import write_private
from shim.model.exits import DeletedRecord

if TYPE_CHECKING:
    from shim.manager.bundle import Bundle

LOG: Final = logging.getLogger("shim.manager")
BINARY_FILE: Final = "shim-binary-path"
BOOTSTRAP_FILE: Final = "bootstrap.json"
ADDRESS_FILE: Final = "address"
SANDBOX_FILE: Final = "sandbox"
DELETED_FILE: Final = "deleted.json"
ACTIVATION_FILE: Final = "activation"


@attrs.frozen
class TaskExit:
    """How a task ended: `status` is 0 to 255 (128 + signal); `exited_at_ns` None when the shim did not know."""

    status: int
    exited_at_ns: int | None = None
    pid: int = 0
    shim_lost: bool = False
    """The shim was gone and the exit is what its `delete` command found."""


def read_binary(bundle: Bundle) -> str:
    """The shim's program; Unavailable when the bundle does not say."""
    try:
        return os.fsdecode(read_bounded(bundle.file(BINARY_FILE))) or _never_started(bundle, BINARY_FILE)
    except FileNotFoundError:
        return _never_started(bundle, BINARY_FILE)


def read_answer(bundle: Bundle) -> Answer:
    """Where the shim listens.

    Unavailable when no file says it, DataLoss when it is damaged, Unimplemented when it is of a
    version that we do not speak: then nothing may be concluded from it.
    """
    for name in (BOOTSTRAP_FILE, ADDRESS_FILE):
        try:
            data = read_bounded(bundle.file(name))
        except FileNotFoundError:
            continue
        try:
            return parse_answer(data)
        except Unimplemented as error:
            raise Unimplemented(f"task {bundle.id}, {name}: {error.message}") from error
        except ShimError as error:
            raise DataLoss(f"task {bundle.id}: {name} is damaged: {error.message}") from error
    _never_started(bundle, BOOTSTRAP_FILE)
    raise AssertionError


def write_start(bundle: Bundle, binary: str, answer: Answer, sandbox: str = "") -> None:
    """Remember the shim of a bundle; `sandbox` names the group's leader when it was not started for this bundle."""
    write_private(bundle.file(BINARY_FILE), os.fsencode(binary))
    if sandbox:
        write_private(bundle.file(SANDBOX_FILE), sandbox.encode())
    write_private(bundle.file(BOOTSTRAP_FILE), answer_to_json(answer), 0o644)


def identity(bundle: Bundle) -> tuple[int, ...]:
    """What tells this bundle from a later one of the same id; empty when there is none."""
    try:
        there = os.stat(bundle.path, follow_symlinks=False)
    except OSError:
        return ()
    try:
        started = os.stat(bundle.file(BOOTSTRAP_FILE)).st_mtime_ns
    except OSError:
        started = 0
    return (there.st_dev, there.st_ino, started)


def read_sandbox(bundle: Bundle) -> str:
    """The leader's id of a bundle that joined its shim; empty for one with a shim of its own."""
    try:
        return read_bounded(bundle.file(SANDBOX_FILE)).decode(errors="replace")
    except OSError:
        return ""


def read_deleted(bundle: Bundle) -> TaskExit | None:
    """The exit of a deletion that was done before and not finished; None when there was none, or it cannot be read."""
    try:
        record = deleted_from_json(read_bounded(bundle.file(DELETED_FILE)))
    except FileNotFoundError:
        return None
    except (OSError, ShimError) as error:
        LOG.warning("task %s: its deletion record cannot be used: %s", bundle.id, error)
        return None
    return TaskExit(record.status, record.exited_at_ns or None, record.pid, record.shim_lost)


def write_deleted(bundle: Bundle, end: TaskExit) -> None:
    """Remember the exit; where that is not possible (a full disk) it is only logged, since memory has it too."""
    record = DeletedRecord(end.pid, end.status, end.exited_at_ns or 0, end.shim_lost)
    try:
        write_private(bundle.file(DELETED_FILE), deleted_to_json(record))
    except OSError as error:
        LOG.warning("task %s: the exit could not be kept for another manager: %s", bundle.id, error)


def _never_started(bundle: Bundle, name: str) -> str:
    raise Unavailable(f"task {bundle.id} was never started: {bundle.file(name)} is missing")
