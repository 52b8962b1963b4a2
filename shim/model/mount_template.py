"""The template language of the `format` transform (protocol.md 9.7): earlier mounts in the text of a later one.

An action is `{{ source I }}`, `{{ target I }}`, `{{ mount I }}` or `{{ overlay A B }}`, in the notation of Go's
text/template, whose trim markers (`{{- ` and ` -}}`) are understood too; there is nothing else in the language.  I, A
and B count the mounts before this one, from 0.  What an action gives is taken as it is and never read as a template.
Refuses every other action and every index of a mount that does not exist, with InvalidArgument that shows the action.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import attrs

from shim.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shim.model.mounts import Mount

OPEN: Final = "{{"
CLOSE: Final = "}}"
_SPACE: Final = " \t\r\n"
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,9}")


@attrs.frozen
class MountedAt:
    """An earlier mount and the place where it is."""

    mount: Mount
    mount_point: str


def _source(earlier: Sequence[MountedAt], index: int) -> str:
    return earlier[index].mount.source


def _target(earlier: Sequence[MountedAt], index: int) -> str:
    return earlier[index].mount.target


def _mount(earlier: Sequence[MountedAt], index: int) -> str:
    return earlier[index].mount_point


def _overlay(earlier: Sequence[MountedAt], first: int, last: int) -> str:
    step = 1 if first <= last else -1
    return ":".join(earlier[index].mount_point for index in range(first, last + step, step))


_FUNCTIONS: Final[dict[str, tuple[int, Callable[..., str]]]] = {
    "source": (1, _source),
    "target": (1, _target),
    "mount": (1, _mount),
    "overlay": (2, _overlay),
}


def evaluate(text: str, earlier: Sequence[MountedAt]) -> str:
    """`text` with each action replaced by what it names.  Raises InvalidArgument."""
    written: list[str] = []
    rest = text
    while True:
        literal, opened, after = rest.partition(OPEN)
        if not opened:
            return "".join([*written, literal])
        body, closed, rest = after.partition(CLOSE)
        if not closed:
            raise InvalidArgument(f"template {text}: an action is not closed")
        if body[:1] == "-" and body[1:2] in _SPACE and body[1:]:
            body, literal = body[1:], literal.rstrip(_SPACE)
        if body[-1:] == "-" and body[-2:-1] in _SPACE and body[:-1]:
            body, rest = body[:-1], rest.lstrip(_SPACE)
        written += [literal, _act(body, text, earlier)]


def _act(body: str, text: str, earlier: Sequence[MountedAt]) -> str:
    action = OPEN + body + CLOSE
    words = body.split()
    arity, function = _FUNCTIONS.get(words[0] if words else "", (0, None))
    if function is None:
        raise InvalidArgument(f"template {text}: {action} is none of {', '.join(_FUNCTIONS)}")
    if len(words) != arity + 1 or not all(_NUMBER.fullmatch(word) for word in words[1:]):
        numbers = "one number" if arity == 1 else f"{arity} numbers"
        raise InvalidArgument(f"template {text}: {action} takes {numbers}")
    indexes = [int(word) for word in words[1:]]
    for index in indexes:
        if not 0 <= index < len(earlier):
            count = f"there are {len(earlier)}" if len(earlier) != 1 else "there is 1"
            raise InvalidArgument(f"template {text}: no mount {index} comes before this one, {count}")
    return function(earlier, *indexes)


def format_mount(mount: Mount, earlier: Sequence[MountedAt]) -> Mount:
    """`mount` with the templates in its source, target and options evaluated; its type is left as it is."""

    def formatted(text: str) -> str:
        return evaluate(text, earlier) if OPEN in text else text

    return attrs.evolve(
        mount,
        source=formatted(mount.source),
        target=formatted(mount.target),
        options=tuple(formatted(option) for option in mount.options),
    )
