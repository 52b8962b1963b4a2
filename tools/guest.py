"""Run tests of the system suite on a kernel whose only cgroups are v2, whatever this machine has (root).

The kernel is user-mode Linux, a program (`linux.uml`, Debian's package user-mode-linux; SHIM_GUEST_KERNEL names another
one), so neither virtualization nor an image is needed: the guest's root is this machine's, read-only, with empty
temporary file systems on /tmp and /run.  What this does not show: huge pages, pressure figures and real disks, which
that kernel does not have.

    .venv/bin/python -m tools.guest tests/system/test_oom.py tests/system/test_stats.py
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
MEMORY: Final = "700M"
"""The guest's memory, taken from /dev/shm as it is used; the largest test keeps some 50 MB busy."""
SECONDS: Final = 1800.0
"""Budget of the whole run: a guest is about ten times slower than its machine."""
MARK: Final = "guest status:"
INIT: Final = """#!/bin/sh
export PATH={path} HOME={home} PYTHONDONTWRITEBYTECODE=1 SHIM_PEERS_DIR={peers} SHIM_UNDER_TEST={subject}
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /tmp
mkdir -p /tmp/home
for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do
    echo "+$controller" > /sys/fs/cgroup/cgroup.subtree_control
done
cd {root}
{python} -m pytest -p no:cacheprovider {arguments}
echo "{mark} $?"
exec {python} -c 'import ctypes; ctypes.CDLL(None).reboot(0x4321fedc)'
"""


def init_script(arguments: list[str]) -> str:
    """The guest's first process: mounts, the tests, power off."""
    return INIT.format(
        path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        home="/tmp/home",
        peers=shlex.quote(os.environ.get("SHIM_PEERS_DIR", str(Path.home() / ".cache/containerd-shim-trio/peers"))),
        subject=shlex.quote(os.environ.get("SHIM_UNDER_TEST", "")),
        root=shlex.quote(str(ROOT)),
        python=shlex.quote(str(ROOT / ".venv/bin/python")),
        arguments=shlex.join(arguments),
        mark=MARK,
    )


def status_of(output: str) -> int:
    """What the tests exited with; 1 when the guest ended before it could say."""
    for line in reversed(output.splitlines()):
        if line.startswith(MARK):
            word = line.removeprefix(MARK).strip()
            return int(word) if word.isdecimal() else 1
    return 1


def main(arguments: list[str]) -> int:
    """Run pytest with `arguments` in a guest; its exit status."""
    kernel = os.environ.get("SHIM_GUEST_KERNEL") or shutil.which("linux.uml")
    if kernel is None:
        print("no guest kernel: install user-mode-linux, or name a linux.uml in SHIM_GUEST_KERNEL", file=sys.stderr)
        return 2
    # Not below /tmp, which the guest covers; the guest's memory is a file, which /dev/shm keeps off the disk.
    with tempfile.TemporaryDirectory(prefix="shim-guest-", dir="/var/tmp") as scratch:
        script = Path(scratch) / "init"
        script.write_text(init_script(arguments))
        script.chmod(0o755)
        words = [kernel, f"mem={MEMORY}", "root=98:0", "rootfstype=hostfs", "rootflags=/", "ro", f"init={script}"]
        with subprocess.Popen(
            [*words, "con=null", "con0=null,fd:1", "quiet"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": "/dev/shm"},
            start_new_session=True,
            text=True,
            errors="replace",
        ) as guest:
            try:
                output, _ = guest.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(guest.pid, 9)
                output, _ = guest.communicate()
                print(f"the guest did not end within {SECONDS:.0f} s", file=sys.stderr)
    print(output)
    return status_of(output)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
