from __future__ import annotations

import attrs
import pytest

from shim.errors import DeadlineExceeded, InvalidArgument
from shim.model.budgets import Budget, Budgets, format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5s", 5.0), ("1m30s", 90.0), ("250ms", 0.25), ("1h", 3600.0), ("1.5s", 1.5), (".5s", 0.5), ("10us", 1e-5)],
)
def test_a_duration_as_go_writes_it(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "s", "5 s", "-5s", "5sx", "x5s", "5d", "five", "5s\n", "٣s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is no duration"):
        parse_duration(text)


def test_durations_are_shown_in_the_unit_people_read() -> None:
    assert [format_duration(seconds) for seconds in (5, 0.25, 300, 90, 1.5)] == [
        "5 s",
        "250 ms",
        "5 min",
        "90 s",
        "1.5 s",
    ]


def test_the_error_names_budget_and_key() -> None:
    error = Budgets().load.exceeded("no answer to Connect")
    assert isinstance(error, DeadlineExceeded)
    assert error.message == "no answer to Connect within 5 s (io.containerd.timeout.shim.load)"


def test_defaults_are_those_of_the_table() -> None:
    budgets = Budgets()
    seconds = {field.name: getattr(budgets, field.name).seconds for field in attrs.fields(Budgets)}
    assert seconds == {
        "load": 5,
        "cleanup": 5,
        "shutdown": 3,
        "state": 2,
        "start": 30,
        "info": 10,
        "lock": 60,
        "drain": 10,
        "logger_ready": 10,
        "logger_flush": 12,
        "event_attempt": 5,
        "event_kept": 300,
    }


def test_a_configured_duration_replaces_one_budget_only() -> None:
    changed = Budgets().with_durations({"io.containerd.timeout.shim.load": "7s"})
    assert changed.load.seconds == 7
    assert changed.cleanup == Budgets().cleanup


def test_unknown_keys_and_bad_values_are_named() -> None:
    with pytest.raises(InvalidArgument, match=r"io\.containerd\.timeout\.nope"):
        Budgets().with_durations({"io.containerd.timeout.nope": "1s"})
    with pytest.raises(InvalidArgument, match=r"io\.containerd\.timeout\.shim\.load: '' is no duration"):
        Budgets().with_durations({"io.containerd.timeout.shim.load": ""})
    with pytest.raises(InvalidArgument, match="longer than nothing"):
        Budgets().with_durations({"io.containerd.timeout.shim.load": "0s"})


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_a_budget_is_never_unlimited(seconds: float) -> None:
    with pytest.raises(InvalidArgument):
        Budget("key", seconds)
