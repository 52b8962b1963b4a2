"""The words of each runtime command line, in the order the reference shim uses (protocol.md 8.1 to 8.3).

Pure: nothing is run here.  `common` is what every command starts with; each other function gives the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Sequence


def common(root: str, log: str, *, systemd_cgroup: bool) -> list[str]:
    """State root (namespace included), JSON log, cgroup manager."""
    words = ["--root", root, "--log", log, "--log-format", "json"]
    if systemd_cgroup:
        words.append("--systemd-cgroup")
    return words


@attrs.frozen(kw_only=True)
class CreateOptions:
    """What `create` and `restore` have in common."""

    bundle: str
    pid_file: str
    console_socket: str = ""
    no_pivot: bool = False
    no_new_keyring: bool = False

    def words(self) -> list[str]:
        """The options that come after `--bundle`."""
        words = ["--pid-file", self.pid_file]
        if self.console_socket:
            words += ["--console-socket", self.console_socket]
        if self.no_pivot:
            words.append("--no-pivot")
        return words


def create(container: str, options: CreateOptions) -> list[str]:
    """`create`: an init that waits for `start`."""
    keyring = ["--no-new-keyring"] if options.no_new_keyring else []
    return ["create", "--bundle", options.bundle, *options.words(), *keyring, container]


def start(container: str) -> list[str]:
    """`start`."""
    return ["start", container]


def run_exec(container: str, *, process: str, pid_file: str, console_socket: str = "") -> list[str]:
    """`exec`: one more process, detached; `process` is the path of its JSON."""
    console = ["--console-socket", console_socket] if console_socket else []
    return ["exec", "--process", process, *console, "--detach", "--pid-file", pid_file, container]


def kill(container: str, signal: int, *, everyone: bool) -> list[str]:
    """`kill`: a signal to init, or with `everyone` to all processes of the container."""
    return ["kill", *(["--all"] if everyone else []), container, str(signal)]


def delete(container: str, *, force: bool) -> list[str]:
    """`delete`: with `force` a living init is killed first and a missing container is no failure."""
    return ["delete", *(["--force"] if force else []), container]


def ps(container: str) -> list[str]:
    """`ps`: a JSON array of pids on stdout."""
    return ["ps", "--format", "json", container]


def pause(container: str) -> list[str]:
    """`pause`."""
    return ["pause", container]


def resume(container: str) -> list[str]:
    """`resume`."""
    return ["resume", container]


def update(container: str) -> list[str]:
    """`update`: the resources come as JSON on stdin."""
    return ["update", "--resources=-", container]


@attrs.frozen(kw_only=True)
class CheckpointOptions:
    """What a checkpoint is asked to do (protocol.md 6.2, 8.3)."""

    image_path: str
    work_path: str
    parent_path: str = ""
    leave_running: bool = True
    open_tcp: bool = False
    external_unix_sockets: bool = False
    terminal: bool = False
    file_locks: bool = False
    empty_namespaces: Sequence[str] = ()


def checkpoint(container: str, options: CheckpointOptions) -> list[str]:
    """`checkpoint`: the state of all processes into `image_path`."""
    words = ["checkpoint", "--image-path", options.image_path, "--work-path", options.work_path]
    if options.parent_path:
        words += ["--parent-path", options.parent_path]
    for flag, wanted in (
        ("--tcp-established", options.open_tcp),
        ("--ext-unix-sk", options.external_unix_sockets),
        ("--shell-job", options.terminal),
        ("--file-locks", options.file_locks),
    ):
        if wanted:
            words.append(flag)
    for namespace in options.empty_namespaces:
        words += ["--empty-ns", namespace]
    if options.leave_running:
        words.append("--leave-running")
    return [*words, container]


def restore(container: str, options: CreateOptions, *, image_path: str, work_path: str, parent_path: str) -> list[str]:
    """`restore`: start from a checkpoint instead of from the spec's arguments."""
    words = ["restore", "--image-path", image_path, "--work-path", work_path]
    if parent_path:
        words += ["--parent-path", parent_path]
    return [*words, "--detach", *options.words(), "-no-subreaper", "--bundle", options.bundle, container]
