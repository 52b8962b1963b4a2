"""The OCI specification of a plain container, as people who know `ctr run` expect it.

Invariants: pure; what it makes can be run by a runtime without CAP_SYS_RESOURCE (no rlimit above the hard limit that is
given, no oom score) and on any cgroup layout (a cgroup of one path element, nothing of it mounted inside); the cgroup
of a task never meets containerd's, whose path is /NAMESPACE/ID.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import attrs

from shim.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OCI_VERSION: Final = "1.0.2"
DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OPEN_FILES: Final = 1024

CAPABILITIES: Final = (
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FSETID",
    "CAP_FOWNER",
    "CAP_MKNOD",
    "CAP_NET_RAW",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETFCAP",
    "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT",
    "CAP_KILL",
    "CAP_AUDIT_WRITE",
)
MASKED_PATHS: Final = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
    "/proc/scsi",
)
READONLY_PATHS: Final = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")

_GUARDED: Final = ("nosuid", "noexec", "nodev")
_MOUNTS: Final[tuple[tuple[str, str, str, tuple[str, ...]], ...]] = (
    ("/proc", "proc", "proc", _GUARDED),
    ("/dev", "tmpfs", "tmpfs", ("nosuid", "strictatime", "mode=755", "size=65536k")),
    ("/dev/pts", "devpts", "devpts", ("nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5")),
    ("/dev/shm", "tmpfs", "shm", (*_GUARDED, "mode=1777", "size=65536k")),
    ("/dev/mqueue", "mqueue", "mqueue", _GUARDED),
    ("/sys", "sysfs", "sysfs", (*_GUARDED, "ro")),
    ("/run", "tmpfs", "tmpfs", ("nosuid", "strictatime", "mode=755", "size=65536k")),
)
_NAMESPACES: Final = ("pid", "ipc", "uts", "mount", "network")
# Type, major, minor (None: all) and access of the devices that every container may use.
_DEVICES: Final[tuple[tuple[str, int | None, int | None, str], ...]] = (
    ("c", None, None, "m"),
    ("b", None, None, "m"),
    ("c", 1, 3, "rwm"),  # null
    ("c", 1, 5, "rwm"),  # zero
    ("c", 1, 7, "rwm"),  # full
    ("c", 1, 8, "rwm"),  # random
    ("c", 1, 9, "rwm"),  # urandom
    ("c", 5, 0, "rwm"),  # tty
    ("c", 5, 1, "rwm"),  # console
    ("c", 5, 2, "rwm"),  # ptmx
    ("c", 136, None, "rwm"),  # pts
)


@attrs.frozen
class RunSpec:
    """What differs from one plain container to the next."""

    namespace: str
    id: str
    args: Sequence[str]
    root_path: str = "rootfs"
    readonly: bool = False
    terminal: bool = False
    env: Mapping[str, str] = attrs.field(factory=dict)
    cwd: str = "/"
    open_files_limit: int = OPEN_FILES
    """The hard limit of open files that the runtime will run under: ours."""


def cgroups_path(namespace: str, task_id: str) -> str:
    """One path element, so that nothing stays behind; `+` is in no identifier, so that two tasks never share it."""
    return f"/shimctl+{namespace}+{task_id}"


def default_spec(run: RunSpec) -> bytes:
    """The bytes of config.json for `run`.  InvalidArgument when there is no command or the cwd is not absolute."""
    if not run.args:
        raise InvalidArgument("no command is given")
    if not run.cwd.startswith("/"):
        raise InvalidArgument(f"the working directory {run.cwd!r:.100} in the container is not absolute")
    env = {"PATH": DEFAULT_PATH, "HOSTNAME": run.id[:63]}
    if run.terminal:
        env["TERM"] = "xterm"
    env.update(run.env)
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise InvalidArgument(f"{name!r:.100} is no name of an environment variable")
    limit = min(OPEN_FILES, run.open_files_limit)
    document = {
        "ociVersion": OCI_VERSION,
        "process": {
            "terminal": run.terminal,
            "user": {"uid": 0, "gid": 0},
            "args": list(run.args),
            "env": [f"{name}={value}" for name, value in env.items()],
            "cwd": run.cwd,
            "capabilities": {kind: list(CAPABILITIES) for kind in ("bounding", "effective", "permitted")},
            "rlimits": [{"type": "RLIMIT_NOFILE", "hard": limit, "soft": limit}],
            "noNewPrivileges": True,
        },
        "root": {"path": run.root_path, "readonly": run.readonly},
        "hostname": run.id[:63],
        "mounts": [
            {"destination": destination, "type": kind, "source": source, "options": list(options)}
            for destination, kind, source, options in _MOUNTS
        ],
        "linux": {
            "cgroupsPath": cgroups_path(run.namespace, run.id),
            "namespaces": [{"type": kind} for kind in _NAMESPACES],
            "resources": {"devices": [{"allow": False, "access": "rwm"}, *_device_rules()]},
            "maskedPaths": list(MASKED_PATHS),
            "readonlyPaths": list(READONLY_PATHS),
        },
    }
    return json.dumps(document, indent=1).encode()


def remapped_root_group(spec: bytes) -> int | None:
    """The host's gid for gid 0 of the container when `spec` has a user namespace that maps it, else None.

    InvalidArgument when `spec` is no JSON object.
    """
    try:
        document = json.loads(spec)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"the specification is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidArgument("the specification is no JSON object")
    linux = document.get("linux")
    if not isinstance(linux, dict):
        return None
    if not any(entry.get("type") == "user" for entry in _objects(linux, "namespaces")):
        return None
    for entry in _objects(linux, "gidMappings"):
        inside, outside = entry.get("containerID", 0), entry.get("hostID", 0)
        if inside == 0 and isinstance(outside, int) and entry.get("size"):
            return outside
    return None


def _objects(owner: dict[str, object], key: str) -> list[dict[str, object]]:
    listed = owner.get(key)
    return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []


def _device_rules() -> list[dict[str, object]]:
    rules: list[dict[str, object]] = []
    for kind, major, minor, access in _DEVICES:
        rule: dict[str, object] = {"allow": True, "type": kind, "access": access}
        if major is not None:
            rule["major"] = major
        if minor is not None:
            rule["minor"] = minor
        rules.append(rule)
    return rules
