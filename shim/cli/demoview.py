"""How `shimctl demo` looks: two panels that live, side by side, on a terminal; plain lines anywhere else.

Invariants: what is shown is read from the trials and from nowhere else; drawing happens in a worker thread, so that it
does not delay the questions whose latency is shown.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TextIO

import click
import trio
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from shim.verify.slowdelete import DELETE_ANSWERED, PHASES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from rich.console import RenderableType

    from shim.verify.latency import Figures
    from shim.verify.slowdelete import Trial

DRAW_SECONDS: Final = 0.1
LOOK_SECONDS: Final = 0.01
LINE_SECONDS: Final = 0.5
STATE_BUDGET: Final = 2.0
TRACE_SECONDS: Final = 0.1
"""What one column of the trace stands for: the worst answer to what was asked in that time."""
STEPS: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""The heights of the trace: up to so many seconds each, a time-out being the highest."""
INTRODUCTION: Final = (
    "A container ends, and {size} of changed pages are in its root, which lies on an ext4 of its own: unmounting",
    "that root means writing all of them back. Delete is called, and State asked every 10 ms on a second",
    "connection. containerd waits {budget:g} s for State and then calls a container UNKNOWN.",
)
_BARS: Final = "▁▂▃▄▅▆▇█"
_PLAIN_BARS: Final = "_.-:=+*#"


def in_words(seconds: float) -> str:
    """A latency for people."""
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def mebibytes(count: int) -> str:
    """A size for people."""
    return f"{count / (1 << 30):.2f} GiB" if count >= 1 << 30 else f"{count >> 20} MiB"


def told(seconds: float, figures: Figures) -> str:
    """One of the figures; one that nobody got an answer in says so."""
    if not figures.count:
        return "-"
    return f"none in {STATE_BUDGET:g} s" if figures.timed_out and seconds >= STATE_BUDGET else in_words(seconds)


def trace(trial: Trial, columns: int, bars: str) -> str:
    """The last `columns` tenths of a second, each as high as the slowest State asked in it."""
    if trial.probe is None:
        return ""
    worst: dict[int, float] = {}
    for sample in list(trial.probe.samples):
        slot = int(sample.asked_at / TRACE_SECONDS)
        worst[slot] = max(worst.get(slot, 0.0), sample.seconds)
    if not worst:
        return ""
    last = max(worst)
    heights = (worst.get(slot) for slot in range(last - columns + 1, last + 1))
    return "".join(" " if each is None else bars[sum(each > step for step in STEPS)] for each in heights)


class View:
    """Where a person is told things that belong to no trial."""

    def __init__(self, stream: TextIO) -> None:
        self._stream: Final = stream

    def say(self, line: str) -> None:
        """One line."""
        click.echo(line, file=self._stream)


@asynccontextmanager
async def open_view(trials: Sequence[Trial], size: int, stream: TextIO) -> AsyncIterator[View]:
    """Show the trials while the block runs, and what came out of them when it has ended well."""
    view = View(stream)
    console = Console(file=stream)
    for line in INTRODUCTION:
        view.say(line.format(size=mebibytes(size), budget=STATE_BUDGET))
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        if console.is_terminal:
            await nursery.start(_run_panels, trials, size, console)
        else:
            nursery.start_soon(_run_lines, trials, view)
        try:
            yield view
        except Exception as error:  # carried around the nursery, which would wrap it in a group
            failure = error
        if console.is_terminal or failure is not None:
            nursery.cancel_scope.cancel()  # the lines end by themselves, with the last trial
    if failure is not None:
        raise failure
    if console.is_terminal:
        console.print(_table(trials))
    else:
        for line in summary(trials):
            view.say(line)


