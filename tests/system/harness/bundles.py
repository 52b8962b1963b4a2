"""Bundles for the containers of the suite: one busybox root file system for a whole run, one spec builder.

The shared root is read-only for its containers unless a test asks for a mounted one of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Final, TypeAlias, TypedDict

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | bool | None"

PATH_IN_CONTAINER: Final = "PATH=/bin:/sbin"
CAPABILITIES: Final[list[Json]] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
]


def make_rootfs(directory: Path) -> Path:
    """A root file system that holds a static busybox and a link for each of its applets."""
    busybox = shutil.which("busybox")
    if busybox is None:
        raise FileNotFoundError("the system suite needs a static busybox")
    for name in ("bin", "dev", "etc", "proc", "sys", "tmp", "run", "mnt"):
        (directory / name).mkdir(parents=True)
    shutil.copy(busybox, directory / "bin" / "busybox")
    listed = subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True, timeout=10)
    for applet in listed.stdout.split():
        if applet != "busybox":
            (directory / "bin" / applet).symlink_to("busybox")
    (directory / "tmp").chmod(0o1777)
    (directory / "etc" / "passwd").write_text("root:x:0:0::/:/bin/sh\nsomeone:x:1000:1000::/:/bin/sh\n")
    (directory / "etc" / "group").write_text("root:x:0:\nsomeone:x:1000:\n")
    return directory


def _capabilities() -> Json:
    return {name: list(CAPABILITIES) for name in ("bounding", "effective", "permitted")}


def _mount(destination: str, kind: str, source: str, *options: str) -> Json:
    return {"destination": destination, "type": kind, "source": source, "options": list(options)}


def make_process(
    args: Sequence[str],
    *,
    terminal: bool = False,
    user: tuple[int, int] = (0, 0),
    env: Sequence[str] = (),
) -> dict[str, Json]:
    """The process part of a spec; also what an Exec carries."""
    return {
        "terminal": terminal,
        "user": {"uid": user[0], "gid": user[1]},
        "args": list(args),
        "env": [PATH_IN_CONTAINER, "TERM=xterm", *env],
        "cwd": "/",
        "capabilities": _capabilities(),
        "noNewPrivileges": True,
    }


class SpecChanges(TypedDict, total=False):
    """The fields of `Spec` that a test may give by name."""

    root: str
    readonly: bool
    terminal: bool
    own_pid_namespace: bool
    user: tuple[int, int]
    env: Sequence[str]
    annotations: Mapping[str, str]
    memory_limit: int | None
    mounts: Sequence[Json]
    hooks: Mapping[str, Json]
    cgroups_path: str


@attrs.frozen
class Spec:
    """What tests vary about a container; `document` makes the OCI spec of it."""

    args: Sequence[str]
    cgroups_path: str
    root: str
    readonly: bool = True
    terminal: bool = False
    own_pid_namespace: bool = True
    user: tuple[int, int] = (0, 0)
    env: Sequence[str] = ()
    annotations: Mapping[str, str] = attrs.field(factory=dict)
    memory_limit: int | None = None
    mounts: Sequence[Json] = ()
    hooks: Mapping[str, Json] = attrs.field(factory=dict)

    def document(self) -> dict[str, Json]:
        """The spec as containerd would write it."""
        kinds = ["ipc", "uts", "mount", "network", *(["pid"] if self.own_pid_namespace else [])]
        resources: dict[str, Json] = {"devices": [{"allow": True, "access": "rwm"}]}
        if self.memory_limit is not None:
            resources["memory"] = {"limit": self.memory_limit}
        document: dict[str, Json] = {
            "ociVersion": "1.0.2",
            "process": make_process(self.args, terminal=self.terminal, user=self.user, env=self.env),
            "root": {"path": self.root, "readonly": self.readonly},
            "hostname": "box",
            "mounts": [
                _mount("/proc", "proc", "proc", "nosuid", "noexec", "nodev"),
                _mount("/dev", "tmpfs", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k"),
                _mount("/dev/pts", "devpts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"),
                _mount("/tmp", "tmpfs", "tmpfs", "nosuid", "mode=1777"),
                *self.mounts,
            ],
            "annotations": dict(self.annotations),
            "linux": {
                "cgroupsPath": self.cgroups_path,
                "namespaces": [{"type": kind} for kind in kinds],
                "resources": resources,
            },
        }
        if self.hooks:
            document["hooks"] = dict(self.hooks)
        return document


@attrs.frozen
class Bundle:
    """A bundle directory and the id of the task that it is for."""

    id: str
    path: Path

    def file(self, name: str) -> Path:
        """A file of the bundle by name."""
        return self.path / name

    def read_json(self, name: str) -> dict[str, Json]:
        """A JSON object from a file of the bundle."""
        found = json.loads(self.file(name).read_text())
        assert isinstance(found, dict)
        return found


def make_bundle(path: Path, identifier: str, spec: Spec | None) -> Bundle:
    """A new bundle with modes as containerd gives them (protocol.md 9.1); no spec leaves config.json out."""
    path.mkdir(mode=0o700)
    (path / "rootfs").mkdir(mode=0o711)
    if spec is not None:
        (path / "config.json").write_text(json.dumps(spec.document()))
    os.mkfifo(path / "log", 0o700)
    return Bundle(identifier, path)
