"""What the benchmark's samples are made into: one table of figures, one of what a stuck Delete costs.  Pure."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final

from shim.verify.latency import Figures, figures_of, percentile
from tools.bench_life import (
    CREATE,
    DELETE,
    EXEC_START,
    KILL_WAIT,
    SHUTDOWN,
    START,
    START_COLD,
    START_COMMAND,
    STATE,
    Stopwatch,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tools.bench import Subject
    from tools.bench_stuck import Block

STEPS: Final = (START_COMMAND, START_COLD, CREATE, START, EXEC_START, KILL_WAIT, DELETE, SHUTDOWN)
STATE_RATIO: Final = 2.0
STATE_WORST: Final = 0.05
NEIGHBOUR_RATIO: Final = 1.2


def figures(subjects: Sequence[Subject], floor: Stopwatch) -> list[str]:
    """Medians in ms, each peer with ours divided by it."""
    rows = [["figure, ms (State: us)", "floor", *(subject.name for subject in subjects)]]
    rows += [[step, _one(floor.samples.get(step), 1e3), *_cells(subjects, step, 0.5, 1e3)] for step in STEPS]
    rows += [
        [f"State {name}", "", *_cells(subjects, STATE, share, 1e6)] for share, name in ((0.5, "p50"), (0.99, "p99"))
    ]
    lines = _aligned(rows)
    return [*lines, "In brackets: ours divided by that peer."]


def verdicts(subjects: Sequence[Subject]) -> list[str]:
    """What a stuck Delete does to State and to neighbours, and whether ours keeps to its aims."""
    present = [subject for subject in subjects if not subject.absent and subject.stuck.stuck.state]
    if not present:
        return []
    rows = [["while a Delete is stuck", *(subject.name for subject in present)]]
    rows.append(["State p99, idle / stuck", *(_state_p99(subject) for subject in present)])
    rows.append(["State worst", *(_worst(figures_of(subject.stuck.stuck.state)) for subject in present)])
    for step in (EXEC_START, KILL_WAIT, DELETE):
        name = "other Deletes" if step == DELETE else step
        rows.append([f"{name}, stuck : idle", *(_ratio(subject, step) for subject in present)])
    return [*_aligned(rows), *(f"ours: {line}" for line in _aims(present[0]))]


def _aims(ours: Subject) -> list[str]:
    idle, stuck = figures_of(ours.stuck.idle.state), figures_of(ours.stuck.stuck.state)
    found = [
        _aim("State p99 at most 2 x idle", stuck.p99 <= STATE_RATIO * idle.p99),
        _aim("State worst under 50 ms", stuck.worst < STATE_WORST),
    ]
    for step in (EXEC_START, KILL_WAIT, DELETE):
        ratio = _stuck_ratio(ours.stuck.idle, ours.stuck.stuck, step)
        found.append(_aim(f"{step} of neighbours within 1.2 x", ratio is not None and ratio <= NEIGHBOUR_RATIO))
    return found


def _aim(what: str, reached: bool) -> str:
    return f"{what}: {'reached' if reached else 'MISSED'}"


def _cells(subjects: Sequence[Subject], step: str, share: float, scale: float) -> list[str]:
    found = []
    ours = percentile(sorted(subjects[0].watch.samples.get(step, [])), share)
    for subject in subjects:
        samples = sorted(subject.watch.samples.get(step, []))
        if subject.absent or not samples:
            found.append("absent" if subject.absent else "-")
            continue
        value = percentile(samples, share)
        ratio = f" ({ours / value:.2f})" if subject is not subjects[0] and value else ""
        found.append(f"{value * scale:.1f}{ratio}")
    return found


def _one(samples: Sequence[float] | None, scale: float) -> str:
    return f"{median(samples) * scale:.1f}" if samples else ""


def _state_p99(subject: Subject) -> str:
    idle, stuck = figures_of(subject.stuck.idle.state), figures_of(subject.stuck.stuck.state)
    if stuck.timed_out:
        return f"{idle.p99 * 1e3:.1f} / none in 2 s ms"
    return f"{idle.p99 * 1e3:.1f} / {stuck.p99 * 1e3:.1f} ms"


def _worst(found: Figures) -> str:
    return f"{found.timed_out} of {found.count} not answered" if found.timed_out else f"{found.worst * 1e3:.1f} ms"


def _ratio(subject: Subject, step: str) -> str:
    ratio = _stuck_ratio(subject.stuck.idle, subject.stuck.stuck, step)
    return "no answer" if ratio is None else f"{ratio:.2f}"


def _stuck_ratio(idle: Block, stuck: Block, step: str) -> float | None:
    """Median while stuck by median while idle; None when some were not answered."""
    before, meanwhile = idle.others.samples.get(step), stuck.others.samples.get(step)
    if not before or not meanwhile or stuck.unanswered:
        return None
    return median(meanwhile) / median(before)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
