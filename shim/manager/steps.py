"""How long each step of a task's life took, for people who want to know and for the benchmark."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs
import trio

if TYPE_CHECKING:
    from collections.abc import Iterator


@attrs.define
class StepTimes:
    """Seconds by step, in the order in which the steps began; a step that failed counts too."""

    seconds: dict[str, float] = attrs.field(factory=dict)

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Measure the block as `step`; the same step again adds to it."""
        began = trio.current_time()
        self.seconds.setdefault(step, 0.0)
        try:
            yield
        finally:
            self.seconds[step] += trio.current_time() - began
