"""The command line, read the way Go's flag package reads it (protocol.md 2.2), since that is how it is written.

One or two dashes; `-x=v` or `-x v`; a boolean flag takes a value only after `=`; `--` or the first word that is no
flag ends the flags, and that word is the action.  argparse reads this grammar differently and imports more.
Refuses what Go refuses; what the flags *mean* is checked by whoever uses them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from shim.boot.version import PROGRAM
from shim.errors import InvalidArgument
from shim.model.names import check_identifier

if TYPE_CHECKING:
    from collections.abc import Sequence


class UsageError(Exception):
    """The command line cannot be read; the usage text helps more than the program's own error form."""


@attrs.frozen
class Flags:
    """The flags and the action, defaults for those not given."""

    namespace: str = ""
    id: str = ""
    address: str = ""
    publish_binary: str = ""
    bundle: str = ""
    socket: str = ""
    debug_socket: str = ""
    debug: bool = False
    version: bool = False
    info: bool = False
    help: bool = False
    action: str = ""

    def check_identity(self) -> None:
        """Raise InvalidArgument unless namespace and id were given and are identifiers."""
        if not self.namespace:
            raise InvalidArgument("shim namespace cannot be empty: give -namespace")
        if not self.id:
            raise InvalidArgument("shim id cannot be empty: give -id")
        check_identifier(self.namespace, "namespace")
        check_identifier(self.id, "id")


_TEXTS: Final = {
    "address": ("address", "grpc address back to main containerd"),
    "bundle": ("bundle", "path to the bundle if not the working directory"),
    "debug-socket": ("debug_socket", "accepted and ignored: Inspect on the shim's own socket takes its place"),
    "id": ("id", "id of the task"),
    "namespace": ("namespace", "namespace that owns the shim"),
    "publish-binary": ("publish_binary", "accepted and ignored: events go over ttrpc"),
    "socket": ("socket", "socket path to serve on instead of descriptor 3"),
}
_SWITCHES: Final = {
    "debug": ("debug", "debug output in logs"),
    "h": ("help", "show this text and exit"),
    "help": ("help", "show this text and exit"),
    "info": ("info", "print runtime information (protobuf) and exit"),
    "v": ("version", "print the version and exit"),
    "version": ("version", "print the version and exit"),
}
_TRUTHS: Final = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}


def parse_flags(words: Sequence[str]) -> Flags:
    """Read the command line without the program's name; UsageError when it cannot be read."""
    values: dict[str, str | bool] = {}
    rest = list(words)
    while rest and len(rest[0]) > 1 and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        name, has_value, value = word.removeprefix("-").removeprefix("-").partition("=")
        if not name or name.startswith("-"):
            raise UsageError(f"bad flag syntax: {word}")
        if name in _SWITCHES:
            field = _SWITCHES[name][0]
            if has_value and value not in _TRUTHS:
                raise UsageError(f'invalid boolean value "{value}" for -{name}: parse error')
            values[field] = _TRUTHS[value] if has_value else True
        elif name in _TEXTS:
            if not has_value:
                if not rest:
                    raise UsageError(f"flag needs an argument: -{name}")
                value = rest.pop(0)
            values[_TEXTS[name][0]] = value
        else:
            raise UsageError(f"flag provided but not defined: -{name}")
    values["action"] = rest[0] if rest else ""
    return Flags(**values)  # type: ignore[arg-type]  # the tables above pair each field with its kind


def usage() -> str:
    """What is printed for a command line that cannot be read, and for -help."""
    lines = [f"Usage of {PROGRAM}: [flags] [start | delete]", "  without an action it serves on descriptor 3"]
    for name, (_, meaning) in sorted({**_TEXTS, **_SWITCHES}.items()):
        lines.append(f"  -{name}{'' if name in _SWITCHES else ' string'}")
        lines.append(f"    \t{meaning}")
    return "\n".join(lines) + "\n"
