"""Which tasks share a shim, and where that shim listens (protocol.md 2.7 steps 1 and 2).

Pure: facts in, names out.  Refuses a socket path that the kernel would cut (sun_path, 108 bytes with its zero).
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from typing import TYPE_CHECKING, Final

from shim.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

GROUP_ANNOTATIONS: Final = ("io.containerd.runc.v2.group", "io.kubernetes.cri.sandbox-id")
"""Annotations that name the group, the first one present wins."""
DEFAULT_SOCKET_DIR: Final = "/run/containerd/s"
MAX_SOCKET_PATH: Final = 106
"""Bytes of a socket path that every peer can dial: Go refuses more, the kernel's own limit is 107."""
SCHEME: Final = "unix://"


def spec_annotations(config: bytes) -> dict[str, str]:
    """The annotations in the bytes of a `config.json`; InvalidArgument when it is no spec.

    Plain json instead of a converter, since this is on the path of the start command, which imports little.
    """
    try:
        spec = json.loads(config)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"config.json: {error}") from error
    annotations = spec.get("annotations") or {} if isinstance(spec, dict) else None
    if not isinstance(annotations, dict) or not all(isinstance(value, str) for value in annotations.values()):
        raise InvalidArgument("config.json: expected an object whose annotations are texts")
    return annotations


def group_id(annotations: Mapping[str, str], task_id: str) -> str:
    """The id of the group that a task belongs to: named by its annotations, else the task alone."""
    for key in GROUP_ANNOTATIONS:
        if value := annotations.get(key):
            return value
    return task_id


def socket_path(directory: str, address: str, namespace: str, group: str) -> str:
    """The socket of the shim that serves `group` of `namespace` for the daemon at `address`.

    Raises InvalidArgument when the directory is so long that the path could not be dialled, or when `group` (free
    text of an annotation) would climb out of its namespace in the cleaned join and so name somebody else's shim.
    """
    if not {".", ".."}.isdisjoint(group.split("/")):
        raise InvalidArgument(f"group {group!a} must not contain . or .. as a path element")
    identity = posixpath.normpath("/".join(part for part in (address, namespace, group) if part))
    if identity.startswith("//"):  # POSIX keeps two leading slashes; the peers, whose hash this must equal, do not
        identity = identity[1:]
    return check_socket_path(f"{directory}/{hashlib.sha256(identity.encode()).hexdigest()}")


def check_socket_path(path: str) -> str:
    """`path` itself; raises InvalidArgument when it is empty or too long to be dialled."""
    if not path:
        raise InvalidArgument("socket path must not be empty")
    length = len(path.encode(errors="surrogateescape"))
    if length > MAX_SOCKET_PATH:
        raise InvalidArgument(f"socket path {path} has {length} bytes, at most {MAX_SOCKET_PATH} are allowed")
    return path
