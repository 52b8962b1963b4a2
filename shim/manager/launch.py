"""Running a shim's program: `start`, which answers where the server listens, and `delete`, which cleans up after it.

The command line, environment and working directory are containerd's (protocol.md 2.2, 2.3 and 2.9).

Invariants: a run ends within its budget; its end is the program's *exit*, not EOF, for a server that it left behind may
hold the output; a `start` that fails in any way (too late, a bad status, no answer, or a failure of whoever uses the
answer) leaves no process of its own: its process group and whatever still holds its output are killed.  Every error
carries what the program said.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import trio
from google.protobuf.message import DecodeError

from shim.errors import NotFound, ShimError, Unknown
from shim.kernel.children import Command
from shim.kernel.commands import run
from shim.kernel.leftovers import kill_group, kill_leftovers
from shim.kernel.pipes import open_pipe
from shim.manager.bootstrap import (
    legacy_parameters,
    parameters,
    parse_answer,
    shown,
    wants_legacy_parameters,
)
from shim.manager.sockets import group_of, remove_dead_socket
from shim.model.grouping import DEFAULT_SOCKET_DIR, socket_path
from shim.wire.proto.runtime_info_pb2 import RuntimeInfo
from shim.wire.proto.task_pb2 import DeleteResponse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from google.protobuf.any_pb2 import Any

    from shim.kernel.children import Child, Children, Exit
    from shim.kernel.pipes import Pipe
    from shim.manager.bootstrap import Answer
    from shim.manager.bundle import Bundle
    from shim.manager.layout import Layout
    from shim.model.budgets import Budgets

T = TypeVar("T")

LOG: Final = logging.getLogger("shim.manager")
OUTPUT_LIMIT: Final = 1 << 20
"""Bytes of a start command's output that are kept; an answer has a few hundred."""
_CHUNK: Final = 1 << 16


@attrs.frozen
class Launcher:
    """How this manager runs shims; one for its life."""

    children: Children
    layout: Layout
    budgets: Budgets
    publish_binary: str
    """Given to shims as the daemon's own program; they ignore it."""
    debug: bool = False
    env: Mapping[str, str] = attrs.field(factory=dict)
    """Added to our own environment for every shim program; what the protocol sets goes over it."""
    socket_dir: str = ""
    """Where shims that honour it put their sockets; empty: the custom place."""
    _legacy: set[tuple[str, int, int, int]] = attrs.field(factory=set, init=False)

    def command(self, binary: str, bundle: Bundle, action: str, *flags: str) -> Command:
        """The command for `action`, run in the bundle and in a process group of its own."""
        argv = [binary, "-namespace", bundle.namespace, "-address", self.layout.address]
        argv += ["-publish-binary", self.publish_binary, "-id", bundle.id, *flags]
        if self.debug:
            argv.append("-debug")
        env = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
        env |= self.env
        env |= {
            "GOMAXPROCS": "2",
            "TTRPC_ADDRESS": self.layout.events_address,
            "GRPC_ADDRESS": self.layout.address,
            "NAMESPACE": bundle.namespace,
            "MAX_SHIM_VERSION": "2",
        }
        return Command([*argv, action], env=env, cwd=bundle.path, new_group=True)

    def is_legacy(self, binary: str) -> bool:
        """Is this very file known to want its options as a bare Any?"""
        return _identity(binary) in self._legacy

    def remember_legacy(self, binary: str) -> None:
        """From now on speak to this very file as daemons before 2.3 did."""
        self._legacy.add(_identity(binary))


async def start_shim(
    launcher: Launcher, bundle: Bundle, binary: str, options: Any | None, use: Callable[[Answer], Awaitable[T]]
) -> T:
    """Run `start`, hand its answer to `use`, which proves that it is good, and return what that made of it.

    All within the start budget: DeadlineExceeded names it.  A bad status is Unknown with the program's words;
    InvalidArgument or Unimplemented for an answer that cannot be used; what `use` raises goes on.
    """
    budget = launcher.budgets.start
    said = bytearray()
    with trio.move_on_after(budget.seconds):
        if not launcher.is_legacy(binary):
            stdin = parameters(
                bundle.id,
                bundle.namespace,
                address=launcher.layout.address,
                ttrpc_address=launcher.layout.events_address,
                binary=launcher.publish_binary,
                debug=launcher.debug,
                options=options,
                socket_dir=launcher.socket_dir,
            )
            try:
                return await _attempt(launcher, bundle, binary, stdin, use, said)
            except Unknown:
                if not wants_legacy_parameters(said, bundle.id):
                    raise
            LOG.debug("%s wants its options as daemons before 2.3 gave them", binary)
            launcher.remember_legacy(binary)
            said.clear()
        return await _attempt(launcher, bundle, binary, legacy_parameters(options), use, said)
    words = f"; it said: {shown(said)}" if said else ""
    raise budget.exceeded(f"{binary} start gave no usable answer{words or ' and said nothing'}: given up")


async def run_delete(launcher: Launcher, bundle: Bundle, binary: str) -> DeleteResponse:
    """Run `delete`, which ends and removes what the runtime still has of the task, and return the exit it found.

    Within the clean-up budget: DeadlineExceeded names it; Unknown, with the program's words, when it fails.
    """
    budget = launcher.budgets.cleanup
    with trio.move_on_after(budget.seconds):
        command = launcher.command(binary, bundle, "delete", "-bundle", bundle.path)
        try:
            completed = await run(launcher.children, command)
        except OSError as error:
            raise Unknown(f"{binary} delete cannot be run: {error.strerror}") from error
        if completed.exit.status:
            raise Unknown(f"{binary} delete: {shown(completed.stderr)}: {_ending(completed.exit)}")
        if completed.stderr:
            LOG.info("%s delete: %s", binary, shown(completed.stderr))
        try:
            return DeleteResponse.FromString(completed.stdout)
        except DecodeError as error:
            raise Unknown(f"{binary} delete answered no exit, but: {shown(completed.stdout)}") from error
    raise budget.exceeded(f"{binary} delete did not end")


