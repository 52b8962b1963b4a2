"""The logger contract (protocol.md 7.4): a program that reads both outputs of a process itself, on descriptors 3 and 4.

The container's pipes go straight to it; nothing is copied here.  We keep the read ends too: a logger that ends early
costs its lines, not the container, whose output is then taken out of the pipes and counted.  Its life: ready within a
budget or killed and its process refused; after the last output it ends by itself within another budget, else TERM, else
KILL; reaped in each case.  Its environment is CONTAINER_ID, CONTAINER_NAMESPACE and nothing else.
"""

from __future__ import annotations

import logging
import math
import os
import select
import signal
from typing import TYPE_CHECKING, Final

import attrs
import trio

from shim.errors import InvalidArgument, NotFound, Unknown
from shim.kernel.children import Command
from shim.kernel.pipes import bytes_in, open_pipe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shim.kernel.children import Child, Children
    from shim.kernel.fds import OwnedFd
    from shim.kernel.pipes import Pipe
    from shim.model.budgets import Budgets
    from shim.model.sinks import Logger

_log = logging.getLogger("shim.task.stdio")

TERM_SECONDS: Final = 3.0
"""Between SIGTERM and SIGKILL for a logger that had its time to end by itself."""
KILL_SECONDS: Final = 5.0
"""How long the kernel may take to end a killed logger."""
UMASK: Final = 0o022
_CHUNK: Final = 1 << 16


@attrs.frozen
class Owner:
    """Whose output it is: the task id, or the exec id of an exec; `directory` is the logger's cwd."""

    id: str
    namespace: str
    directory: str


async def open_logger(
    children: Children, sink: Logger, owner: Owner, outputs: Sequence[Pipe], budgets: Budgets
) -> LoggerProcess:
    """Start the logger on the read ends of `outputs` (stdout, stderr) and wait until it is ready.

    Raises NotFound or InvalidArgument for a program that cannot be run, DeadlineExceeded for one that does not get
    ready in time, Unknown for a strict one that ends instead; it is gone then.
    """
    with open_pipe() as ready:
        try:
            child = children.spawn(
                Command(
                    argv=[sink.path, *sink.arguments],
                    env={"CONTAINER_ID": owner.id, "CONTAINER_NAMESPACE": owner.namespace},
                    cwd=owner.directory,
                    fds={3: outputs[0].reader.fileno(), 4: outputs[1].reader.fileno(), 5: ready.writer.fileno()},
                    umask=UMASK,
                )
            )
        except FileNotFoundError as error:
            raise NotFound(f"failed to start logger {sink.path}: no such program") from error
        except OSError as error:
            raise InvalidArgument(f"failed to start logger {sink.path}: {error.strerror}") from error
        ready.writer.close()
        logger = LoggerProcess(sink.path, child, [pipe.reader for pipe in outputs], budgets)
        try:
            await _wait_ready(ready.reader, sink, budgets)
        except BaseException:
            await logger.kill()
            raise
    return logger


async def _wait_ready(reader: OwnedFd, sink: Logger, budgets: Budgets) -> None:
    with trio.move_on_after(budgets.logger_ready.seconds) as scope:
        await trio.lowlevel.wait_readable(reader.fileno())
    if scope.cancelled_caught:
        raise budgets.logger_ready.exceeded(f"no ready signal from logger {sink.path}")
    if sink.strict and not os.read(reader.fileno(), 1):
        raise Unknown(f"failed to start logger {sink.path}: it gave no ready signal and closed its descriptor 5")


class LoggerProcess:
    """A running logger."""

    def __init__(self, path: str, child: Child, readers: Sequence[OwnedFd], budgets: Budgets) -> None:
        self.path: Final = path
        self.child: Final = child
        self._readers: Final = readers
        self._budgets: Final = budgets

    @property
    def input_ended(self) -> bool:
        """Whether nobody can write to it any more."""
        return all(reader.closed or _hung_up(reader) for reader in self._readers)

    async def stop(self, *, process_ended_at: float, patience_until: float = math.inf) -> None:
        """End it: by itself within its budget after the process's end, then by TERM, then by KILL.

        Our write ends must be closed.  Times are trio's clock; `process_ended_at` infinite means that the process never
        ran, so that nothing needs to be flushed.  Cancelling skips to KILL.
        """
        flush = self._budgets.logger_flush.seconds
        try:
            if self.child.exit is None and self.input_ended and process_ended_at < math.inf:
                with trio.move_on_at(min(process_ended_at + flush, patience_until)):
                    await self.child.wait()
            if self.child.exit is None:
                self._signal(signal.SIGTERM)
                # With its input still open this is its one chance to flush.
                with trio.move_on_after(TERM_SECONDS if self.input_ended else flush):
                    await self.child.wait()
        finally:
            await self.kill()

    async def kill(self) -> None:
        """End it now, if it has not ended, and see it reaped."""
        if self.child.exit is not None:
            return
        self._signal(signal.SIGKILL)
        with trio.move_on_after(KILL_SECONDS, shield=True):
            await self.child.wait()

    def _signal(self, number: int) -> None:
        try:
            self.child.send_signal(number)
        except NotFound:
            return


class LoggerOutlet:
    """One of a logger's two inputs, taken over when the logger has ended before the container."""

    def __init__(self, source: OwnedFd, logger: LoggerProcess) -> None:
        self._source: Final = source
        self._logger: Final = logger
        self._dropped = 0

    @property
    def has_pending(self) -> bool:
        """While the logger works, and while the container may be held up by what nobody reads."""
        return self._logger.child.exit is None or bytes_in(self._source) > 0

    async def run(self) -> None:
        """Wait for the logger's end, then drop what it does not read any more, until EOF."""
        end = await self._logger.child.wait()
        if end.status and end.signal != signal.SIGTERM:
            _log.warning("logger %s ended with status %d", self._logger.path, end.status)
        os.set_blocking(self._source.fileno(), False)
        try:
            while data := await self._read():
                self._dropped += len(data)
        except trio.ClosedResourceError:
            pass
        finally:
            if self._dropped:
                _log.warning("logger %s had ended: %d bytes were dropped", self._logger.path, self._dropped)
            self.close()

    def close(self) -> None:
        """Let go of the read end."""
        self._source.close()

    async def _read(self) -> bytes:
        while True:
            await trio.lowlevel.checkpoint()
            try:
                return os.read(self._source.fileno(), _CHUNK)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._source.fileno())


def _hung_up(reader: OwnedFd) -> bool:
    poll = select.poll()
    poll.register(reader.fileno(), 0)
    return any(events & select.POLLHUP for _, events in poll.poll(0))
