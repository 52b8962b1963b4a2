"""The benchmark: our shim and its peers in turn on the same work, one run, medians and ratios.

    python -m tools.bench --peers "go-2.4 go-1.6" --rounds 10 --json build/bench.json

Absolute times drift with the machine; what counts are the ratios of one run.  So the subjects take turns in every
round, in another order each time, with the bare runtime (the floor) among them.  The first round is not counted.  A
peer that is not here is a column that says so.  Needs root; runs in a mount namespace of its own, so that nobody else's
copies of our mounts are measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import trio
from google.protobuf.empty_pb2 import Empty

from shim.kernel.children import open_children
from shim.kernel.listeners import kill_listeners
from shim.kernel.mountinfo import at_or_below, read_mountinfo
from shim.manager.launch import Launcher
from shim.manager.layout import Layout
from shim.model.budgets import Budgets
from shim.rpc.server import Service, serve_ttrpc
from shim.verify.latency import figures_of
from shim.wire.services import EVENTS
from tools.bench_life import Bench, Stopwatch, time_cold_start, time_floor, time_life
from tools.bench_stuck import StuckFigures, time_stuck
from tools.bench_table import figures, verdicts
from tools.peers import find_peers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.message import Message

ROOT: Final = Path(__file__).resolve().parents[1]
OUR_PROGRAMS: Final = (ROOT / "build/installed/bin/containerd-shim-trio-v2", ROOT / ".venv/bin/containerd-shim-trio-v2")
NAMESPACE: Final = "bench"
TEMPLATES: Final = "templates"
APART: Final = "SHIM_BENCH_APART"


@attrs.define
class Subject:
    """One program under measurement, or why it is absent."""

    name: str
    path: str
    absent: str = ""
    watch: Stopwatch = attrs.field(factory=Stopwatch)
    stuck: StuckFigures = attrs.field(factory=StuckFigures)


def find_subjects(ours: str, peers: Sequence[str]) -> list[Subject]:
    """Our program, then the peers as they are named: `go-2.4`, `go-1.6`, or a path."""
    found = [Subject("ours", ours)]
    here = {f"go-{peer.version[:3]}": peer for peer in find_peers(may_build=False) if "shim" in peer.name}
    for name in peers:
        peer = here.get(name)
        if "/" in name:
            found.append(Subject(Path(name).name, name, "" if os.access(name, os.X_OK) else "no such program"))
        elif peer is None:
            found.append(Subject(name, "", "no peer of that name: make peers says what is here"))
        else:
            found.append(Subject(name, str(peer.path or ""), peer.absent))
    return found


def in_turn(subjects: Sequence[Subject], number: int) -> list[Subject]:
    """Another order for each round, so that nobody always comes after the same."""
    first = number % len(subjects)
    turned = [*subjects[first:], *subjects[:first]]
    return turned if number % 2 else turned[::-1]


async def run_bench(subjects: Sequence[Subject], options: argparse.Namespace, directory: str) -> Stopwatch:
    """All rounds; the floor's samples, the others' are in their subjects."""
    layout = Layout(f"{directory}/state", f"{directory}/root")
    layout.prepare()
    floor = Stopwatch()
    present = [subject for subject in subjects if not subject.absent]
    async with open_children() as children, trio.open_nursery() as nursery:
        await nursery.start(_run_sink, layout.events_address)
        rootfs = make_rootfs(f"{directory}/rootfs")
        # A place of this run's own for the template, which the first round, not counted, leaves behind warm.
        env = {"TRIO_SHIM_RUN_DIR": f"{directory}/{TEMPLATES}"}
        bench = Bench(Launcher(children, layout, Budgets(), sys.argv[0], env=env), nursery, NAMESPACE, rootfs)
        for number in range(options.rounds + 1):
            for subject in in_turn(present, number):
                watch = subject.watch if number else Stopwatch()
                await time_life(bench, subject.path, f"r{number}-{subject.name.replace('.', '')}", watch)
            ours = subjects[0]
            await time_cold_start(bench, ours.path, f"r{number}-cold", ours.watch if number else Stopwatch())
            await time_floor(bench, f"r{number}-floor", floor if number else Stopwatch())
            tell(f"round {number} of {options.rounds}")
        for number in range(options.stuck_rounds):
            for subject in in_turn(present, number):
                name = f"s{number}-{subject.name.replace('.', '')}"
                await time_stuck(bench, subject.path, name, f"{directory}/{name}", subject.stuck)
                tell(f"a Delete stuck in {subject.name}, round {number + 1} of {options.stuck_rounds}")
        nursery.cancel_scope.cancel()
    return floor


async def _run_sink(address: str, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """Take every event, so that no shim waits with any."""

    async def take(request: Message) -> Message:
        return Empty()

    sock = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    await sock.bind(address)
    sock.listen(128)
    task_status.started()
    await serve_ttrpc(trio.SocketListener(sock), [Service(EVENTS, {"Forward": take})])


def make_rootfs(directory: str) -> str:
    """A root with nothing but busybox and the commands that are run."""
    busybox = shutil.which("busybox")
    if busybox is None:
        raise SystemExit("the benchmark needs a static busybox: install busybox-static")
    for name in ("bin", "dev", "proc", "sys", "run", "tmp", "etc"):
        os.makedirs(f"{directory}/{name}")
    shutil.copy(busybox, f"{directory}/bin/busybox")
    for name in ("sleep", "true", "sh"):
        os.symlink("busybox", f"{directory}/bin/{name}")
    return directory


def end_templates(directory: str) -> None:
    """End the warm interpreters that were left in this run's own directory."""
    if os.path.isdir(directory):
        for name in os.listdir(directory):
            kill_listeners(f"{directory}/{name}", lambda pid: True)


