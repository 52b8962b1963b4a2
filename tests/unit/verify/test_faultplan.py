"""What a plan may say, and which steps a command gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shim.verify import faults
from shim.verify.faultplan import Call, PlanError, check_plan, select

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shim.verify.faultplan import Json

COMMON = ["--root", "/r/ns", "--log", "/b/log.json", "--log-format", "json"]


@pytest.mark.parametrize(
    ("words", "verb", "log"),
    [
        ([*COMMON, "create", "--bundle", "/b", "x"], "create", "/b/log.json"),
        ([*COMMON, "--systemd-cgroup", "kill", "x", "9"], "kill", "/b/log.json"),
        (["--root=/r", "--log=/l", "--debug", "ps", "--format", "json", "x"], "ps", "/l"),
        (["--root", "delete", "start", "kill"], "start", ""),
        (["features"], "features", ""),
        (["--version"], "--version", ""),
        (["-v"], "--version", ""),
        (["start", "--log", "/l", "x"], "start", ""),
        (["--root"], "", ""),
        ([], "", ""),
    ],
)
def test_the_verb_is_the_first_word_that_no_global_option_takes(words: list[str], verb: str, log: str) -> None:
    call = Call(words)
    assert (call.verb, call.log, call.words) == (verb, log, words)


def chosen(steps: Mapping[str, Json], words: list[str], count: int) -> list[Json]:
    plan: dict[str, Json] = {"verbs": dict(steps)}
    check_plan(plan)
    return list(select(plan, Call(words), count))


def test_a_verb_gets_its_steps_in_their_order_and_then_those_of_every_verb() -> None:
    steps: dict[str, Json] = {
        "*": [{"touch": "c"}],
        "kill": [{"touch": "a"}, {"touch": "b"}],
        "start": [{"hang": True}],
    }
    assert chosen(steps, [*COMMON, "kill", "x"], 1) == [{"touch": "a"}, {"touch": "b"}, {"touch": "c"}]
    assert chosen(steps, [*COMMON, "delete", "x"], 1) == [{"touch": "c"}]


@pytest.mark.parametrize(
    ("when", "counts"),
    [
        ({}, [1, 2, 3, 4]),
        ({"times": 2}, [1, 2]),
        ({"times": 0}, []),
        ({"since": 3}, [3, 4]),
        ({"since": 2, "times": 3}, [2, 3]),
    ],
)
def test_a_step_can_be_for_some_calls_only(when: dict[str, Json], counts: list[int]) -> None:
    steps: dict[str, Json] = {"start": [{"fail": 1, **when}]}
    assert [count for count in range(1, 5) if chosen(steps, ["start", "x"], count)] == counts


def test_a_step_can_be_for_one_argument_only() -> None:
    steps: dict[str, Json] = {"kill": [{"hang": True, "only": "9"}]}
    assert chosen(steps, [*COMMON, "kill", "x", "9"], 1)
    assert not chosen(steps, [*COMMON, "kill", "x", "15"], 1)


def test_a_plan_without_steps_lets_everything_through() -> None:
    check_plan({})
    assert select({}, Call(["start", "x"]), 1) == []


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ([], "must be an object"),
        ({"verb": {}}, "a plan has no verb"),
        ({"runtime": 3}, "runtime must be a path"),
        ({"verbs": []}, "verbs an object"),
        ({"verbs": {"kill": {"delay": 1}}}, "steps of kill must be a list"),
        ({"verbs": {"kill": ["hang"]}}, "kill: a step must be an object"),
        ({"verbs": {"kill": [{"dely": 1}]}}, "kill: a step without an action"),
        ({"verbs": {"kill": [{"delay": "1"}]}}, 'delay cannot be "1"'),
        ({"verbs": {"kill": [{"fail": True}]}}, "fail cannot be true"),
        ({"verbs": {"kill": [{"hang": 1}]}}, "hang cannot be 1"),
        ({"verbs": {"kill": [{"delay": 1, "message": "x"}]}}, "delay does not take message"),
        ({"verbs": {"kill": [{"fail": 1, "log": 2}]}}, "log of fail cannot be 2"),
        ({"verbs": {"kill": [{"text": "x", "to": "log"}]}}, "not to log"),
        ({"verbs": {"kill": [{"after": [{"after": []}]}]}}, "after cannot be inside after"),
        ({"verbs": {"kill": [{"after": [{"fail": "1"}]}]}}, 'fail cannot be "1"'),
    ],
)
def test_a_plan_that_says_something_else_is_refused(plan: Json, reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        check_plan(plan)


def test_the_functions_for_tests_make_steps_that_a_plan_may_have() -> None:
    steps: list[Json] = [
        faults.delay(0.5, times=1),
        faults.hang(since=2),
        faults.fail(3, message=b"\xff", log="{half", log_error="why", only="x"),
        faults.die(9),
        faults.text("a", to="stderr"),
        faults.output(1 << 20),
        faults.log(b"junk"),
        faults.log_error("why"),
        faults.leave_child(60, pid_file="pid"),
        faults.record(),
        faults.record("here", environment=["HOME"]),
        faults.lie({"status": "stopped"}),
        faults.touch("reached"),
        faults.wait_for("go"),
        faults.after(faults.touch("ended"), faults.fail(1)),
    ]
    check_plan({"verbs": {"start": steps}})
    assert steps[0] == {"delay": 0.5, "times": 1}
    assert steps[2] == {"fail": 3, "message": "\udcff", "log": "{half", "log_error": "why", "only": "x"}
    assert steps[8] == {"leave_child": 60, "pid_file": "pid"}
    assert steps[9] == {"record": "record", "environment": "*"}
