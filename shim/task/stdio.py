"""Making the streams that a client asked for: pipes or a terminal, fifos, files or a logger behind them.

Everything is made before the runtime runs, so that a wrong path or a logger that does not get ready fails Create, and
nothing waits for a client: output that nobody reads yet stays where it is until somebody does (design section 7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from shim.errors import InvalidArgument, Unknown
from shim.kernel import fifos
from shim.kernel.pipes import open_pipe
from shim.model.budgets import Budgets
from shim.model.sinks import Discard, Fifo, LogFile, Logger, Sink, plan_sinks
from shim.task.console import Console, ConsoleSink, FdSink, FifoSink
from shim.task.consolesocket import ConsoleSocket
from shim.task.logfile import FileOutlet, open_log_file
from shim.task.loggers import LoggerOutlet, open_logger
from shim.task.outlets import FifoOutlet, Inlet, open_input, unusable
from shim.task.streams import PipeStreams, Streams, TerminalStreams

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shim.kernel.children import Children
    from shim.kernel.fds import OwnedFd
    from shim.kernel.pipes import Pipe
    from shim.task.loggers import Owner
    from shim.task.process import StdioPaths

UNDO_SECONDS: Final = 30.0
"""How long the undoing of half-made streams may take."""


async def open_streams(
    stdio: StdioPaths, *, children: Children, owner: Owner, pipe_owner: tuple[int, int], budgets: Budgets | None = None
) -> Streams:
    """Make the streams that the client asked for; the container's side of pipes belongs to `pipe_owner` (uid, gid).

    Raises InvalidArgument or NotFound for a path, scheme or program that cannot be used, DeadlineExceeded or Unknown
    for a logger that does not get ready; nothing stays open then.
    """
    sinks = plan_sinks(stdio.stdout, stdio.stderr, terminal=stdio.terminal)
    maker = _Maker(children, owner, pipe_owner, budgets or Budgets())
    try:
        if stdio.terminal:
            return await maker.open_terminal(stdio.stdin, sinks.stdout)
        return await maker.open_pipes(stdio.stdin, sinks.stdout, sinks.stderr)
    except BaseException as error:
        with trio.move_on_after(UNDO_SECONDS, shield=True):
            await maker.streams.aclose()
        if isinstance(error, OSError):
            raise Unknown(f"failed to create init process I/O: {error}") from error
        raise


class _Maker:
    """Makes one process's streams; `streams` owns what was made so far."""

    def __init__(self, children: Children, owner: Owner, pipe_owner: tuple[int, int], budgets: Budgets) -> None:
        self.streams = PipeStreams()
        self._children = children
        self._owner = owner
        self._pipe_owner = pipe_owner
        self._budgets = budgets

    async def open_pipes(self, stdin: str, stdout: Sink, stderr: Sink) -> Streams:
        streams = self.streams
        if stdin:
            pipe = self._pipe()
            streams.child_fds[0] = self._child_end(pipe.reader)
            streams.inlet = Inlet(stdin, pipe.writer)
            streams.copiers.add(streams.inlet)
        sinks = {number: sink for number, sink in ((1, stdout), (2, stderr)) if not isinstance(sink, Discard)}
        pipes = {number: self._pipe() for number in sinks}
        for number, pipe in pipes.items():
            streams.child_fds[number] = self._child_end(pipe.writer)
        for sink in dict.fromkeys(sinks.values()):
            await self._connect(sink, {number: pipes[number] for number in sinks if sinks[number] == sink})
        return streams

    async def open_terminal(self, stdin: str, stdout: Sink) -> Streams:
        streams = self.streams = TerminalStreams()
        source = open_input(stdin) if stdin else None
        if source is not None:
            streams.owned.callback(source.close)
        target = await self._console_sink(stdout)
        streams.owned.callback(target.close)
        streams.console = Console(target, source)
        streams.socket = ConsoleSocket.open()
        streams.console_socket = streams.socket.path
        streams.owned.callback(streams.socket.close)
        return streams

    async def _console_sink(self, sink: Sink) -> ConsoleSink:
        if isinstance(sink, Fifo) and _is_fifo(sink.path):
            return FifoSink(sink.path)
        if isinstance(sink, Discard):
            return FdSink.null()
        pipe = self._pipe()
        self._child_end(pipe.writer)
        await self._connect(sink, {1: pipe})
        return FdSink(pipe.writer)

    async def _connect(self, sink: Sink, pipes: Mapping[int, Pipe]) -> None:
        """Let the read ends of `pipes`, by the container's descriptors, go to one sink."""
        if isinstance(sink, Fifo) and _is_fifo(sink.path):
            for pipe in pipes.values():
                self.streams.copiers.add(FifoOutlet(pipe.reader, sink.path))
        elif isinstance(sink, Fifo | LogFile):
            create = isinstance(sink, LogFile)
            file = await open_log_file(sink.path, create=create, outputs=len(pipes))
            self.streams.owned.callback(file.close)
            for pipe in pipes.values():
                self.streams.copiers.add(FileOutlet(pipe.reader, file))
        elif isinstance(sink, Logger):
            await self._connect_logger(sink, pipes)
        else:
            raise InvalidArgument(f"stdio sink {sink} is not supported")

    async def _connect_logger(self, sink: Logger, pipes: Mapping[int, Pipe]) -> None:
        # The output that is not asked for, or that a terminal does not have, is a silent pipe.
        both = [pipes.get(number) or self._silent_pipe() for number in (1, 2)]
        logger = await open_logger(self._children, sink, self._owner, both, self._budgets)
        self.streams.loggers.append(logger)
        for pipe in both:
            self.streams.copiers.add(LoggerOutlet(pipe.reader, logger))

    def _silent_pipe(self) -> Pipe:
        pipe = self._pipe()
        self._child_end(pipe.writer)
        return pipe

    def _pipe(self) -> Pipe:
        return self.streams.owned.enter_context(open_pipe(wide=True, owner=self._pipe_owner))

    def _child_end(self, end: OwnedFd) -> int:
        self.streams.child_ends.append(end)
        return end.fileno()


def _is_fifo(path: str) -> bool:
    try:
        return fifos.is_fifo(path)
    except OSError as error:
        raise unusable("stdio path", path, error) from error
