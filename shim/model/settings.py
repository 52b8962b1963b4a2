"""What an administrator can set of a manager, as it stands in a configuration file.

Invariants: every value was checked when the object was made, and the error says which key is wrong; budgets are given
under their names of design section 12 in `[timeouts]`.  No file is read and none looked at here.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Final

import attrs

from shim.errors import InvalidArgument
from shim.model.budgets import Budgets
from shim.model.runtimes import is_path, shim_program

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_STATE: Final = "/run/shimctl"
DEFAULT_ROOT: Final = "/var/lib/shimctl"
LONGEST_SOCKET_DIR: Final = 42
"""Bytes of a socket directory that leave room for a socket's name (protocol.md 9.1)."""


def _directory(instance: object, attribute: attrs.Attribute[str], value: str) -> None:
    if not value.startswith("/") or posixpath.normpath(value) != value or value == "/":
        raise InvalidArgument(f"{attribute.name} must be a plain absolute path, not {value!r:.100}")


def _socket_directory(instance: object, attribute: attrs.Attribute[str], value: str) -> None:
    if not value:
        return
    _directory(instance, attribute, value)
    if len(value.encode(errors="surrogateescape")) > LONGEST_SOCKET_DIR:
        raise InvalidArgument(f"{attribute.name} {value} is longer than {LONGEST_SOCKET_DIR} bytes")


def _search(instance: object, attribute: attrs.Attribute[tuple[str, ...]], value: tuple[str, ...]) -> None:
    for path in value:
        if not path.startswith("/"):
            raise InvalidArgument(f"{attribute.name} must be absolute paths, not {path!r:.100}")


def _runtimes(instance: object, attribute: attrs.Attribute[tuple[str, ...]], value: tuple[str, ...]) -> None:
    for runtime in value:
        if not is_path(runtime):
            shim_program(runtime)


def _environment(instance: object, attribute: attrs.Attribute[dict[str, str]], value: Mapping[str, str]) -> None:
    for name, text in value.items():
        if not name or "=" in name or "\0" in name + text:
            raise InvalidArgument(f"{attribute.name}: {name!r:.100} is no name of an environment variable")


def _timeouts(instance: object, attribute: attrs.Attribute[dict[str, str]], value: Mapping[str, str]) -> None:
    try:
        Budgets().with_durations(value)
    except InvalidArgument as error:
        raise InvalidArgument(f"{attribute.name}: {error.message}") from error


@attrs.frozen
class ManagerSettings:
    """One manager's configuration; every default is what `shimctl` does without a file."""

    state: str = attrs.field(default=DEFAULT_STATE, validator=_directory)
    """Directory of bundles and sockets."""
    root: str = attrs.field(default=DEFAULT_ROOT, validator=_directory)
    """Directory of what lasts."""
    socket_dir: str = attrs.field(default="", validator=_socket_directory)
    """Where shims that honour it put their sockets; empty: /run/containerd/s."""
    env: dict[str, str] = attrs.field(factory=dict, validator=_environment)
    """Added to the environment of every shim program, over our own and below what the protocol sets."""
    search: tuple[str, ...] = attrs.field(default=(), validator=_search)
    """Directories in which shims are looked for; empty: PATH, then beside our own program."""
    runtimes: tuple[str, ...] = attrs.field(default=(), validator=_runtimes)
    """Runtimes that are asked what they can do when the manager opens."""
    require_known: bool = False
    """Refuse every runtime that is not among `runtimes`."""
    debug: bool = False
    """Let shims log more."""
    timeouts: dict[str, str] = attrs.field(factory=dict, validator=_timeouts)
    """Budgets by key, as Go durations."""

    @property
    def budgets(self) -> Budgets:
        """The budgets with those in `timeouts` replaced."""
        return Budgets().with_durations(self.timeouts)
