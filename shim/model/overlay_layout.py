"""The options of an overlay taken apart into its layers, and how short their text can be made.

In the text of mount(2) a comma ends an option and a colon a layer; a backslash takes the meaning of the character after
it away.  `::` in `lowerdir` begins the data-only layers.  A layout has the bare paths, in the order of the text.
Refuses empty layers, and data-only layers before others.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import attrs

from shim.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_SPECIAL: Final = re.compile(r"([\\,:])")


@attrs.frozen
class OverlayLayout:
    """The layers, `upper` and `work` empty where there are none; `others` are all further options as they came."""

    lower: tuple[str, ...]
    data_only: tuple[str, ...] = ()
    upper: str = ""
    work: str = ""
    others: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path, in order."""
        return (*self.lower, *self.data_only, *(path for path in (self.upper, self.work) if path))

    def renamed(self, change: Callable[[str], str]) -> OverlayLayout:
        """The same with another name for each path."""
        return attrs.evolve(
            self,
            lower=tuple(map(change, self.lower)),
            data_only=tuple(map(change, self.data_only)),
            upper=change(self.upper) if self.upper else "",
            work=change(self.work) if self.work else "",
        )

    def text(self) -> str:
        """The data of mount(2)."""
        lower = "::".join([":".join(map(_escape, self.lower)), *map(_escape, self.data_only)])
        options = [*self.others, f"lowerdir={lower}"]
        if self.upper:
            options.append(f"upperdir={_escape(self.upper)}")
        if self.work:
            options.append(f"workdir={_escape(self.work)}")
        return ",".join(options)


def parse_overlay(data: Iterable[str]) -> OverlayLayout:
    """Take the options apart that are no flags.  Raises InvalidArgument."""
    lower: list[str] = []
    data_only: list[str] = []
    places = {"upperdir": "", "workdir": ""}
    others: list[str] = []
    for option in _split(",".join(data), ","):
        name, _, value = option.partition("=")
        if name == "lowerdir":
            lower, data_only = _layers(value)
        elif name == "lowerdir+":
            lower.append(value)
        elif name == "datadir+":
            data_only.append(value)
        elif name in places:
            places[name] = _ESCAPED.sub(r"\1", value)
        elif option:
            others.append(option)
    return OverlayLayout(tuple(lower), tuple(data_only), places["upperdir"], places["workdir"], tuple(others))


def common_parent(paths: Sequence[str]) -> str:
    """The longest directory that all of these absolute paths are written below; they are not resolved for it."""
    parts = [path.split("/")[:-1] for path in paths]
    shared = 0
    for names in zip(*parts, strict=False):
        if len(set(names)) > 1:
            break
        shared += 1
    return "/".join(parts[0][:shared]) or "/"


def relative_to(parent: str, path: str) -> str:
    """`path` as seen from `parent`; as it is if it is not written below it."""
    prefix = parent if parent.endswith("/") else f"{parent}/"
    rest = path[len(prefix) :].lstrip("/")
    return rest if path.startswith(prefix) and rest else path


def _layers(text: str) -> tuple[list[str], list[str]]:
    parts = _split(text, ":")
    first_data = parts.index("") if "" in parts else len(parts)
    lower, rest = parts[:first_data], parts[first_data:]
    data_only = rest[1::2]
    if not lower or "" in data_only or any(rest[0::2]) or len(rest) % 2:
        raise InvalidArgument(f"lowerdir={text}: empty layers, or others after data-only ones")
    return [_ESCAPED.sub(r"\1", part) for part in lower], [_ESCAPED.sub(r"\1", part) for part in data_only]


def _split(text: str, separator: str) -> list[str]:
    """Split where the separator is not escaped; the escapes stay."""
    parts = [""]
    position = 0
    while position < len(text):
        step = 2 if text[position] == "\\" else 1
        piece = text[position : position + step]
        if piece == separator:
            parts.append("")
        else:
            parts[-1] += piece
        position += step
    return parts


def _escape(path: str) -> str:
    return _SPECIAL.sub(r"\\\1", path)
