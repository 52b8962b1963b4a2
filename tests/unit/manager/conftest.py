"""A manager over a directory of the test's own, which finds the fake shims by name (`fake.sleeps.v1`)."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest

from shim.manager.layout import Layout
from shim.manager.lookup import ShimLookup
from shim.manager.manager import ManagerConfig
from shim.model.budgets import Budget, Budgets

if TYPE_CHECKING:
    from collections.abc import Iterator

SHIMS = Path(__file__).parents[2] / "fakes" / "shims"


@attrs.frozen
class Place:
    """Where a test's manager lives, and the directory that its fake shims know as FAKE_SHIM_DIR."""

    path: Path
    config: ManagerConfig

    @property
    def left(self) -> list[str]:
        """What is left of tasks in state and root."""
        layout = self.config.layout
        return [str(path) for base in (layout.bundles("ns"), layout.works("ns")) for path in Path(base).iterdir()]


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Short, since sockets are in it."""
    with tempfile.TemporaryDirectory(prefix="m-", dir="/tmp") as name:
        path = Path(name)
        (path / "fake").mkdir()
        monkeypatch.setenv("FAKE_SHIM_DIR", str(path / "fake"))
        budgets = Budgets(
            start=Budget("io.containerd.timeout.shim.start", 1.0),
            shutdown=Budget("io.containerd.timeout.shim.shutdown", 0.5),
        )
        layout = Layout(str(path / "state"), str(path / "root"))
        yield Place(path / "fake", ManagerConfig(layout, budgets, ShimLookup((str(SHIMS),))))
