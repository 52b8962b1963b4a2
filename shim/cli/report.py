"""What `--timings` shows after a run: exit, pids, memory of the shim, and how long each step took."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shim.manager.tasks import Task, TaskExit

STEPS = {
    "shim": "start shim",
    "create": "create",
    "start": "start",
    "wait": "wait",
    "delete": "delete",
    "shutdown": "shutdown",
}


@attrs.define
class RunReport:
    """Filled when the run has ended; `memory` is the shim's proportional set size in KiB, None when unknown."""

    memory: int | None = None
    lines: list[str] = attrs.field(factory=list)

    def fill(self, task: Task, ended: TaskExit, written: Sequence[int]) -> None:
        """Take the facts of a run that has ended."""
        seconds = task.times.seconds
        memory = "unknown" if self.memory is None else f"{self.memory / 1024:.1f} MiB"
        service = f"task service v{task.shim.version}"
        self.lines = [
            f"output     {' + '.join(str(count) for count in written)} bytes",
            f"exit       {ended.status}",
            f"pid        {task.pid}",
            f"shim       pid {task.shim.pid}, {memory} PSS, {service}, {os.path.basename(task.binary)}",
            *(f"{label:<10} {seconds[step] * 1000:8.1f} ms" for step, label in STEPS.items() if step in seconds),
        ]


def shim_memory(pid: int) -> int | None:
    """The proportional set size of a process in KiB; None when it cannot be read."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1])
    except (OSError, ValueError):
        return None
    return None
