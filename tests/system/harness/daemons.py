"""Daemons "C": a real containerd of either generation with root, state, address and configuration of its own."""

from __future__ import annotations

import json
import os
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import attrs
import trio

from tests.system.harness.background import Background
from tests.system.harness.processes import Completed, is_running, parent_of, run_program
from tests.system.harness.subject import Generation, Subject, containerd_of, ctr_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

BOOTED: Final = b"containerd successfully booted"
CONFIG_1_6: Final = """\
version = 2
root = "{directory}/root"
state = "{directory}/state"
oom_score = 0
disabled_plugins = [{disabled}]
[grpc]
  address = "{directory}/c.sock"
[ttrpc]
  address = "{directory}/c.sock.ttrpc"
[debug]
  level = "debug"
[plugins."io.containerd.internal.v1.opt"]
  path = "{directory}/opt"
{cri}
"""
CRI_1_6: Final = '[plugins."io.containerd.grpc.v1.cri"]\n  restrict_oom_score_adj = true\n'
CONFIG_2: Final = """\
version = 3
root = "{directory}/root"
state = "{directory}/state"
oom_score = 0
disabled_plugins = [{disabled}]
[grpc]
  address = "{directory}/c.sock"
[ttrpc]
  address = "{directory}/c.sock.ttrpc"
[debug]
  level = "debug"
[plugins."io.containerd.shim.v1.manager"]
  socket_dir = "{directory}/s"
[plugins."io.containerd.internal.v1.opt"]
  path = "{directory}/opt"
{cri}
"""
CRI_2: Final = '[plugins."io.containerd.cri.v1.runtime"]\n  restrict_oom_score_adj = true\n'
NOT_NEEDED_1_6: Final = (
    "io.containerd.grpc.v1.cri",
    "io.containerd.internal.v1.tracing",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.snapshotter.v1.aufs",
)
NOT_NEEDED_2: Final = (
    "io.containerd.grpc.v1.cri",
    "io.containerd.cri.v1.images",
    "io.containerd.cri.v1.runtime",
    "io.containerd.sandbox.controller.v1.podsandbox",
    "io.containerd.podsandbox.controller.v1.podsandbox",
    "io.containerd.nri.v1.nri",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.snapshotter.v1.blockfile",
)


