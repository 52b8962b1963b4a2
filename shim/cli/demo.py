"""`shimctl demo`: the same slow Delete by our shim and by another one, and what State answers meanwhile.

Invariants: whatever is made (disk, container, shim) is taken away at the end, also on INT, TERM, HUP or QUIT, which end
the demonstration once that is done; a shim that fails ends it with its reason.  Refuses, before anything is made, a
size for which the disk has no room.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
from typing import TYPE_CHECKING, Final

import attrs
import trio

from shim.cli.demoview import open_view
from shim.cli.rootfs import cache_directory, ensure_rootfs, find_busybox
from shim.cli.run import Interrupted
from shim.errors import InvalidArgument, NotFound
from shim.kernel.children import Command, open_children
from shim.kernel.commands import run
from shim.model.runtimes import DEFAULT_RUNTIME
from shim.verify.slowdelete import PHASES, Trial, TrialInputs, disk_bytes, run_trial
from shim.verify.slowdisk import check_room

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from shim.kernel.children import Children
    from shim.manager.manager import Manager
    from shim.verify.latency import Figures

STOCK_RUNTIME: Final = "io.containerd.runc.v2"
DEFAULT_SIZE: Final = "512M"
SMALLEST: Final = 16 << 20
ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
APART: Final = "SHIMCTL_DEMO_APART"
"""Set in the environment of the program that has its own mount namespace."""
SWITCH_SECONDS: Final = 0.0005
"""How long the thread that draws may keep the interpreter from the one that measures."""
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:I?B)?", re.IGNORECASE)


@attrs.frozen
class DemoRequest:
    """What a person asked for; no runtime means the stock one, when it is there."""

    namespace: str
    size: int
    runtime: str | None = None
    as_json: bool = False


def parse_size(text: str) -> int:
    """Bytes in `2G`, `512MB` or `1.5GiB`, whole MiB; InvalidArgument for anything else and for less than 16 MiB."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise InvalidArgument(f"{text!r:.40} is no size: write it as 512M or 2G")
    size = int(float(found[1]) * _UNITS[found[2].upper()]) >> 20 << 20
    if size < SMALLEST:
        raise InvalidArgument(f"{text} is too small to be slow: {SMALLEST >> 20}M is the least")
    return size


def step_apart() -> None:
    """Become the same program in a mount namespace of its own, by util-linux's unshare; stay where that cannot be.

    Whoever makes a mount namespace meanwhile (a service with private mounts, another container) gets copies of all
    mounts in ours, and a root that is mounted somewhere else too has nothing to write back when it is unmounted here:
    the Delete would be quick, and the demonstration would show nothing.
    """
    unshare, program = shutil.which("unshare"), os.path.abspath(sys.argv[0])
    if APART in os.environ or unshare is None or not os.access(program, os.X_OK) or os.geteuid() != 0:
        return
    words = [unshare, "--mount", "--propagation", "private", program, *sys.argv[1:]]
    with contextlib.suppress(OSError):
        os.execve(unshare, words, {**os.environ, APART: "1"})


async def run_demo(manager: Manager, request: DemoRequest) -> dict[str, object]:
    """Run it, showing it as it goes, and return the result for machines."""
    making = trio.CancelScope()
    interrupted: list[int] = []

    async def watch(signals: AsyncIterator[int]) -> None:
        async for number in signals:
            interrupted.append(number)
            making.cancel()

    sys.setswitchinterval(SWITCH_SECONDS)
    result: dict[str, object] = {}
    failure: Exception | None = None
    with trio.open_signal_receiver(*ENDING) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, signals)
            try:
                with making:
                    result = await _run(manager, request)
            except Exception as error:  # carried around the nursery, which would wrap it in a group
                failure = error
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if interrupted:
        raise Interrupted(interrupted[0])
    return result


async def _run(manager: Manager, request: DemoRequest) -> dict[str, object]:
    place = manager.config.layout.temporary
    check_room(place, disk_bytes(request.size))
    result: dict[str, object] = {}
    failure: Exception | None = None
    async with open_children() as children:
        try:
            directory = tempfile.mkdtemp(prefix="demo-", dir=place)
            try:
                result = await _show(manager, children, request, directory)
            finally:
                with contextlib.suppress(OSError):  # what keeps it from going was told already
                    os.rmdir(directory)
        except Exception as error:  # carried around the nursery of the children, which would wrap it in a group
            failure = error
    if failure is not None:
        raise failure
    return result


async def _show(manager: Manager, children: Children, request: DemoRequest, directory: str) -> dict[str, object]:
    busybox = find_busybox(os.environ.get("PATH", os.defpath))
    trials = await _trials(manager, children, request)
    lower = await ensure_rootfs(children, cache_directory(os.environ), busybox)
    inputs = TrialInputs(manager, children, request.namespace, lower, directory, request.size)
    async with open_view(trials, request.size, sys.stderr if request.as_json else sys.stdout) as view:
        if len(trials) == 1:
            view.say(f"{STOCK_RUNTIME} is not on this machine: nothing to compare with (--runtime names another)")
        for trial in trials:
            await run_trial(inputs, trial, f"demo-{secrets.token_hex(4)}")
    return {"size": request.size, "runs": [_as_json(trial) for trial in trials]}


async def _trials(manager: Manager, children: Children, request: DemoRequest) -> Sequence[Trial]:
    """Ours, and the one to compare it with."""
    lookup = manager.config.lookup
    runtimes = [DEFAULT_RUNTIME]
    if request.runtime is not None:
        runtimes.append(request.runtime)
    else:
        try:
            lookup.find(STOCK_RUNTIME)
        except NotFound:
            pass
        else:
            runtimes.append(STOCK_RUNTIME)
    return [Trial(runtime, await _program_of(children, lookup.find(runtime))) for runtime in runtimes]


async def _program_of(children: Children, binary: str) -> str:
    """The program and what it says of its version."""
    try:
        told = await run(children, Command([binary, "-v"]))
    except OSError:
        return binary
    found = re.search(r"^\s*version:?\s+(\S+)", told.stdout.decode(errors="replace"), re.IGNORECASE | re.MULTILINE)
    return f"{binary} {found[1]}" if found else binary


def _as_json(trial: Trial) -> dict[str, object]:
    return {
        "runtime": trial.runtime,
        "program": trial.program,
        "dirty_bytes": trial.dirty,
        "phases_seconds": {phase: trial.phases.get(phase) for phase in PHASES},
        "state_idle": _figures(trial.idle),
        "state_during_delete": _figures(trial.during),
    }


def _figures(figures: Figures) -> dict[str, float]:
    return {
        "asked": figures.count,
        "timed_out": figures.timed_out,
        "p50_seconds": figures.p50,
        "p99_seconds": figures.p99,
        "worst_seconds": figures.worst,
    }
