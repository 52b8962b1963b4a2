"""The OOM watch of one container: tells each round of OOM kills once, before init's exit is told (protocol.md 5.4).

What is told is a grown count of kills, never the kernel's wake by itself: a v1 eventfd also fires when the cgroup is
removed, and when a parent ran out of memory and somebody else was killed.  It fires before the kernel has chosen and
counted its victim (two looks of three came too early when it was measured), so after a wake without a grown count the
count is looked at again, with growing pauses, for about a second.  The count has grown before the victim gets its
signal, so `check_now` when init has ended misses nothing.

Where kills are disabled for a v1 cgroup, running out of memory is told although nobody is killed: its processes stand
still until somebody acts.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import trio

from shim.kernel.cgroup_events import open_oom_source
from shim.kernel.cgroup_files import exists, is_root, oom_control

if TYPE_CHECKING:
    from collections.abc import Callable

    from shim.kernel.cgroup_events import OomSource
    from shim.kernel.cgroup_files import CgroupPlaces

_log = logging.getLogger("shim.task.oom")

LATE_COUNT_SECONDS: Final = tuple(2.0**power / 1000 for power in range(10))
"""Pauses between looks at a count that should grow: 1 ms to 0.5 s, one second in all."""


class OomWatch:
    """Made when init is known and still waits for its start; the counts found then are the zero.

    `on_oom` is called without arguments, on the loop; `oom_killed` is whether it ever was for a kill.  Whoever sees
    init's exit calls `check_now`, then `close`, and tells the exit after that.
    """

    def __init__(self, places: CgroupPlaces | None, on_oom: Callable[[], None]) -> None:
        """`places` is None when the cgroup is not known.  Then, and where nothing counts this container's kills alone
        (no memory controller, or the root cgroup), nothing is ever told."""
        self.oom_killed = False
        self._places = places if places is not None and places.memory and not is_root(places.memory) else None
        self._on_oom = on_oom
        self._closed = False
        self._scope = trio.CancelScope()
        self._counts = self._read_counts()

    def start(self, nursery: trio.Nursery) -> None:
        """Watch as a task of `nursery`, until `close`; one on v1 also ends when the cgroup goes."""
        if self._places is not None and self._places.memory is not None:
            nursery.start_soon(self._run, self._places, self._places.memory, name=f"OOM watch {self._places.memory}")

    def check_now(self) -> bool:
        """Look at the counts; on a grown one tell it and return True.  False once closed."""
        if self._closed:
            return False
        before, now = self._counts, self._read_counts()
        if not now:  # unreadable for the moment, or gone: what was told is not told again
            return False
        self._counts = now
        if not any(count > before.get(directory, 0) for directory, count in now.items()):
            return False
        self.oom_killed = True
        self._on_oom()
        return True

    def close(self) -> None:
        """End the watch; nothing is told from here on.  Again is a no-op."""
        self._closed = True
        self._scope.cancel()

    async def _run(self, places: CgroupPlaces, directory: str) -> None:
        if self._closed:
            return
        try:
            source = open_oom_source(directory, unified=places.unified)
        except OSError as error:
            _log.warning("OOM kills are seen only when init ends: %s", error)
            return
        try:
            with self._scope:
                await self._follow(source, places, directory)
        finally:
            source.close()

    async def _follow(self, source: OomSource, places: CgroupPlaces, directory: str) -> None:
        self.check_now()
        while exists(directory):
            await source.wait()
            if self.check_now() or places.unified:
                continue
            if self._stands_still(places, directory):
                self._on_oom()
            else:
                await self._await_late_count(directory)

    async def _await_late_count(self, directory: str) -> None:
        for pause in LATE_COUNT_SECONDS:
            await trio.sleep(pause)
            if self.check_now() or not exists(directory):
                return

    def _stands_still(self, places: CgroupPlaces, directory: str) -> bool:
        control = dict(oom_control(places)).get(directory, {})
        return bool(control.get("oom_kill_disable") and control.get("under_oom"))

    def _read_counts(self) -> dict[str, int]:
        if self._places is None:
            return {}
        return {
            directory: values["oom_kill"] for directory, values in oom_control(self._places) if "oom_kill" in values
        }