@attrs.define
class Daemon:
    """A running containerd and the ctr beside it."""

    generation: Generation
    subject: Subject
    directory: Path
    namespace: str
    rootfs: Path
    _nursery: trio.Nursery
    program: Background = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.program = Background(
            [str(containerd_of(self.generation)), "--config", str(self.directory / "config.toml")],
            cwd=self.directory,
            env=self.environment(),
            ready=BOOTED,
        )

    @property
    def pid(self) -> int:
        """The daemon's process."""
        return self.program.pid

    @property
    def log(self) -> bytearray:
        """What it has logged so far."""
        return self.program.log

    @property
    def address(self) -> Path:
        """The gRPC socket."""
        return self.directory / "c.sock"

    @property
    def bundles(self) -> Path:
        """Where this namespace's bundles are."""
        return self.directory / "state" / "io.containerd.runtime.v2.task" / self.namespace

    def environment(self) -> dict[str, str]:
        """PATH with the shim under test first, and temporary files where the census looks."""
        path = f"{self.directory}/bin:{self.subject.path.parent}:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "TMPDIR": str(self.directory / "tmp")}

    def ctr_command(self, *args: str | Path) -> list[str]:
        """A ctr command line for this daemon and namespace."""
        client = ctr_of(self.generation)
        return [str(client), "-a", str(self.address), "-n", self.namespace, *(str(arg) for arg in args)]

    async def ctr(self, *args: str | Path, stdin: bytes = b"", timeout: float = 30) -> Completed:
        """Run ctr to its end, whatever its status."""
        return await run_program(
            self.ctr_command(*args), stdin=stdin, timeout=timeout, cwd=self.directory, env=self.environment()
        )

    async def ctr_ok(self, *args: str | Path, timeout: float = 30) -> str:
        """Run ctr, which must succeed; its output."""
        done = await self.ctr(*args, timeout=timeout)
        assert done.status == 0, f"ctr {args}: {done.status} {done.errors.decode(errors='replace')}"
        return done.text

    def run_arguments(
        self, identifier: str, args: Sequence[str], *flags: str, runtime: str | None = None
    ) -> list[str | Path]:
        """Arguments of `ctr run` on the shared root file system."""
        chosen = runtime or self.subject.runtime
        return [
            "run",
            "--runtime",
            chosen,
            "--read-only",
            "--env",
            "PATH=/bin",
            *flags,
            "--rootfs",
            self.rootfs,
            identifier,
            *args,
        ]

    async def run(self, identifier: str, args: Sequence[str], *flags: str, timeout: float = 30) -> Completed:
        """`ctr run` to its end."""
        return await self.ctr(*self.run_arguments(identifier, args, *flags), timeout=timeout)

    async def shim_pid(self, identifier: str) -> int:
        """The shim that serves the task: the parent of its init."""
        listed = await self.ctr_ok("tasks", "list")
        (pid,) = [int(line.split()[1]) for line in listed.splitlines()[1:] if line.split()[0] == identifier]
        return parent_of(pid)

    async def remove_everything(self) -> None:
        """Kill and delete every task, then every container."""
        tasks = await self.ctr("tasks", "list", "-q")
        for identifier in tasks.text.split():
            await self.ctr("tasks", "kill", "-a", "-s", "SIGKILL", identifier)
            await self.ctr("tasks", "delete", "-f", identifier)
        containers = await self.ctr("containers", "list", "-q")
        for identifier in containers.text.split():
            await self.ctr("containers", "delete", identifier)

    async def start(self) -> None:
        """Start the daemon, again if it was stopped; returns when it says it has booted and takes a connection."""
        with trio.fail_after(20):
            await self._nursery.start(self.program.serve)
            stream = await trio.open_unix_socket(str(self.address))
            await stream.aclose()

    async def stop(self, number: int = signal.SIGTERM) -> None:
        """End the daemon alone; its shims go on."""
        await self.program.stop(number)


def write_config(generation: Generation, directory: Path, *, cri: bool) -> None:
    """The daemon's configuration: everything under `directory`, CRI only if asked."""
    if generation is Generation.V1_6:
        disabled = [name for name in NOT_NEEDED_1_6 if not (cri and ".cri" in name)]
        text = CONFIG_1_6.format(directory=directory, disabled=_listed(disabled), cri=CRI_1_6 if cri else "")
    else:
        disabled = [name for name in NOT_NEEDED_2 if not (cri and ("cri" in name or "podsandbox" in name))]
        text = CONFIG_2.format(directory=directory, disabled=_listed(disabled), cri=CRI_2 if cri else "")
    (directory / "config.toml").write_text(text)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(json.dumps(name) for name in names)


@asynccontextmanager
async def open_daemon(
    generation: Generation, subject: Subject, directory: Path, rootfs: Path, *, cri: bool = False
) -> AsyncIterator[Daemon]:
    """A containerd that is up; at the end its tasks are removed, then it is stopped."""
    (directory / "tmp").mkdir()
    (directory / "bin").mkdir()
    (directory / "bin" / "containerd-shim-runc-v2").symlink_to(subject.path)  # ctr has options for this name only
    write_config(generation, directory, cri=cri)
    async with trio.open_nursery() as nursery:
        daemon = Daemon(generation, subject, directory, f"ns{directory.name}", rootfs, nursery)
        await daemon.start()
        try:
            yield daemon
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 60):
                if is_running(daemon.pid):
                    await daemon.remove_everything()
            nursery.cancel_scope.cancel()
