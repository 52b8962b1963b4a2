"""The formats of cgroup files, read into plain numbers (protocol.md 6.4 and 6.5 name the files).

Every reader takes what the kernel wrote and leaves out what it does not understand: a line that a later kernel adds, or
one cut short because the cgroup went while it was read, costs that line and never the answer.  No reader raises.
"""

from __future__ import annotations

from typing import Final

import attrs

WORD_MAX: Final = 2**64 - 1
"""What the word `max` stands for, and the largest number that the messages can carry."""
TICK_NS: Final = 10**9 // 100
"""Nanoseconds in a tick of cpuacct.stat; the kernel shows 100 a second to programs, whatever it uses itself."""
_MIB: Final = 1024
_GIB: Final = 1024 * 1024


def number(text: str) -> int | None:
    """One number, `max` as WORD_MAX and anything below zero as 0; None for what is no 64-bit number."""
    word = text.strip()
    if word == "max":
        return WORD_MAX
    digits = word.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > len(str(WORD_MAX)):
        return None
    value = int(word)
    return max(value, 0) if value <= WORD_MAX else None


def numbers(text: str) -> list[int]:
    """Numbers separated by blanks, such as one for each CPU."""
    return [value for value in map(number, text.split()) if value is not None]


def flat(text: str) -> dict[str, int]:
    """Lines of `KEY NUMBER`."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and (value := number(words[1])) is not None:
            found[words[0]] = value
    return found


def nested(text: str) -> list[tuple[str, dict[str, int]]]:
    """Lines of `NAME KEY=NUMBER ...`, in order; a name without any pair is left out.

    Kernels of 5.x wrote the names of devices without figures in front of the next one on the same line: the last name
    before the pairs is theirs.
    """
    found: list[tuple[str, dict[str, int]]] = []
    for line in text.splitlines():
        name = ""
        values: dict[str, int] = {}
        for word in line.split():
            key, equals, value = word.partition("=")
            if not equals and not values:
                name = word
            elif equals and (known := number(value)) is not None:
                values[key] = known
        if name and values:
            found.append((name, values))
    return found


def device(name: str) -> tuple[int, int] | None:
    """The numbers in a `MAJOR:MINOR`."""
    major, _, minor = name.partition(":")
    first, second = number(major), number(minor)
    return None if first is None or second is None else (first, second)


@attrs.frozen
class Pressure:
    """One line of a pressure file: the share of the time stalled in percent, and the total in microseconds."""

    avg10: float = 0.0
    avg60: float = 0.0
    avg300: float = 0.0
    total: int = 0


def pressures(text: str) -> dict[str, Pressure]:
    """The lines of a pressure file by their names, `some` and `full`."""
    found: dict[str, Pressure] = {}
    for line in text.splitlines():
        name, _, rest = line.strip().partition(" ")
        pairs = dict(word.split("=", 1) for word in rest.split() if "=" in word)
        if pairs:
            found[name] = Pressure(
                avg10=_share(pairs.get("avg10", "")),
                avg60=_share(pairs.get("avg60", "")),
                avg300=_share(pairs.get("avg300", "")),
                total=number(pairs.get("total", "")) or 0,
            )
    return found


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0.0 <= value <= 100.0 else 0.0


@attrs.frozen
class DeviceLine:
    """One line of a blkio file; `operation` is empty where the file does not tell operations apart."""

    major: int
    minor: int
    operation: str
    value: int


def device_lines(text: str) -> list[DeviceLine]:
    """Lines of `MAJOR:MINOR [OPERATION] NUMBER`; the total of all devices at the end is left out."""
    found: list[DeviceLine] = []
    for line in text.splitlines():
        words = line.split()
        if len(words) not in (2, 3):
            continue
        numbers_, value = device(words[0]), number(words[-1])
        if numbers_ is not None and value is not None:
            found.append(DeviceLine(*numbers_, words[1] if len(words) == 3 else "", value))
    return found


def page_size(directory: str) -> tuple[int, str] | None:
    """The size in KiB of a directory like `hugepages-2048kB`, and how the names of cgroup files write it (`2MB`)."""
    size = number(directory.removeprefix("hugepages-").removesuffix("kB"))
    if not size:
        return None
    if size >= _GIB:
        return size, f"{size // _GIB}GB"
    return (size, f"{size // _MIB}MB") if size >= _MIB else (size, f"{size}KB")
