"""Loop devices as a test sees them, and root file systems that lie in an image."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shim.wire.proto.mount_pb2 import Mount

if TYPE_CHECKING:
    from collections.abc import Mapping

IMAGE_BYTES: Final = 12 << 20


def loop_table() -> Mapping[str, str]:
    """Every loop device in use on this machine, and the file behind it."""
    found = {}
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            found[backing.parts[3]] = backing.read_text().strip()
        except OSError:  # freed since it was listed
            continue
    return found


def loops_below(directory: Path) -> Mapping[str, str]:
    """Those whose file is below `directory`."""
    return {name: file for name, file in loop_table().items() if file.startswith(f"{directory}/")}


def make_root_image(path: Path, rootfs: Path) -> Path:
    """A new ext4 image that holds what is in `rootfs`."""
    with path.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    subprocess.run(
        ["mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", "-d", str(rootfs), str(path)],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return path


def copy_image(image: Path, path: Path) -> Path:
    """One more image of the same content."""
    shutil.copyfile(image, path)
    return path


def image_mount(image: Path) -> Mount:
    """The image as a root file system, on a loop device that whoever mounts it sets up."""
    return Mount(type="ext4", source=str(image), options=["loop"])
