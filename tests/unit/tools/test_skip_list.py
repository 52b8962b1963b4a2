"""The list of allowed skips: what is on it passes, anything else fails the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import NEEDS_ROOT, SKIPS, allowed_reasons, refused_skips

pytest_plugins = ["pytester"]

CONFTEST = Path(__file__).parents[2] / "conftest.py"


@pytest.fixture
def developer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine where something may be missing."""
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("SHIM_NO_SKIPS", raising=False)


def run_skipping(pytester: pytest.Pytester, reason: str) -> pytest.RunResult:
    pytester.makeconftest(CONFTEST.read_text())
    pytester.path.joinpath("skips.txt").write_text(SKIPS.read_text())
    pytester.makepyfile(f"import pytest\ndef test_one():\n    pytest.skip({reason!r})\ndef test_two():\n    pass\n")
    return pytester.runpytest_subprocess("-p", "no:trio", "-p", "no:timeout")


def test_star_stands_for_any_text() -> None:
    (pattern,) = allowed_reasons("# why\n\nno peer program *\n")
    assert pattern.fullmatch("no peer program /somewhere/ctr")
    assert not pattern.fullmatch("there is no peer program x")


@pytest.mark.usefixtures("developer")
def test_listed_reason_is_allowed() -> None:
    assert refused_skips([("test_a", NEEDS_ROOT)]) == []


@pytest.mark.usefixtures("developer")
def test_other_reason_is_refused() -> None:
    assert refused_skips([("test_a", "not today")]) == ["test_a: not today"]


@pytest.mark.parametrize(("variable", "value"), [("CI", "true"), ("SHIM_NO_SKIPS", "1")])
@pytest.mark.usefixtures("developer")
def test_nothing_is_allowed_where_everything_must_run(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    assert refused_skips([("test_a", NEEDS_ROOT)]) == [f"test_a: {NEEDS_ROOT}"]


@pytest.mark.slow
@pytest.mark.usefixtures("developer")
def test_run_with_a_listed_skip_passes(pytester: pytest.Pytester) -> None:
    result = run_skipping(pytester, NEEDS_ROOT)
    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == 0


@pytest.mark.slow
@pytest.mark.usefixtures("developer")
def test_run_with_another_skip_fails_and_names_it(pytester: pytest.Pytester) -> None:
    result = run_skipping(pytester, "not today")
    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*refused skips*", "*test_one: not today"])
