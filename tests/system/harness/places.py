"""Where a run of the system suite lives: one short directory, one private mount namespace, one cgroup prefix.

The private namespace is what makes the census exact: every mount in it, every process that uses it and everything
under its own `/run/containerd` was made by this run.  Another run on the same machine, or the machine's own
containerd, is never seen and never touched.  Refuses to run without the rights that need root.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

import attrs

CLONE_NEWNS: Final = 0x00020000
MS_REC: Final = 0x4000
MS_PRIVATE: Final = 1 << 18

CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
RUN_CONTAINERD: Final = Path("/run/containerd")
TEMPLATE_RUN_DIR: Final = Path("/run/containerd-shim-trio")


@attrs.frozen
class Places:
    """The directories of one run."""

    root: Path
    """Short on purpose: socket paths under it must stay below 107 bytes, and a socket directory below 43."""
    cgroup_prefix: str
    """Name of the directory in every cgroup hierarchy under which the containers of this run are put."""

    def cgroup_path(self, name: str) -> str:
        """The `cgroupsPath` for a spec."""
        return f"/{self.cgroup_prefix}/{name}"

    def cgroup_directories(self) -> list[Path]:
        """What is left below the prefix now, in whichever hierarchy."""
        bases = [path / self.cgroup_prefix for path in CGROUP_ROOT.iterdir() if path.is_dir()]
        bases.append(CGROUP_ROOT / self.cgroup_prefix)
        return sorted({child for base in bases if base.is_dir() for child in base.rglob("*") if child.is_dir()})


def _checked(result: int, what: str) -> None:
    if result != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"{what}: {os.strerror(errno)}")


def enter_private_mounts() -> None:
    """Give the calling thread a mount namespace of its own, with an empty `/run/containerd`.

    Called from the main thread before any test; threads and processes that are started later inherit it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    _checked(libc.unshare(CLONE_NEWNS), "unshare the mount namespace")
    _checked(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "make every mount private")
    for directory, mode in ((RUN_CONTAINERD, 0o711), (TEMPLATE_RUN_DIR, 0o700)):
        # The mount point stays behind on the machine, whose own shims use it: with a wider mode they could not.
        directory.mkdir(mode=mode, parents=True, exist_ok=True)
        options = f"mode={mode:o}".encode()
        _checked(libc.mount(b"none", os.fsencode(directory), b"tmpfs", 0, options), f"mount a tmpfs on {directory}")


def make_places() -> Places:
    """The directories for this run; `remove_places` takes them away."""
    root = Path(tempfile.mkdtemp(prefix="st-", dir="/tmp"))
    root.chmod(0o755)
    return Places(root, f"shim-test-{os.getpid()}")


def remove_places(places: Places) -> None:
    """Take the run's own cgroup directories and files away; OSError when something still uses them."""
    bases = [path / places.cgroup_prefix for path in CGROUP_ROOT.iterdir() if path.is_dir()]
    for base in [*bases, CGROUP_ROOT / places.cgroup_prefix]:
        if base.is_dir():
            for directory in sorted(base.rglob("*"), reverse=True):
                if directory.is_dir():
                    directory.rmdir()
            base.rmdir()
    shutil.rmtree(places.root)
