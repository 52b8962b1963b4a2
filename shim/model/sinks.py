"""Where a stream of a process goes, read from the text that the client gave (protocol.md 7.2).

A bare path is taken as it is.  With a scheme the rest is a URI, so percent escapes in its path are decoded.
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


def parse_sink(text: str) -> Sink:
    """The sink that `text` names; InvalidArgument for a scheme that nobody knows or a URI without a path."""
    if not text:
        return Discard()
    scheme, separator, _ = text.partition("://")
    if not separator or "/" in scheme:
        return Fifo(text)
    parts = urlsplit(text)
    path = unquote(parts.netloc + parts.path)
    if scheme not in SCHEMES:
        raise InvalidArgument(f"unknown STDIO scheme {scheme}")
    if not path.startswith("/"):
        raise InvalidArgument(f"{text}: the path must be absolute")
    if scheme == "fifo":
        return Fifo(path)
    if scheme == "file":
        return LogFile(path)
    words = tuple(word for pair in parse_qsl(parts.query, keep_blank_values=True) for word in pair)
    return Logger(path, words, strict=scheme == "binary-v2")