def summary(trials: Sequence[Trial]) -> list[str]:
    """The result as plain lines."""
    head = ("State during Delete", "asked", "timed out", "p50", "p99", "worst", "Delete took")
    rows = [head, *(_row(trial) for trial in trials)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    idle = [f"{trial.runtime} idle: p50 {in_words(trial.idle.p50)}, p99 {in_words(trial.idle.p99)}" for trial in trials]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return ["", *idle, *lines]


def _row(trial: Trial) -> tuple[str, ...]:
    found = trial.during
    figures = (told(found.p50, found), told(found.p99, found), told(found.worst, found))
    return (trial.runtime, str(found.count), str(found.timed_out), *figures, in_words(trial.elapsed))


def _table(trials: Sequence[Trial]) -> Table:
    table = Table(title="State during Delete", title_justify="left")
    for name in ("", "asked", "timed out", "p50", "p99", "worst", "Delete took"):
        table.add_column(name, justify="left" if not name else "right")
    for trial in trials:
        table.add_row(*_row(trial), style="red" if trial.during.timed_out else "green")
    return table


async def _run_panels(
    trials: Sequence[Trial],
    size: int,
    console: Console,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    live = Live(console=console, auto_refresh=False)

    def draw(now: float) -> None:
        live.update(_panels(trials, size, console, now), refresh=True)

    with live:
        task_status.started()
        try:
            while True:
                await trio.to_thread.run_sync(draw, trio.current_time())
                await trio.sleep(DRAW_SECONDS)
        finally:
            draw(trio.current_time())


def _panels(trials: Sequence[Trial], size: int, console: Console, now: float) -> RenderableType:
    grid = Table.grid(expand=True)
    for _ in trials:
        grid.add_column(ratio=1)
    width = max(10, console.width // len(trials) - 6)
    plain = not (console.encoding or "").lower().startswith("utf")
    grid.add_row(*(_panel(trial, size, width, now, plain=plain) for trial in trials))
    return grid


def _panel(trial: Trial, size: int, width: int, now: float, *, plain: bool) -> Panel:
    lines: list[RenderableType] = [Text(trial.program, style="dim", overflow="ellipsis", no_wrap=True)]
    stage = trial.stage
    if trial.filled and trial.began_at is None:
        stage += f": {mebibytes(min(trial.filled, size))} of {mebibytes(size)}"
    lines.append(Text(stage, style="bold"))
    lines.append(Text(f"{mebibytes(trial.dirty)} of dirty pages when Delete was called" if trial.began_at else ""))
    lines += [_phase(trial, phase, now, plain=plain) for phase in PHASES]
    lines += [
        Text(""),
        _latency_now(trial, now),
        Text(trace(trial, width, _PLAIN_BARS if plain else _BARS), style="cyan"),
    ]
    figures = trial.probe.figures() if trial.probe else trial.during
    lines.append(Text(f"asked {figures.count}, p50 {told(figures.p50, figures)}, worst {told(figures.worst, figures)}"))
    lines.append(
        Text(f"{figures.timed_out} timed out: UNKNOWN to containerd", style="bold red")
        if figures.timed_out
        else Text("none timed out", style="green" if trial.probe else "dim")
    )
    return Panel(Group(*lines), title=trial.runtime, border_style="red" if figures.timed_out else "blue")


def _phase(trial: Trial, phase: str, now: float, *, plain: bool) -> Text:
    if phase in trial.phases:
        return Text(f"{'x' if plain else '✓'} {phase:<20} {in_words(trial.phases[phase]):>10}", style="green")
    running = trial.began_at is not None and not trial.done
    elapsed = f"{in_words(now - trial.began_at):>10}" if running and trial.began_at is not None else ""
    return Text(f"{'.' if plain else '…'} {phase:<20} {elapsed}", style="yellow" if running else "dim")


def _latency_now(trial: Trial, now: float) -> Text:
    if trial.probe is None:
        return Text("State: not asked yet", style="dim")
    waiting = now - trial.probe.oldest_asked_at
    if waiting > 0.1 and DELETE_ANSWERED not in trial.phases:
        return Text(f"State: no answer for {in_words(waiting)}", style="bold red")
    last = trial.probe.samples[-1].seconds if trial.probe.samples else 0.0
    return Text(f"State: {in_words(last)}", style="bold green" if last < 0.1 else "bold red")


async def _run_lines(trials: Sequence[Trial], view: View) -> None:
    """A line for each step of each trial, and one each half second with the figures so far."""
    for trial in trials:
        view.say(f"\n{trial.runtime}: {trial.program}")
        stage, phases, due = "", 0, 0.0
        while not trial.done:
            if trial.stage != stage and DELETE_ANSWERED not in trial.phases:
                stage = trial.stage
                view.say(f"  {stage}" + (f", {mebibytes(trial.dirty)} of dirty pages" if trial.began_at else ""))
            for phase, seconds in list(trial.phases.items())[phases:]:
                view.say(f"  {seconds:7.3f} s  {phase}")
            phases = len(trial.phases)
            if trial.began_at is not None and DELETE_ANSWERED not in trial.phases and trial.elapsed >= due:
                due = trial.elapsed + LINE_SECONDS
                view.say(f"  {trial.elapsed:7.3f} s  {_state_line(trial)}")
            await trio.sleep(LOOK_SECONDS)


def _state_line(trial: Trial) -> str:
    assert trial.probe is not None
    found = trial.probe.figures()
    waiting = trio.current_time() - trial.probe.oldest_asked_at
    unanswered = f", no answer for {in_words(waiting)}" if waiting > 0.1 else ""
    return f"State: {found.count - found.timed_out} answered, {found.timed_out} timed out{unanswered}, worst " + (
        told(found.worst, found)
    )
