"""A logger that behaves as its arguments say: pairs of name and value, as a `binary://` URI gives them.

out, err: files for the two streams.  report: a file for argv, environment and descriptors.  ready: `signal` (default),
`close` (no byte), `never`, `exit` (end at once with status 1).  pid: a file for the process id.  slow: seconds to work
on after the end of the input; then `done` is a file to make.  deaf: `term` ignores SIGTERM, `eof` never ends by itself.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time

CHUNK = 65536


def describe() -> str:
    """How this process was started."""
    descriptors: dict[str, str] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            descriptors[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the one that lists them
            continue
    found = {
        "argv": sys.argv[1:],
        # What a shell on the way adds is not the shim's.
        "environment": {
            key: value for key, value in os.environ.items() if key not in {"PWD", "SHLVL", "_", "LC_CTYPE"}
        },
        "descriptors": descriptors,
        "directory": os.getcwd(),
    }
    return json.dumps(found)


def pump(sources: dict[int, str | None]) -> None:
    """Copy each stream to its file, or nowhere, until all have ended."""
    pending = {
        fd: os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) if path else -1 for fd, path in sources.items()
    }
    poll = select.poll()
    for fd in pending:
        poll.register(fd, select.POLLIN)
    while pending:
        for fd, _ in poll.poll():
            data = os.read(fd, CHUNK)
            if not data:
                poll.unregister(fd)
                del pending[fd]
            elif pending[fd] >= 0:
                os.write(pending[fd], data)


def main() -> None:
    """Behave."""
    words = sys.argv[1:]
    wanted = dict(zip(words[::2], words[1::2], strict=True))
    if "pid" in wanted:
        with open(wanted["pid"], "w") as file:
            file.write(str(os.getpid()))
    if "report" in wanted:
        report = describe()
        with open(wanted["report"], "w") as file:
            file.write(report)
    deaf = wanted.get("deaf", "")
    if "term" in deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready = wanted.get("ready", "signal")
    if ready == "exit":
        sys.exit(1)
    if ready == "never":
        time.sleep(1000)
    if ready == "signal":
        os.write(5, b"\0")
    os.close(5)
    pump({3: wanted.get("out"), 4: wanted.get("err")})
    if "eof" in deaf:
        time.sleep(1000)
    time.sleep(float(wanted.get("slow", "0")))
    if "done" in wanted:
        with open(wanted["done"], "w") as file:
            file.write("done")


if __name__ == "__main__":
    main()
