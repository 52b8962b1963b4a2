"""dockerd 20.10 of Debian's package `docker.io` on a containerd of ours, and its client, everything in the test's own
directory: no bridge, no iptables, no network for containers.

dockerd 20.10 knows one shim, `io.containerd.runc.v2`; another runtime's name stands for another `runc` behind it.  So
the name of the runtime under test is given to the machine's runc, and the shim is ours because the daemon that starts
it finds ours under that name first (`open_daemon`).
"""

from __future__ import annotations

import json
import signal
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import pytest
import trio

from tests.system.harness.background import Background
from tests.system.harness.processes import Completed, is_running, run_program
from tests.system.harness.terminals import Terminal, open_terminal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from tests.system.harness.bundles import Json
    from tests.system.harness.daemons import Daemon
    from tests.system.harness.places import Places

SERVER: Final = Path("/usr/sbin/dockerd")
CLIENT: Final = Path("/usr/bin/docker")
"""Debian's, whose API version is its daemon's; a newer one may come first on PATH."""
RUNTIME: Final = "io.containerd.trio.v2"
IMAGE: Final = "box"


def find_docker() -> None:
    """Skip the test on a machine without it."""
    for program in (SERVER, CLIENT):
        if not program.exists():
            pytest.skip(f"no peer program {program} of docker.io (make peers installs it)")


@attrs.define
class Docker:
    """A running dockerd."""

    daemon: Daemon
    directory: Path
    program: Background
    _nursery: trio.Nursery

    async def up(self) -> None:
        """Start the daemon; returns when it listens."""
        with trio.fail_after(40):
            await self._nursery.start(self.program.serve)

    async def restart(self) -> None:
        """Kill the daemon and start it again."""
        await self.program.stop(signal.SIGKILL)
        await self.up()

    def command(self, *args: str) -> list[str]:
        """A client's command line."""
        config = str(self.directory / "client")
        return [str(CLIENT), "--config", config, "--host", f"unix://{self.directory}/d.sock", *args]

    def run_command(self, name: str, flags: str, *args: str) -> list[str]:
        """`docker run` with these flags, of a container called `name`."""
        common = ("--network", "none", "--runtime", RUNTIME, "--name", name, *flags.split())
        return self.command("run", *common, IMAGE, *args)

    async def docker(self, *args: str, stdin: bytes = b"", timeout: float = 40) -> Completed:
        """Run a client to its end, whatever its status."""
        return await self._client(self.command(*args), stdin, timeout)

    async def ok(self, *args: str, timeout: float = 40) -> str:
        """Run a client, which must succeed; its output."""
        done = await self.docker(*args, timeout=timeout)
        assert done.status == 0, f"docker {args}: {done.status} {done.errors.decode(errors='replace')}"
        return done.text

    async def run(self, name: str, flags: str, *args: str, stdin: bytes = b"", timeout: float = 40) -> Completed:
        """`docker run` to its end."""
        return await self._client(self.run_command(name, flags, *args), stdin, timeout)

    async def start(self, name: str, *args: str, flags: str = "") -> None:
        """`docker run --detach`, which must succeed."""
        done = await self.run(name, f"--detach {flags}", *args)
        assert done.status == 0, done.errors.decode(errors="replace")

    def terminal(self, command: list[str]) -> AbstractAsyncContextManager[Terminal]:
        """A client on a terminal."""
        return open_terminal(command, cwd=self.directory, env=self.daemon.environment())

    async def inspect(self, name: str) -> dict[str, Json]:
        """What the daemon knows of a container."""
        (found,) = json.loads(await self.ok("inspect", name))
        return dict(found)

    async def state(self, name: str) -> dict[str, Json]:
        """The part `State` of `inspect`."""
        state = (await self.inspect(name))["State"]
        assert isinstance(state, dict)
        return dict(state)

    async def remove_everything(self) -> None:
        """Kill and remove every container."""
        listed = await self.docker("ps", "--all", "--quiet")
        if names := listed.text.split():
            await self.docker("rm", "--force", *names)

    async def _client(self, command: list[str], stdin: bytes, timeout: float) -> Completed:
        return await run_program(
            command, stdin=stdin, timeout=timeout, cwd=self.directory, env=self.daemon.environment()
        )


def _server_command(daemon: Daemon, places: Places, directory: Path) -> list[str]:
    config = directory / "daemon.json"
    config.write_text("{}")  # else the machine's own is read
    values = {
        "containerd": daemon.address,
        "containerd-namespace": daemon.namespace,
        "config-file": config,
        "data-root": directory / "data",
        "exec-root": directory / "exec",
        "pidfile": directory / "pid",
        "host": f"unix://{directory}/d.sock",
        "cgroup-parent": f"/{places.cgroup_prefix}",
        "add-runtime": f"{RUNTIME}=runc",
        "bridge": "none",
        "oom-score-adjust": "0",
        **dict.fromkeys(("iptables", "ip6tables", "ip-forward", "ip-masq", "userland-proxy"), "false"),
    }
    return [str(SERVER), *(f"--{name}={value}" for name, value in values.items())]


@asynccontextmanager
async def _shared_mount(path: Path) -> AsyncIterator[None]:
    """dockerd makes its data root a shared mount, unless it is one, and keeps it when it was killed."""
    path.mkdir()
    for words in ([str(path), str(path), "--bind"], [str(path), "--make-shared"]):
        assert (await run_program(["mount", *words])).status == 0
    try:
        yield
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 10):
            done = await run_program(["umount", path])
            assert done.status == 0, done.errors


@asynccontextmanager
async def open_docker(daemon: Daemon, places: Places) -> AsyncIterator[Docker]:
    """A dockerd that is up and has the image; at the end its containers are removed, then it is stopped."""
    directory = daemon.directory / "docker"
    directory.mkdir()
    program = Background(
        _server_command(daemon, places, directory),
        cwd=directory,
        env=daemon.environment(),
        ready=b"API listen on",
    )
    async with _shared_mount(directory / "data"), trio.open_nursery() as nursery:
        docker = Docker(daemon, directory, program, nursery)
        await docker.up()
        try:
            packed = await run_program(["tar", "-C", daemon.rootfs, "-c", "."])
            done = await docker.docker("import", "--change", "ENV PATH=/bin", "-", IMAGE, stdin=packed.output)
            assert done.status == 0, done.errors
            yield docker
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 60):
                if is_running(program.pid):
                    await docker.remove_everything()
            nursery.cancel_scope.cancel()
