"""The command line as Go's flag package reads it."""

from __future__ import annotations

import pytest

from shim.boot.flags import Flags, UsageError, parse_flags, usage
from shim.errors import InvalidArgument


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], Flags()),
        (["start"], Flags(action="start")),
        (["-namespace", "n", "-id", "i", "start"], Flags(namespace="n", id="i", action="start")),
        (["--namespace=n", "--id", "i", "delete"], Flags(namespace="n", id="i", action="delete")),
        (["-id=a=b"], Flags(id="a=b")),
        (["-id="], Flags()),
        (["-id", "-x"], Flags(id="-x")),
        (["-id", "a", "-id", "b"], Flags(id="b")),
        (["-debug", "start"], Flags(debug=True, action="start")),
        (["-debug=false", "start"], Flags(action="start")),
        (["-debug=T"], Flags(debug=True)),
        (["-v"], Flags(version=True)),
        (["--version"], Flags(version=True)),
        (["-info"], Flags(info=True)),
        (["-h"], Flags(help=True)),
        (["start", "-id", "i"], Flags(action="start")),
        (["--", "-id"], Flags(action="-id")),
        (["-", "x"], Flags(action="-")),
        (["-bundle", "/b", "-socket", "/s", "-debug-socket", "/d"], Flags(bundle="/b", socket="/s", debug_socket="/d")),
        (["-publish-binary", "/c", "-address", "/a"], Flags(publish_binary="/c", address="/a")),
    ],
)
def test_command_lines(words: list[str], expected: Flags) -> None:
    assert parse_flags(words) == expected


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["-nope"], "flag provided but not defined: -nope"),
        (["--nope=1"], "flag provided but not defined: -nope"),
        (["-id"], "flag needs an argument: -id"),
        (["---id", "x"], "bad flag syntax: ---id"),
        (["-=x"], "bad flag syntax: -=x"),
        (["-debug=perhaps"], 'invalid boolean value "perhaps" for -debug: parse error'),
        (["-debug="], 'invalid boolean value "" for -debug: parse error'),
    ],
)
def test_unreadable_command_lines(words: list[str], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_flags(words)
    assert str(caught.value) == text


def test_usage_names_every_flag() -> None:
    for name in ("address", "bundle", "debug", "id", "info", "namespace", "publish-binary", "socket", "v", "version"):
        assert f"  -{name}" in usage()


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        (Flags(id="i"), "namespace"),
        (Flags(namespace="n"), "id"),
        (Flags(namespace="n", id="a/b"), "id"),
        (Flags(namespace="..", id="a"), "namespace"),
        (Flags(namespace="n", id="a\n"), "id"),
        (Flags(namespace="n", id="x" * 77), "id"),
    ],
)
def test_identity_is_checked(flags: Flags, fault: str) -> None:
    Flags(namespace="n", id="a.b-c_d").check_identity()
    with pytest.raises(InvalidArgument, match=fault):
        flags.check_identity()
