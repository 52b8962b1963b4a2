from __future__ import annotations

import pytest

from shim.cli.main import run_program
from shim.cli.outcome import line_of, status_of_create
from shim.errors import DeadlineExceeded, InvalidArgument, NotFound, Unknown

RUNC = "OCI runtime create failed: runc create failed: unable to start container process: "


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (RUNC + 'exec: "nope": executable file not found in $PATH', 127),
        (RUNC + 'exec: "/nope": stat /nope: no such file or directory', 127),
        (RUNC + 'error during container init: exec: "/nope": stat /nope: no such file or directory', 127),
        (RUNC + 'exec: "/etc/passwd": permission denied', 126),
        (RUNC + 'exec: "/etc": is a directory', 126),
        (RUNC + 'chdir to cwd ("/x") set in config.json failed: no such file or directory', 125),
        (RUNC + "error mounting /x to rootfs: no such file or directory", 125),
        ("failed to start shim: permission denied", 125),
    ],
)
def test_the_status_says_whether_the_command_was_found(text: str, status: int) -> None:
    assert status_of_create(Unknown(text)) == status


def test_a_failure_is_one_line() -> None:
    assert line_of(Unknown("a\n  b\n")) == "a; b"
    assert line_of(NotFound("task t1")) == "task t1: not found"
    assert line_of(InvalidArgument("give --x")) == "give --x"
    assert line_of(DeadlineExceeded("within 5 s")) == "within 5 s"
    assert line_of(PermissionError(13, "Permission denied", "/run/x")) == "Permission denied: /run/x"
    assert line_of(ValueError("v")) == "ValueError: v"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run"], "Missing argument"),
        (["run", "--nope", "x"], "No such option"),
        (["nope"], "No such command"),
        (["--namespace", "a/b", "run", "true"], "namespace 'a/b' is no identifier"),
        (["run", "--id", "../x", "true"], "task id '../x' is no identifier"),
        (["run", "-e", "x", "true"], "must be NAME=VALUE"),
        (["run", "--rootfs", "/nonexistent", "true"], "does not exist"),
        (["--state", "/", "run", "true"], "the state directory must be a plain absolute path"),
    ],
)
def test_wrong_arguments_end_with_125_and_one_line(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_program(arguments) == 125
    captured = capsys.readouterr()
    assert captured.out == ""
    assert text in captured.err
    assert captured.err.count("\n") == 1


def test_help_and_version_end_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_program(["--help"]) == run_program(["run", "--help"]) == run_program(["--version"]) == 0
    assert "Exit status" in capsys.readouterr().out


def test_the_commands_own_options_are_left_to_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert run_program(["run", "ls", "-l", "--nope"]) == run_program(["run", "--", "-x"]) == 125
    assert capsys.readouterr().err == "shimctl: containers need root: run shimctl with sudo\n" * 2
