"""What holds for every test: a skip must be on the list, and the system suite needs root.

A skip is a test that did not run, so it is never silent: `tests/skips.txt` lists each reason that is allowed and why.
Any other reason fails the run.  Where nothing may be missing (CI, or SHIM_NO_SKIPS=1) no skip is allowed at all.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

import pytest

HERE: Final = Path(__file__).parent
SKIPS: Final = HERE / "skips.txt"
NEEDS_ROOT: Final = "the system suite needs root"


def allowed_reasons(text: str) -> list[re.Pattern[str]]:
    """The reasons of a list: one a line, `*` stands for any text, `#` begins the line that says why."""
    lines = [line.strip() for line in text.splitlines()]
    return [
        re.compile(".*".join(map(re.escape, line.split("*"))), re.DOTALL)
        for line in lines
        if line and not line.startswith("#")
    ]


def none_allowed() -> bool:
    """Whether this machine must be able to run every test."""
    return os.environ.get("CI") == "true" or os.environ.get("SHIM_NO_SKIPS") == "1"


def refused_skips(seen: list[tuple[str, str]]) -> list[str]:
    """Those skips (test, reason) that the list does not allow, one line each."""
    allowed = [] if none_allowed() else allowed_reasons(SKIPS.read_text(encoding="utf-8"))
    return [f"{test}: {reason}" for test, reason in seen if not any(each.fullmatch(reason) for each in allowed)]


class SkipList:
    """The hooks that watch the skips of one run."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self.refused: list[str] = []

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        # An expected failure counts as skipped for pytest; xfail_strict looks after those.
        if report.skipped and not hasattr(report, "wasxfail") and isinstance(report.longrepr, tuple):
            self.seen.append((report.nodeid, report.longrepr[2].removeprefix("Skipped: ")))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.refused = refused_skips(self.seen)
        if self.refused and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.refused:
            where = "no skip is allowed here" if none_allowed() else f"not on the list {SKIPS.name}"
            terminalreporter.section(f"refused skips: {where}", red=True)
            for line in self.refused:
                terminalreporter.line(line)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SkipList(), "skip-list")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.geteuid() != 0:
        for item in items:
            if HERE / "system" in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=NEEDS_ROOT))
