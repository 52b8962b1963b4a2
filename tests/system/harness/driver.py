"""Driver "D": starts a shim program as a containerd of a chosen generation would, with everything of its own.

One `Driver` is one pretended daemon: its own directory, addresses, namespace, runc root, socket directory and event
sink.  Leaving it ends, by the shims' own calls, whatever the test left running; what that leaves is for the census.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Unpack

import attrs
import trio

from shim import errors
from shim.rpc.client import Client, open_unix_client
from shim.wire.proto import bootstrap_pb2, runc_options_pb2, task_pb2
from shim.wire.typeurl import pack
from tests.system.harness.bundles import Bundle, Spec, SpecChanges, make_bundle
from tests.system.harness.fifos import LogDrain, run_drain
from tests.system.harness.processes import Completed, is_running, kill_now, run_program, wait_ended
from tests.system.harness.sink import Sink, open_sink
from tests.system.harness.subject import Generation, Kind, Subject
from tests.system.harness.task import Shim, Task

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from google.protobuf.any_pb2 import Any as AnyMessage

    from tests.system.harness.places import Places

TASK_DIR: Final = "io.containerd.runtime.v2.task"


class StartFailedError(Exception):
    """The start command did not exit with 0; carries what it printed."""


@attrs.frozen
class StartAnswer:
    """What a start command answered (protocol.md 2.4)."""

    address: str
    version: int
    protocol: str
    result: bootstrap_pb2.BootstrapResult | None


@attrs.define
class Driver:
    """See the module text."""

    subject: Subject
    places: Places
    directory: Path
    rootfs: Path
    sink: Sink
    generation: Generation
    namespace: str
    state: Path
    stack: AsyncExitStack
    nursery: trio.Nursery
    shims: list[Shim] = attrs.field(factory=list)
    _numbers: itertools.count[int] = attrs.field(factory=lambda: itertools.count(1))

    @property
    def grpc_address(self) -> Path:
        """The daemon address that is part of every socket's name; nothing listens there."""
        return self.directory / "grpc.sock"

    @property
    def runc_root(self) -> Path:
        """Given to the shim in its options, so that states of other runs are never met."""
        return self.directory / "runc"

    @property
    def socket_dir(self) -> Path:
        """Where sockets go for a caller that can say so."""
        return self.directory / "s"

    @property
    def bundles_dir(self) -> Path:
        """The directory of this namespace's bundles."""
        return self.state / TASK_DIR / self.namespace

    def new_id(self, prefix: str = "c") -> str:
        """An id not used yet in this driver."""
        return f"{prefix}{next(self._numbers)}"

    def spec(self, args: Sequence[str], identifier: str) -> Spec:
        """The plain spec for `args`; change it with `attrs.evolve`."""
        name = f"{self.namespace}-{identifier}"
        return Spec(args=args, cgroups_path=self.places.cgroup_path(name), root=str(self.rootfs))

    def bundle(self, args: Sequence[str], *, identifier: str | None = None, **changes: Unpack[SpecChanges]) -> Bundle:
        """A new bundle whose container runs `args`; `changes` are fields of `Spec`."""
        chosen = identifier if identifier is not None else self.new_id()
        spec = attrs.evolve(self.spec(args, chosen), **changes)
        self.bundles_dir.mkdir(parents=True, exist_ok=True)
        return make_bundle(self.bundles_dir / chosen, chosen, spec)

    def options(self, **changes: str | bool | int) -> AnyMessage:
        """Runtime options with this driver's runc root; `changes` are fields of `containerd.runc.v1.Options`."""
        fields: dict[str, str | bool | int] = {"root": str(self.runc_root), **changes}
        message = runc_options_pb2.Options()
        for name, value in fields.items():
            setattr(message, name, value)
        return pack(message)

    def default_options(self) -> AnyMessage:
        """Options as a daemon gives them that was asked for nothing: the runtime's root is the usual one."""
        return pack(runc_options_pb2.Options())

    def environment(self, generation: Generation) -> dict[str, str]:
        """What a daemon of that generation puts into the environment (protocol.md 2.3)."""
        env = {
            "PATH": os.environ["PATH"],
            "TMPDIR": str(self.directory / "tmp"),
            "GOMAXPROCS": "2",
            "TTRPC_ADDRESS": str(self.sink.path),
        }
        if generation is not Generation.V1_6:
            env |= {"GRPC_ADDRESS": str(self.grpc_address), "NAMESPACE": self.namespace, "MAX_SHIM_VERSION": "2"}
        return env

    def command(self, identifier: str, *action: str) -> list[str]:
        """The command line in containerd's own order (protocol.md 2.2)."""
        return [
            str(self.subject.path),
            *("-namespace", self.namespace),
            *("-address", str(self.grpc_address)),
            *("-publish-binary", "/usr/bin/containerd"),
            *("-id", identifier),
            *action,
        ]

    def start_input(self, identifier: str, generation: Generation, options: AnyMessage | None) -> bytes:
        """What that generation writes to the start command's stdin."""
        if generation is not Generation.V2:
            return options.SerializeToString() if options is not None else b""
        params = bootstrap_pb2.BootstrapParams(
            instance_id=identifier,
            namespace=self.namespace,
            containerd_version="2.4.2",
            containerd_ttrpc_address=str(self.sink.path),
            containerd_grpc_address=str(self.grpc_address),
            containerd_binary="/usr/bin/containerd",
            socket_dir=str(self.socket_dir),
        )
        if options is not None:
            params.extensions.add().value.CopyFrom(options)
        return params.SerializeToString()

    async def run_start(
        self,
        bundle: Bundle,
        *,
        generation: Generation | None = None,
        env: Mapping[str, str] | None = None,
        umask: int = -1,
        pass_fds: Sequence[int] = (),
        stdin: bytes | None = None,
        options: AnyMessage | None = None,
        command: Sequence[str] | None = None,
    ) -> Completed:
        """The start command alone, its two outputs joined as the daemon joins them."""
        caller = generation or self.generation
        return await run_program(
            command or self.command(bundle.id, "start"),
            stdin=self.start_input(bundle.id, caller, options) if stdin is None else stdin,
            cwd=bundle.path,
            env={**self.environment(caller), **(env or {})},
            join=True,
            umask=umask,
            pass_fds=pass_fds,
        )

    async def start(
        self,
        bundle: Bundle,
        *,
        generation: Generation | None = None,
        env: Mapping[str, str] | None = None,
        umask: int = -1,
        pass_fds: Sequence[int] = (),
        options: AnyMessage | None = None,
        debug: bool = False,
        read_log: bool = True,
    ) -> Shim:
        """Start a shim for the bundle and connect to it; StartFailedError with its output when it refuses.

        Without `read_log` the log fifo is held open, as always, but only `Shim.log.drain` reads it.
        """
        log = LogDrain(os.open(bundle.file("log"), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
        self.stack.callback(os.close, log.fd)
        self.stack.callback(trio.lowlevel.notify_closing, log.fd)
        if read_log:
            self.nursery.start_soon(run_drain, log)
        caller = generation or self.generation
        done = await self.run_start(
            bundle,
            generation=caller,
            env=env,
            umask=umask,
            pass_fds=pass_fds,
            options=options,
            command=self.command(bundle.id, *(["-debug"] if debug else []), "start"),
        )
        if done.status != 0:
            raise StartFailedError(f"start exited with {done.status}: {done.text}")
        answer = parse_start_answer(done.output, caller)
        client = await self.connect(answer.address)
        shim = Shim(client, self.subject.task_service, self.namespace, answer, log, self.options())
        shim.pid = (await shim.connect(bundle.id)).shim_pid
        self.shims.append(shim)
        return shim

    async def run(self, args: Sequence[str], **changes: Unpack[SpecChanges]) -> Task:
        """A shim of its own and a created task in it, without stdio."""
        bundle = self.bundle(args, **changes)
        shim = await self.start(bundle)
        return await shim.create(bundle)

    async def connect(self, address: str) -> Client:
        """A new connection, kept open until the driver is left (pytest runs test and fixture in two tasks)."""
        client: Client = await self.nursery.start(_hold_client, address)
        return client

    async def delete_command(
        self, bundle: Bundle, *, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> tuple[Completed, task_pb2.DeleteResponse]:
        """Run the `delete` command as the daemon does for a lost shim; its answer is parsed when it exits with 0."""
        done = await run_program(
            self.command(bundle.id, "-bundle", str(bundle.path), "delete"),
            cwd=cwd or bundle.path,
            env={**self.environment(self.generation), **(env or {})},
        )
        answer = task_pb2.DeleteResponse()
        if done.status == 0:
            answer.ParseFromString(done.output)
        return done, answer

    async def kill_shim(self, shim: Shim) -> None:
        """SIGKILL the shim and wait for its end."""
        os.kill(shim.pid, signal.SIGKILL)
        await wait_ended(shim.pid, timeout=5)

    async def close(self) -> None:
        """End what the test left, by the shims' own calls, and with the `delete` command where a shim is gone."""
        for shim in self.shims:
            if text := shim.log.drain():
                print(f"log of shim {shim.pid}:\n{text}")  # noqa: T201 - pytest shows it with a failure
            if is_running(shim.pid):
                await self._end_tasks(shim)
        for shim in self.shims:  # of which several may be connections to one group's
            if is_running(shim.pid):
                await self._close_living(shim)
            if not is_running(shim.pid):
                await self._close_dead(shim)

    async def _end_tasks(self, shim: Shim) -> None:
        # The census tells what a failure left.
        with trio.move_on_after(20), contextlib.suppress(errors.ShimError, trio.TooSlowError):
            for task in list(shim.tasks.values()):
                await task.end()

    async def _close_living(self, shim: Shim) -> None:
        with contextlib.suppress(errors.ShimError, trio.TooSlowError):
            await shim.shutdown()
        if is_running(shim.pid):
            kill_now(shim.pid)
            await wait_ended(shim.pid, timeout=5)

    async def _close_dead(self, shim: Shim) -> None:
        for task in shim.tasks.values():
            if task.bundle.path.exists():
                await self.delete_command(task.bundle)
        if self.subject.kind is not Kind.OURS:
            Path(shim.answer.address.removeprefix("unix://")).unlink(missing_ok=True)  # the Go shims leave it


async def _hold_client(address: str, task_status: trio.TaskStatus[Client] = trio.TASK_STATUS_IGNORED) -> None:
    async with open_unix_client(address) as client:
        task_status.started(client)
        await trio.sleep_forever()


def parse_start_answer(output: bytes, generation: Generation) -> StartAnswer:
    """Read the answer with the rules of the generation that asked."""
    if generation is Generation.V2:
        result = bootstrap_pb2.BootstrapResult()
        try:
            result.ParseFromString(output)
        except ValueError:
            pass
        else:
            if result.address:
                return StartAnswer(result.address, result.version, result.protocol, result)
    text = output.decode().strip()
    if generation is not Generation.V1_6 and text.startswith("{"):
        fields = json.loads(text)
        assert generation is Generation.V2 or fields["version"] == 2, "1.7 takes version 2 only"
        return StartAnswer(fields["address"], fields["version"], fields["protocol"], None)
    return StartAnswer(text, 2, "ttrpc", None)


@asynccontextmanager
async def open_driver(subject: Subject, places: Places, directory: Path, rootfs: Path) -> AsyncIterator[Driver]:
    """One pretended daemon, from an empty directory to an orderly end."""
    for name in ("tmp", "runc"):
        (directory / name).mkdir()
    async with open_sink(directory / "ttrpc.sock") as sink, AsyncExitStack() as stack, trio.open_nursery() as nursery:
        driver = Driver(
            subject=subject,
            places=places,
            directory=directory,
            rootfs=rootfs,
            sink=sink,
            generation=subject.default_generation,
            namespace=f"ns{directory.name}",
            state=directory,
            stack=stack,
            nursery=nursery,
        )
        try:
            yield driver
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 60):
                await driver.close()
            nursery.cancel_scope.cancel()
