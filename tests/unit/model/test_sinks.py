"""What the texts for stdout and stderr mean."""

from __future__ import annotations

import pytest

from shim.errors import InvalidArgument
from shim.model.sinks import Discard, Fifo, LogFile, Logger, Sinks, parse_sink, plan_sinks


@pytest.mark.parametrize(
    ("text", "sink"),
    [
        ("", Discard()),
        ("/run/a fifo/100%25", Fifo("/run/a fifo/100%25")),
        ("/odd/x://y", Fifo("/odd/x://y")),
        ("fifo:///a%20b", Fifo("/a b")),
        ("file:///a%20b/100%25", LogFile("/a b/100%")),
        ("file:///log?x=y#z", LogFile("/log")),
        ("binary:///bin/log", Logger("/bin/log")),
        ("binary:///bin/log?", Logger("/bin/log")),
        ("binary:///bin/l%6Fg?z=1&a=b%20c&z=2&k&e=", Logger("/bin/log", ("z", "1", "a", "b c", "k", "", "e", ""))),
        ("binary-v2:///bin/log?a=+", Logger("/bin/log", ("a", " "), strict=True)),
    ],
)
def test_text_to_sink(text: str, sink: object) -> None:
    assert parse_sink(text) == sink


@pytest.mark.parametrize(
    "text",
    [
        "npipe:///x",
        "pipe:///x",
        "file://relative",
        "binary://",
        "file://[",
        "/a\0b",
        "file:///a%00b",
        "binary:///x?a=%00",
    ],
)
def test_texts_that_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_sink(text)


def test_unknown_scheme_is_named_as_people_know_it() -> None:
    with pytest.raises(InvalidArgument, match="unknown STDIO scheme npipe"):
        parse_sink("npipe:///x")


@pytest.mark.parametrize(
    ("stdout", "stderr", "terminal", "sinks"),
    [
        ("/out", "/err", False, Sinks(Fifo("/out"), Fifo("/err"))),
        ("", "/err", False, Sinks(Discard(), Fifo("/err"))),
        ("/out", "", False, Sinks(Fifo("/out"), Discard())),
        ("file:///log", "", False, Sinks(LogFile("/log"), LogFile("/log"))),
        ("file:///log", "file:///err", False, Sinks(LogFile("/log"), LogFile("/err"))),
        ("", "file:///err", False, Sinks(Discard(), LogFile("/err"))),
        ("binary:///l", "binary:///m", False, Sinks(Logger("/l"), Logger("/l"))),
        ("/out", "npipe:///never read", True, Sinks(Fifo("/out"), Discard())),
    ],
)
def test_plan_of_both(stdout: str, stderr: str, terminal: bool, sinks: Sinks) -> None:
    assert plan_sinks(stdout, stderr, terminal=terminal) == sinks
