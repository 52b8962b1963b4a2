"""Tasks that share a shim: a member finds its leader's shim, and with it what that shim can do (protocol.md 9.3).

Invariants: only a shim that promised to serve joined tasks (version 3) and is of the same program is joined; whether it
still lives is for the caller to find out, who starts another when it does not.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import attrs

from shim.errors import ShimError
from shim.manager.bundle import Bundle
from shim.manager.records import read_answer, read_binary, read_sandbox
from shim.manager.sockets import group_of

if TYPE_CHECKING:
    from shim.manager.bootstrap import Answer

JOINABLE_VERSION: Final = 3


@attrs.frozen
class Leader:
    """A shim that can be joined: the group's name, and what its `start` answered, extensions included."""

    group: str
    answer: Answer


def find_leader(bundle: Bundle, binary: str, sandbox: str = "") -> Leader | None:
    """The shim of the bundle's group, or of `sandbox`; None when there is none yet, or nothing names a group."""
    group = sandbox or group_of(bundle.path, bundle.id)
    if group == bundle.id:
        return None
    for other in siblings(bundle):
        if not (other.id == group or read_sandbox(other) == group or group_of(other.path, other.id) == group):
            continue
        try:
            answer = read_answer(other)
            if answer.version >= JOINABLE_VERSION and read_binary(other) == binary:
                return Leader(group, answer)
        except (ShimError, OSError):
            continue
    return None


def inherit(bundle: Bundle, answer: Answer) -> Answer:
    """The answer of a `start` that named a shim that was there already, with what that shim said of itself then."""
    if answer.extensions:
        return answer
    for other in siblings(bundle):
        try:
            known = read_answer(other)
        except (ShimError, OSError):
            continue
        if known.address == answer.address and known.extensions:
            return attrs.evolve(answer, extensions=known.extensions)
    return answer


def siblings(bundle: Bundle) -> list[Bundle]:
    """The other bundles of the namespace."""
    directory = os.path.dirname(bundle.path)
    works = os.path.dirname(bundle.work_path)
    return [
        Bundle(bundle.namespace, name, f"{directory}/{name}", f"{works}/{name}")
        for name in sorted(os.listdir(directory))
        if name != bundle.id and not name.startswith(".")
    ]
