"""A manager's configuration file: what it can say, and that each fault is named by its key."""

from __future__ import annotations

import pytest

from shim.convert import settings_from_toml
from shim.errors import InvalidArgument
from shim.model.settings import ManagerSettings

WHOLE = b"""
state = "/run/mine"
root = "/var/lib/mine"
socket_dir = "/run/mine/s"
search = ["/opt/shims"]
runtimes = ["io.containerd.trio.v2", "/opt/shims/containerd-shim-x-v1"]
require_known = true
debug = true

[env]
SCHED_CORE = "1"

[timeouts]
"io.containerd.timeout.shim.load" = "7s"
"""


def test_every_setting_can_be_given() -> None:
    found = settings_from_toml(WHOLE, "config.toml")
    assert found == ManagerSettings(
        state="/run/mine",
        root="/var/lib/mine",
        socket_dir="/run/mine/s",
        search=("/opt/shims",),
        runtimes=("io.containerd.trio.v2", "/opt/shims/containerd-shim-x-v1"),
        require_known=True,
        debug=True,
        env={"SCHED_CORE": "1"},
        timeouts={"io.containerd.timeout.shim.load": "7s"},
    )
    assert found.budgets.load.seconds == 7
    assert found.budgets.cleanup.seconds == 5


def test_an_empty_file_changes_nothing() -> None:
    assert settings_from_toml(b"", "config.toml") == ManagerSettings()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('stat = "/run/x"', "config.toml: stat: no such setting"),
        ("state = 5", "state: expected str, found int"),
        ('state = "run"', "state must be a plain absolute path, not 'run'"),
        ('root = "/a/../b"', "root must be a plain absolute path"),
        ('socket_dir = "/a-directory-whose-name-is-much-too-long-for-it"', "socket_dir .* is longer than 42 bytes"),
        ('runtimes = "io.containerd.trio.v2"', "runtimes: expected a list of texts"),
        ('runtimes = ["runc"]', "'runc' is no runtime name"),
        ('search = ["bin"]', "search must be absolute paths, not 'bin'"),
        ('require_known = "yes"', "require_known: expected bool, found str"),
        ('[env]\n"A=B" = "c"', "env: 'A=B' is no name of an environment variable"),
        ("[env]\nA = 1", r"env.*: expected str, found int"),
        ('[timeouts]\n"shim.timeout.nope" = "1s"', "timeouts: no budget is called 'shim.timeout.nope'"),
        ('[timeouts]\n"io.containerd.timeout.shim.load" = "5"', "timeouts: io.containerd.timeout.shim.load: '5' is no"),
        ("state =", "config.toml: Invalid value"),
        ("state = '\xff'", "config.toml:"),
    ],
)
def test_each_fault_is_named_by_its_key(text: str, wanted: str) -> None:
    with pytest.raises(InvalidArgument, match=wanted):
        settings_from_toml(text.encode("latin-1"), "config.toml")


def test_all_faults_of_a_file_are_told_at_once() -> None:
    with pytest.raises(InvalidArgument) as caught:
        settings_from_toml(b"state = 5\nrequire_known = 1\ndebug = 0", "config.toml")
    assert all(key in caught.value.message for key in ("state", "require_known", "debug"))
