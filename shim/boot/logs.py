"""The shim's log: one line a fact, in containerd's own form, to the fifo that containerd reads (protocol.md 2.8).

The fifo is opened for both directions and non-blocking, so that opening never waits for a reader, writing never waits
for one that sleeps, and a reader that ends does not kill us (field-faults H5).  A line that does not fit is dropped
and counted, and the count is said as soon as a line fits again.  A line is at most PIPE_BUF bytes, so it arrives whole
or not at all, even with several writers on the fifo.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from typing import Final

MAX_LINE_BYTES: Final = 4096
"""PIPE_BUF: what the kernel writes to a pipe in one piece."""
FILE_NAME: Final = "log"
_PLAIN: Final = re.compile(r"[A-Za-z0-9._/@^+-]+")
_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_LEVELS: Final = {
    logging.DEBUG: "debug",
    logging.INFO: "info",
    logging.WARNING: "warning",
    logging.ERROR: "error",
    logging.CRITICAL: "fatal",
}
_CUT: Final = " [cut] "


class LogfmtFormatter(logging.Formatter):
    """`time="..." level=info msg="..." key=value`: the keys are `constant` ones and those given by `extra=`."""

    def __init__(self, constant: dict[str, str] | None = None) -> None:
        super().__init__()
        self._constant = dict(constant or {})

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line without its newline."""
        fields: dict[str, object] = {"level": _LEVELS.get(record.levelno, record.levelname.lower())}
        fields["msg"] = record.getMessage()
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        fields |= {key: value for key, value in sorted(record.__dict__.items()) if key not in _STANDARD}
        fields |= {key: value for key, value in self._constant.items() if key not in fields}
        words = [f'time="{_rfc3339(record.created)}"']
        words += [f"{key}={_quoted(str(value))}" for key, value in fields.items()]
        return " ".join(words)


class FifoHandler(logging.Handler):
    """Writes lines to one descriptor and never waits for it; owns the descriptor."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self.fd = fd
        self.dropped = 0
        """Lines lost since the last one that could be written."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, or count it as dropped."""
        try:
            line = _bounded(self.format(record))
        except Exception:  # a log call with wrong arguments must not end the task that made it
            self.dropped += 1
            return
        if self.dropped and self._write(_bounded(self._loss())):
            self.dropped = 0
        if self.dropped or not self._write(line):
            self.dropped += 1

    def close(self) -> None:
        """Close the descriptor; later lines are dropped."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
        super().close()

    def _write(self, line: bytes) -> bool:
        if self.fd < 0:
            return False
        try:
            return os.write(self.fd, line) == len(line)
        except OSError:  # full, or a disk that is
            return False

    def _loss(self) -> str:
        message = "log lines were dropped because nobody read them"
        record = logging.makeLogRecord(
            {"levelno": logging.WARNING, "created": time.time(), "msg": message, "dropped": self.dropped}
        )
        return self.format(record)


def open_log(bundle: str) -> int:
    """The descriptor of the bundle's log, or of /dev/null where there is none; opening never waits."""
    flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_APPEND | os.O_NOCTTY
    try:
        return os.open(os.path.join(bundle, FILE_NAME), flags)
    except OSError:
        return os.open(os.devnull, flags)


def start_logging(fd: int, *, debug: bool, constant: dict[str, str]) -> FifoHandler:
    """Send everything that is logged in this process to `fd`, which is owned by the handler from now on."""
    handler = FifoHandler(fd)
    handler.setFormatter(LogfmtFormatter(constant))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if debug else logging.INFO)
    return handler


def report(bundle: str, message: str, error: BaseException) -> None:
    """One line about a failure in the log of `bundle`, from a process that has no logging of its own yet."""
    handler = FifoHandler(open_log(bundle))
    handler.setFormatter(LogfmtFormatter())
    fields = {"levelno": logging.CRITICAL, "msg": message, "exc_info": (type(error), error, error.__traceback__)}
    handler.emit(logging.makeLogRecord(fields))
    handler.close()


def _quoted(text: str) -> str:
    """`text` bare where that is unambiguous, else as a JSON string: one line whatever it holds."""
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _rfc3339(seconds: float) -> str:
    whole, rest = divmod(round(seconds * 1_000_000), 1_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{rest:06d}Z"


def _bounded(line: str) -> bytes:
    """The line with its newline, its middle cut out when it is too long: a traceback says most at its two ends."""
    data = line.encode(errors="backslashreplace")
    if len(data) >= MAX_LINE_BYTES:
        half = (MAX_LINE_BYTES - len(_CUT) - 1) // 2
        middle = _CUT.encode()
        data = _whole_characters(data[:half]) + middle + _whole_characters(data[-half:])
    return data + b"\n"


def _whole_characters(data: bytes) -> bytes:
    return data.decode(errors="ignore").encode()
