"""A program that serves in the background of a test: ready when its log says so, ended by its pid."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import attrs
import trio

from tests.system.harness.processes import is_running, kill_now, wait_ended

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

END_SECONDS = 10
"""How long it may take to end when it is told to."""


@attrs.define
class Background:
    """One program, run any number of times one after the other; `log` is what all runs wrote to stderr."""

    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    ready: bytes
    """The words with which it says that it serves."""
    pid: int = 0
    log: bytearray = attrs.field(factory=bytearray)

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run it until it ends or this is cancelled; started once it says that it is ready."""
        process = await trio.lowlevel.open_process(
            list(self.argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=self.cwd,
            env=self.env,
            process_group=0,
        )
        self.pid = process.pid
        assert process.stderr is not None
        try:
            begin, started = len(self.log), False
            async for chunk in process.stderr:
                self.log += chunk
                if not started and self.log.find(self.ready, begin) >= 0:
                    started = True
                    task_status.started()
            if not started:
                raise RuntimeError(f"{self.argv[0]} did not start: {self.log.decode(errors='replace')[-2000:]}")
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + END_SECONDS):
                if is_running(self.pid):
                    os.kill(self.pid, signal.SIGTERM)
                await process.wait()
            if process.returncode is None:
                kill_now(self.pid)
                with trio.CancelScope(shield=True, deadline=trio.current_time() + END_SECONDS):
                    await process.wait()
            await process.stderr.aclose()

    async def stop(self, number: int = signal.SIGTERM) -> None:
        """End it and return when it has ended."""
        os.kill(self.pid, number)
        await wait_ended(self.pid, timeout=END_SECONDS)
