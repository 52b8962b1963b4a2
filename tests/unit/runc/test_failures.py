"""What the runtime's own words are taken for."""

from __future__ import annotations

import pytest

from shim.errors import NotFound, ShimError
from shim.runc.failures import RuntimeFailure, last_error, of_command, of_kill


@pytest.mark.parametrize(
    ("said", "kind", "told"),
    [
        ("container not running", NotFound, "process already finished"),
        ("os: process already finished", NotFound, "process already finished"),
        ("open pidfd: No such process", NotFound, "process already finished"),
        ("container does not exist", NotFound, "no such container"),
        ("error opening file `/run/crun/x/status`: No such file or directory", NotFound, "no such container"),
        ("error opening file '/run/crun/x/config.json': No such file or directory", RuntimeFailure, "unknown error"),
        ("permission denied", RuntimeFailure, "unknown error after kill: permission denied"),
    ],
)
def test_words_of_a_failed_kill(said: str, kind: type[ShimError], told: str) -> None:
    error = of_kill(said)
    assert type(error) is kind
    assert error.message.startswith(told)


@pytest.mark.parametrize(
    ("log", "found"),
    [
        (b"", None),
        (b'{"level":"info","msg":"fine"}', None),
        (b'{"level":"error","msg":" trimmed \\n"}', "trimmed"),
        (b'{"level":"error","msg":"first"}\n{"level":"error","msg":"last"}\n', "last"),
        (b'{"level":"error","msg":"first"}{"level":"error","msg":"last"}', "last"),
        (b'{"level":"error","msg":"whole"}\n{"level":"error","msg":"ha', "whole"),
        (b'junk {"level":"error","msg":"after junk"} \xff\xfe\x00', "after junk"),
        (b'{"level":"error","msg":7}\n[]\nnull\n{"level":"error"}', None),
        (b"{" * 256_000, None),
        (b'{"level":"error","msg":"before"}\n' + b'{"a":' * 50_000, "before"),
        (b'{"level":"info","msg":"x"}' * 9_000 + b'{"level":"error","msg":"far behind"}', "far behind"),
        (b'{"level":"error","msg":"' + b"[" * 100_000 + b'"}', None),
    ],
)
def test_last_error_of_a_log(log: bytes, found: str | None) -> None:
    reason = last_error(log)
    if log.endswith(b'["}'):
        assert reason is not None
        assert len(reason) < 20_000
        return
    assert reason == found


def test_reason_is_the_logs_else_the_output() -> None:
    log = b'{"level":"error","msg":"logged"}'
    assert of_command("OCI x failed", "runc", 1, b"said", log).message == "OCI x failed: logged"
    plain = of_command("OCI x failed", "runc", 1, b"said\n", b"")
    assert plain.message == "OCI x failed: runc did not terminate successfully: exit status 1: said"
    unread = of_command("OCI x failed", "runc", 1, b"said", PermissionError(13, "Permission denied"))
    assert unread.message.startswith("OCI x failed: unable to retrieve OCI runtime error ([Errno 13] Permission denied")
    assert unread.message.endswith("exit status 1: said")


def test_text_is_bounded() -> None:
    error = of_command("OCI x failed", "runc", 1, b"begin " + b"x" * 1_000_000 + b" end", b"")
    assert len(error.message) < 20_000
    assert "begin" in error.message
    assert error.message.endswith("end")
