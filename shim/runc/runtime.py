"""Running the OCI runtime: one method a command, each ends with the runtime's own reason when it fails.

A command is a child of the caller's `Children`; it dies with the caller's cancel scope and is reaped before the call
returns.  `create`, `run_exec` and `restore` hand the container's stdio on to the process they leave behind, so they
capture nothing: their reasons come from the log (a pipe would stay open as long as the container lives).
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shim.kernel.children import Command
from shim.kernel.commands import Completed, run, run_uncaptured
from shim.runc import arguments, failures

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shim.kernel.children import Children

_OUTPUT_LIMIT: Final = 64 * 1024
"""Bytes kept of what a command prints: more than any reason, and a runtime gone mad costs no memory."""
_PS_LIMIT: Final = 4 * 1024 * 1024
"""Bytes kept of `ps`: a container of 400,000 processes still fits."""
_LOG_LIMIT: Final = 256 * 1024
"""Bytes read from the end of the log: the last entries are what counts."""
UMASK: Final = 0o022
"""The umask of every runtime command, whatever the shim inherited: an exec's process keeps it."""
HIDDEN_VARIABLES: Final = frozenset({"NOTIFY_SOCKET"})
"""Variables of the shim that neither runtime nor container may see (protocol.md 8.1)."""


class Runtime:
    """The runtime of one task: which binary, which state root, which bundle.

    `root` has the namespace in it already.  A binary that cannot be started is a RuntimeFailure that names it.
    """

    def __init__(self, children: Children, *, binary: str, root: str, bundle: str, systemd_cgroup: bool) -> None:
        self.binary = binary
        self.root = root
        self._children = children
        self._bundle = bundle
        self._log = Path(bundle) / "log.json"
        self._common = arguments.common(root, str(self._log), systemd_cgroup=systemd_cgroup)
        self._environment = {name: value for name, value in os.environ.items() if name not in HIDDEN_VARIABLES}

    def knows(self, container: str) -> bool:
        """Whether the state root has something under this id, living or left over."""
        return (Path(self.root) / container).exists()

    async def create(
        self,
        container: str,
        options: arguments.CreateOptions,
        *,
        stdio: Mapping[int, int],
        on_spawn: Callable[[], None],
    ) -> None:
        """Make the container; `stdio` maps 0, 1, 2 to our fds, `on_spawn` runs once the runtime holds them."""
        await self._leave_behind("OCI runtime create failed", arguments.create(container, options), stdio, on_spawn)

    async def restore(
        self,
        container: str,
        options: arguments.CreateOptions,
        *,
        image_path: str,
        work_path: str,
        parent_path: str,
        stdio: Mapping[int, int],
        on_spawn: Callable[[], None],
    ) -> None:
        """Make the container from a checkpoint and let it run."""
        words = arguments.restore(
            container, options, image_path=image_path, work_path=work_path, parent_path=parent_path
        )
        await self._leave_behind("OCI runtime restore failed", words, stdio, on_spawn)

    async def run_exec(
        self,
        container: str,
        *,
        process: str,
        pid_file: str,
        console_socket: str,
        stdio: Mapping[int, int],
        on_spawn: Callable[[], None],
    ) -> None:
        """Start one more process in the container."""
        words = arguments.run_exec(container, process=process, pid_file=pid_file, console_socket=console_socket)
        await self._leave_behind("OCI runtime exec failed", words, stdio, on_spawn)

    async def start(self, container: str) -> None:
        """Let a created container's init go on."""
        await self._checked("OCI runtime start failed", arguments.start(container))

    async def pause(self, container: str) -> None:
        """Freeze the container."""
        await self._checked("OCI runtime pause failed", arguments.pause(container))

    async def resume(self, container: str) -> None:
        """Thaw the container."""
        await self._checked("OCI runtime resume failed", arguments.resume(container))

    async def delete(self, container: str, *, force: bool = False) -> None:
        """Forget a container that ended; with `force` kill it first.  One that is not there is no failure."""
        mark = self._log_size()
        completed = await self._run(arguments.delete(container, force=force))
        if completed.exit.status and "does not exist" not in self._reason(completed, mark):
            raise self._failure("failed to delete task", completed, mark)

    async def kill(self, container: str, signum: int, *, everyone: bool = False) -> None:
        """Send a signal; NotFound when the process or the container is gone."""
        mark = self._log_size()
        completed = await self._run(arguments.kill(container, signum, everyone=everyone))
        if completed.exit.status:
            raise failures.of_kill(self._reason(completed, mark))

    async def ps(self, container: str) -> list[int]:
        """The pids in the container's cgroup, host side."""
        completed = await self._run(arguments.ps(container), stdout_limit=_PS_LIMIT)
        if completed.exit.status:
            raise failures.RuntimeFailure(self._describe(completed))
        try:
            pids = json.loads(completed.stdout or b"[]")
            return [int(pid) for pid in pids or ()]
        except (ValueError, TypeError) as error:
            raise failures.RuntimeFailure(f"{self.binary} ps printed no list of pids: {error}") from error

    async def update(self, container: str, resources: bytes) -> None:
        """Change limits; `resources` is the JSON of LinuxResources."""
        completed = await self._run(arguments.update(container), stdin=resources)
        if completed.exit.status:
            raise failures.RuntimeFailure(self._describe(completed))

    async def checkpoint(self, container: str, options: arguments.CheckpointOptions) -> None:
        """Write the processes' state; RuntimeFailure has the process error's words (the caller adds CRIU's)."""
        mark = self._log_size()
        completed = await self._run(arguments.checkpoint(container, options))
        if completed.exit.status:
            raise failures.RuntimeFailure(self._reason(completed, mark))

    async def _run(
        self, words: Sequence[str], *, stdin: bytes | None = None, stdout_limit: int = _OUTPUT_LIMIT
    ) -> Completed:
        command = self._command(words)
        try:
            return await run(
                self._children, command, stdin=stdin, stdout_limit=stdout_limit, stderr_limit=_OUTPUT_LIMIT
            )
        except OSError as error:
            raise self._cannot_start(error) from error

    async def _checked(self, prefix: str, words: Sequence[str]) -> None:
        mark = self._log_size()
        completed = await self._run(words)
        if completed.exit.status:
            raise self._failure(prefix, completed, mark)

    async def _leave_behind(
        self, prefix: str, words: Sequence[str], stdio: Mapping[int, int], on_spawn: Callable[[], None]
    ) -> None:
        mark = self._log_size()
        try:
            ended = await run_uncaptured(self._children, self._command(words, stdio), on_spawn=on_spawn)
        except OSError as error:
            raise self._cannot_start(error, prefix) from error
        if ended.status:
            raise self._failure(prefix, Completed(exit=ended, stdout=b"", stderr=b""), mark)

    def _command(self, words: Sequence[str], stdio: Mapping[int, int] | None = None) -> Command:
        return Command(
            argv=[self.binary, *self._common, *words],
            env=self._environment,
            cwd=self._bundle,
            fds=stdio or {},
            umask=UMASK,
            death_signal=signal.SIGKILL,
        )

    def _cannot_start(self, error: OSError, prefix: str = "OCI runtime failed") -> failures.RuntimeFailure:
        if isinstance(error, FileNotFoundError) and not Path(self._bundle).is_dir():
            return failures.RuntimeFailure(f"{prefix}: bundle {self._bundle} is gone")
        if isinstance(error, FileNotFoundError):
            return failures.RuntimeFailure(
                f'{prefix}: runtime "{self.binary}" not found in PATH; install it or name another in the options'
            )
        return failures.RuntimeFailure(f'{prefix}: runtime "{self.binary}" cannot be started: {error}')

    def _log_size(self) -> int:
        try:
            return self._log.stat().st_size
        except OSError:
            return 0

    def _log_since(self, mark: int) -> bytes | OSError:
        try:
            with self._log.open("rb") as log:
                log.seek(max(mark, self._log_size() - _LOG_LIMIT))
                return log.read(_LOG_LIMIT)
        except OSError as error:
            return error

    def _failure(self, prefix: str, completed: Completed, mark: int) -> failures.RuntimeFailure:
        log = self._log_since(mark)
        return failures.of_command(prefix, self.binary, completed.exit.status, _output(completed), log)

    def _reason(self, completed: Completed, mark: int) -> str:
        """Everything the command said, log first: texts of gone processes are looked for in both."""
        log = self._log_since(mark)
        logged = None if isinstance(log, OSError) else failures.last_error(log)
        said = self._describe(completed)
        return said if logged is None or logged in said else f"{logged}: {said}"

    def _describe(self, completed: Completed) -> str:
        return failures.describe(self.binary, completed.exit.status, _output(completed))


def _output(completed: Completed) -> bytes:
    return completed.stdout + completed.stderr


def forget_pid_file(path: Path) -> None:
    """Remove a pid file, and what a runtime that was killed while it wrote it has left.

    runc writes beside it, under the name with a dot in front, and refuses to begin again where that is.
    """
    for name in (path, path.with_name(f".{path.name}")):
        name.unlink(missing_ok=True)
