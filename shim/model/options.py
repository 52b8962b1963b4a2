"""The runtime options of one task, whatever form they came in (protocol.md 6.2).

Empty texts mean "not set".  `task_api_address` and `task_api_version` are read by containerd only; they are kept so
that options.json and the echo of `-info` lose nothing.
"""

from __future__ import annotations

from typing import Final

import attrs

DEFAULT_BINARY: Final = "runc"
DEFAULT_ROOT: Final = "/run/containerd/runc"


@attrs.frozen
class RuncOptions:
    """Options of `containerd.runc.v1`, under their wire names."""

    no_pivot_root: bool = False
    no_new_keyring: bool = False
    shim_cgroup: str = ""
    io_uid: int = 0
    io_gid: int = 0
    binary_name: str = ""
    root: str = ""
    systemd_cgroup: bool = False
    criu_image_path: str = ""
    criu_work_path: str = ""
    task_api_address: str = ""
    task_api_version: int = 0

    @property
    def binary(self) -> str:
        """The runtime to run: a path, or a name to look up on PATH."""
        return self.binary_name or DEFAULT_BINARY

    def runtime_root(self, namespace: str) -> str:
        """The directory in which the runtime keeps its state for `namespace`."""
        return f"{self.root or DEFAULT_ROOT}/{namespace}"