def tell(line: str) -> None:
    """Progress, on stderr."""
    print(line, file=sys.stderr, flush=True)


def as_json(subjects: Sequence[Subject], floor: Stopwatch, rounds: int) -> dict[str, object]:
    """Every sample, so that other figures can be made of one run later; seconds."""

    def stuck(subject: Subject) -> dict[str, object]:
        return {
            name: {
                "state": attrs.asdict(figures_of(block.state)),
                "others": dict(block.others.samples),
                "unanswered_blocks": block.unanswered,
            }
            for name, block in (("idle", subject.stuck.idle), ("stuck", subject.stuck.stuck))
        }

    return {
        "rounds": rounds,
        "machine": {"kernel": os.uname().release, "cpus": os.cpu_count(), "load": os.getloadavg()},
        "floor": dict(floor.samples),
        "subjects": {
            subject.name: {
                "program": subject.path,
                "absent": subject.absent,
                "samples": dict(subject.watch.samples),
                "delete": stuck(subject),
            }
            for subject in subjects
        },
    }


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shim", default=next((str(path) for path in OUR_PROGRAMS if path.exists()), ""))
    parser.add_argument("--peers", default="go-2.4 go-1.6", help="names or paths, separated by spaces")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--stuck-rounds", type=int, default=2)
    parser.add_argument("--json", default=str(ROOT / "build/bench.json"), metavar="FILE")
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("containers need root")
    if not options.shim:
        parser.error("our shim is not built: make installed")
    if APART not in os.environ:
        words = ["unshare", "--mount", "--propagation", "private", sys.executable, "-m", "tools.bench", *sys.argv[1:]]
        os.execvpe("unshare", words, {**os.environ, APART: "1"})
    subjects = find_subjects(options.shim, options.peers.split())
    directory = tempfile.mkdtemp(prefix="bench-", dir="/var/tmp")
    try:
        floor = trio.run(run_bench, subjects, options, directory)
    finally:
        end_templates(f"{directory}/{TEMPLATES}")
        if not at_or_below(read_mountinfo(), directory):
            shutil.rmtree(directory)
    Path(options.json).parent.mkdir(parents=True, exist_ok=True)
    Path(options.json).write_text(json.dumps(as_json(subjects, floor, options.rounds), indent=1))
    for line in [*figures(subjects, floor), "", *verdicts(subjects), "", f"every sample: {options.json}"]:
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
