"""Log lines: their form, and that nobody who fails to read them can hold us up (field-faults H5)."""

from __future__ import annotations

import logging
import os
import re
from typing import TYPE_CHECKING

import pytest

from shim.boot.logs import MAX_LINE_BYTES, FifoHandler, LogfmtFormatter, open_log

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """A logger of its own that reaches no other handler."""
    logger = logging.Logger("test")  # noqa: LOG001 - a registered one would outlive the test
    yield logger
    for handler in logger.handlers:
        handler.close()


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "log", 0o700)
    return tmp_path


def attach(logger: logging.Logger, bundle: Path) -> FifoHandler:
    handler = FifoHandler(open_log(str(bundle)))
    handler.setFormatter(LogfmtFormatter({"namespace": "n", "id": "i"}))
    logger.addHandler(handler)
    return handler


def read(bundle: Path) -> list[str]:
    fd = os.open(bundle / "log", os.O_RDONLY | os.O_NONBLOCK)
    try:
        data = b""
        while True:
            try:
                chunk = os.read(fd, 1 << 16)
            except BlockingIOError:
                return data.decode().splitlines()
            if not chunk:
                return data.decode().splitlines()
            data += chunk
    finally:
        os.close(fd)


def test_line_as_containerd_writes_it(logger: logging.Logger, bundle: Path) -> None:
    attach(logger, bundle)
    logger.info("task %s started", "t1", extra={"pid": 7, "path": "/a/b", "text": 'a "b"\nc'})
    [line] = read(bundle)
    assert re.fullmatch(
        r'time="\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z" level=info msg="task t1 started" '
        r'path=/a/b pid=7 text="a \\"b\\"\\nc" namespace=n id=i',
        line,
    )


def test_traceback_stays_on_its_line(logger: logging.Logger, bundle: Path) -> None:
    attach(logger, bundle)
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        logger.exception("failed")
    [line] = read(bundle)
    assert "level=error msg=failed error=" in line
    assert "ValueError: first\\nsecond" in line


def test_long_line_is_cut_in_the_middle(logger: logging.Logger, bundle: Path) -> None:
    attach(logger, bundle)
    logger.info("é" * 10_000)
    [line] = read(bundle)
    assert len(line.encode()) < MAX_LINE_BYTES
    assert " [cut] " in line
    assert line.startswith("time=")
    assert line.endswith("namespace=n id=i")


def test_unread_lines_are_dropped_counted_and_the_count_is_told(logger: logging.Logger, bundle: Path) -> None:
    handler = attach(logger, bundle)
    for number in range(2000):
        logger.info("line %d %s", number, "x" * 100)
    lost = handler.dropped
    assert lost > 0
    assert len(read(bundle)) == 2000 - lost
    logger.info("again")
    told, again = read(bundle)
    assert f"dropped={lost}" in told
    assert "level=warning" in told
    assert "msg=again" in again
    assert handler.dropped == 0


def test_reader_that_ends_is_no_harm(logger: logging.Logger, bundle: Path) -> None:
    attach(logger, bundle)
    logger.info("one")
    assert len(read(bundle)) == 1
    logger.info("two")
    assert "msg=two" in read(bundle)[0]


def test_wrong_log_call_is_counted_not_raised(logger: logging.Logger, bundle: Path) -> None:
    handler = attach(logger, bundle)
    logger.info("%d", "no number")
    assert handler.dropped == 1


def test_without_a_log_lines_go_nowhere_and_nothing_is_made(logger: logging.Logger, tmp_path: Path) -> None:
    attach(logger, tmp_path)
    logger.info("one")
    assert list(tmp_path.iterdir()) == []


def test_closed_log_drops(logger: logging.Logger, bundle: Path) -> None:
    handler = attach(logger, bundle)
    handler.close()
    logger.info("late")
    assert handler.dropped == 1
