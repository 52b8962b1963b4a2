"""The program: which of its faces is wanted, and how a failure is told (protocol.md 2.2).

Exit codes: 0 done; 1 failed, with one line on standard error; 2 the command line cannot be read, with the usage text.
Each face is imported when it is chosen: `start` must not wait for what only the others use, and none of these
processes lives long enough to meet an upgrade on disk (the server's imports are in `shim.boot.serve`).
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from typing import TYPE_CHECKING, NoReturn

from shim.boot.caller import Caller
from shim.boot.detach import ensure_standard_fds
from shim.boot.flags import UsageError, parse_flags, usage
from shim.boot.stdio import write_fd
from shim.boot.version import PROGRAM, version_text
from shim.errors import InvalidArgument, ShimError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shim.boot.flags import Flags


def main() -> NoReturn:
    """The program.  Ends the process: nothing is buffered, and taking the interpreter apart costs the caller time."""
    os._exit(run(sys.argv[1:]))  # noqa: TID251 - the end of every short command


def run(arguments: Sequence[str], caller: Caller | None = None) -> int:
    """Do what `arguments` ask for; the exit code.  Without a `caller` it is our own parent who asked."""
    ensure_standard_fds()
    try:
        flags = parse_flags(arguments)
    except UsageError as error:
        _say(2, f"{error}\n{usage()}")
        return 2
    try:
        return _run(flags, caller or Caller(os.getppid()))
    except (ShimError, OSError) as error:
        _say(2, f"{PROGRAM}: {error}\n")
    except Exception:
        _say(2, f"{PROGRAM}: internal failure\n{traceback.format_exc()}")
    return 1


def _run(flags: Flags, caller: Caller) -> int:
    if flags.help:
        _say(1, usage())
    elif flags.version:
        _say(1, version_text())
    elif flags.info:
        from shim.boot.info import run_info

        run_info()
    elif flags.action == "start":
        from shim.boot.start import run_start

        run_start(flags, caller)
    elif flags.action == "delete":
        from shim.boot.delete import run_delete

        run_delete(flags)
    elif not flags.action:
        flags.check_identity()
        from shim.boot.serve import run_serve

        run_serve(flags)
    else:
        raise InvalidArgument(f"unknown action {flags.action!a:.80}: start, delete, or none to serve")
    return 0


def _say(fd: int, text: str) -> None:
    with contextlib.suppress(OSError):  # nobody listens, and there is nobody else to tell
        write_fd(fd, text.encode(errors="backslashreplace"))


if __name__ == "__main__":
    main()
