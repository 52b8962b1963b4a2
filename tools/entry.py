"""What an installed program runs: copied by tools/make_build.py to <build>/entry/NAME.py, never imported.

Python arrives here isolated and without its site module, so the module path is exactly the standard library; the
build's own `lib` is added last, where it can hide nothing.  Before anything else the process says that it uses this
build: a shared lock on the build's directory, kept open by every process forked from here, stops an uninstall from
taking the files away under it.  Nothing is written into the build.
"""

from __future__ import annotations

import contextlib
import fcntl
import posix
import sys

build, _, name = __file__.rpartition("/entry/")
program = name.removesuffix(".py")
sys.dont_write_bytecode = True
sys.path.append(f"{build}/lib")
sys.argv[0] = f"{build}/bin/{program}"
# An exec closes it: the runtime and its children must not hold the build.  Its number is above those of the standard
# descriptors, which the caller may have left closed.  A file system without locks is no reason not to start: who uses a
# build is also seen in /proc.
with contextlib.suppress(OSError):
    opened_fd = posix.open(build, posix.O_RDONLY | posix.O_CLOEXEC)
    fcntl.flock(fcntl.fcntl(opened_fd, fcntl.F_DUPFD_CLOEXEC, 3), fcntl.LOCK_SH)
    posix.close(opened_fd)

if program == "shimctl":
    from shim.cli.main import main as shimctl

    shimctl()
elif program == "shim-faultrun":
    from shim.verify.faultrun import main as faultrun

    faultrun()
elif sys.argv[1:2] == ["--template"]:
    from shim.boot.template import run_template

    run_template(sys.argv[2])
else:
    from shim.boot.main import main as shim

    shim()