async def run_info(launcher: Launcher, binary: str, options: Any | None) -> RuntimeInfo:
    """Run `-info` and return what it says of the runtime (protocol.md 2.6).

    Within the info budget: DeadlineExceeded names it; Unknown, with the program's words, when it fails or does not know
    the flag, as shims of 1.6.
    """
    budget = launcher.budgets.info
    with trio.move_on_after(budget.seconds):
        env = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"} | dict(launcher.env)
        stdin = b"" if options is None else options.SerializeToString()
        try:
            completed = await run(launcher.children, Command([binary, "-info"], env=env, new_group=True), stdin=stdin)
        except OSError as error:
            raise Unknown(f"{binary} -info cannot be run: {error.strerror}") from error
        if completed.exit.status:
            raise Unknown(f"{binary} -info: {shown(completed.stderr)}: {_ending(completed.exit)}")
        try:
            return RuntimeInfo.FromString(completed.stdout)
        except DecodeError as error:
            raise Unknown(f"{binary} -info answered no information, but: {shown(completed.stdout)}") from error
    raise budget.exceeded(f"{binary} -info did not end")


async def _attempt(
    launcher: Launcher,
    bundle: Bundle,
    binary: str,
    stdin: bytes,
    use: Callable[[Answer], Awaitable[T]],
    said: bytearray,
) -> T:
    with open_pipe() as output, open_pipe() as feed:
        os.set_blocking(output.reader.fileno(), False)
        os.set_blocking(feed.writer.fileno(), False)
        command = launcher.command(binary, bundle, "start")
        fds = {0: feed.reader.fileno(), 1: output.writer.fileno(), 2: output.writer.fileno()}
        try:
            child = launcher.children.spawn(attrs.evolve(command, fds=fds))
        except OSError as error:
            raise Unknown(f"failed to start shim: {error.strerror}") from error
        try:
            output.writer.close()
            feed.reader.close()
            end = await _collect(child, output, feed, stdin, said)
            if end.status:
                raise Unknown(f"failed to start shim: {shown(said) or 'it said nothing'}: {_ending(end)}")
            return await use(parse_answer(bytes(said)))
        except BaseException:
            await _kill_start(launcher, bundle, child, output)
            raise


async def _collect(child: Child, output: Pipe, feed: Pipe, stdin: bytes, said: bytearray) -> Exit:
    """Feed the command and keep what it says until it ends; then take what is still in the pipe."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_read, output, said)
        nursery.start_soon(_feed, feed, stdin)
        end = await child.wait()
        nursery.cancel_scope.cancel()
    for _ in range(OUTPUT_LIMIT // _CHUNK):  # a bound, for somebody may go on writing
        if not _take(output, said):
            break
    return end


def _take(output: Pipe, said: bytearray) -> bool:
    """Read once; False at EOF or when nothing is there.  What is beyond the limit is thrown away."""
    try:
        data = os.read(output.reader.fileno(), _CHUNK)
    except BlockingIOError:
        return False
    said += data[: max(0, OUTPUT_LIMIT - len(said))]
    return bool(data)


async def _read(output: Pipe, said: bytearray) -> None:
    while True:
        await trio.lowlevel.wait_readable(output.reader.fileno())
        if not _take(output, said):
            return


async def _feed(feed: Pipe, stdin: bytes) -> None:
    """Write all of `stdin`, then EOF; a program that does not read it has its reasons."""
    view = memoryview(stdin)
    with feed.writer:
        while view:
            try:
                view = view[os.write(feed.writer.fileno(), view) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(feed.writer.fileno())
            except BrokenPipeError:
                return


async def _kill_start(launcher: Launcher, bundle: Bundle, child: Child, output: Pipe) -> None:
    """End the command and whatever it began: its group, the holders of its output, servers with its arguments."""
    arguments = {"-namespace": bundle.namespace, "-id": bundle.id, "-address": launcher.layout.address}
    with trio.move_on_after(launcher.budgets.cleanup.seconds, shield=True):
        if child.exit is None:
            kill_group(child.pid)
            await child.wait()
        killed = await trio.to_thread.run_sync(kill_leftovers, child.pid, output.reader.fileno(), arguments)
        if killed:
            LOG.debug("killed %d processes that a failed start left behind", killed)
        await remove_dead_socket(usual_address(launcher, bundle))


def usual_address(launcher: Launcher, bundle: Bundle) -> str:
    """Where a shim of this task listens by custom (protocol.md 2.7): one that was killed left the file there."""
    directory = launcher.socket_dir or DEFAULT_SOCKET_DIR
    group = group_of(bundle.path, bundle.id)
    try:
        return f"unix://{socket_path(directory, launcher.layout.address, bundle.namespace, group)}"
    except ShimError:
        return ""


def _ending(end: Exit) -> str:
    return f"killed by signal {end.signal}" if end.signal else f"exit status {end.status}"


def _identity(binary: str) -> tuple[str, int, int, int]:
    """A file that was replaced may be another program."""
    try:
        found = os.stat(binary)
    except OSError as error:
        raise NotFound(f"{binary}: {error.strerror}") from error
    return (binary, found.st_dev, found.st_ino, found.st_mtime_ns)
