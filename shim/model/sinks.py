"""Where the streams of a process go, read from the texts that the client gave (protocol.md 7.2).

A bare path is taken as it is.  With a scheme the rest is a URI, so percent escapes in its path are decoded.  A logger
and a log file that stdout names take stderr too, unless that names something of its own; with a terminal there is one
stream, and the text for stderr is not even read.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

import attrs

from shim.errors import InvalidArgument


@attrs.frozen
class Discard:
    """No sink: /dev/null."""


@attrs.frozen
class Fifo:
    """A client's fifo (or a file that exists), by its path."""

    path: str


@attrs.frozen
class LogFile:
    """A file that is appended to; it and its directory are made when missing."""

    path: str


@attrs.frozen
class Logger:
    """A program that reads both streams; `strict` means its ready signal must really come (binary-v2)."""

    path: str
    arguments: tuple[str, ...] = ()
    strict: bool = False


Sink = Discard | Fifo | LogFile | Logger
SCHEMES: Final = ("fifo", "binary", "binary-v2", "file")


@attrs.frozen
class Sinks:
    """The sinks of one process."""

    stdout: Sink
    stderr: Sink


def parse_sink(text: str) -> Sink:
    """The sink that `text` names; InvalidArgument for a scheme that nobody knows or a path that cannot be one."""
    if not text:
        return Discard()
    scheme, separator, _ = text.partition("://")
    if not separator or "/" in scheme:
        return Fifo(_checked(text, text))
    if scheme not in SCHEMES:
        raise InvalidArgument(f"unknown STDIO scheme {scheme}")
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise InvalidArgument(f"{text}: {error}") from error
    path = _checked(text, unquote(parts.netloc + parts.path, errors="surrogateescape"))
    if not path.startswith("/"):
        raise InvalidArgument(f"{text}: the path must be absolute")
    if scheme == "fifo":
        return Fifo(path)
    if scheme == "file":
        return LogFile(path)
    return Logger(path, _arguments(text, parts.query), strict=scheme == "binary-v2")


def plan_sinks(stdout: str, stderr: str, *, terminal: bool) -> Sinks:
    """Where both streams go; InvalidArgument as `parse_sink`."""
    first = parse_sink(stdout)
    if terminal:
        return Sinks(first, Discard())
    if isinstance(first, Logger) or (isinstance(first, LogFile) and not stderr):
        return Sinks(first, first)
    return Sinks(first, parse_sink(stderr))


def _arguments(text: str, query: str) -> tuple[str, ...]:
    """Each key and its first value, in the order of the URI."""
    pairs: dict[str, str] = {}
    for key, value in parse_qsl(query, keep_blank_values=True, errors="surrogateescape"):
        pairs.setdefault(key, value)
    return tuple(_checked(text, word) for pair in pairs.items() for word in pair)


def _checked(text: str, word: str) -> str:
    if "\0" in word:
        raise InvalidArgument(f"{text!r}: a zero byte is in no path and no argument")
    return word
