"""The native calls of mounts as far as they need no root: what they refuse, and that they leave nothing."""

from __future__ import annotations

import errno
import os
import signal
from typing import TYPE_CHECKING

import pytest

from shim.kernel import native
from shim.kernel.fds import OwnedFd

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("in/file", 0),
        (".", 0),
        ("in/../in", 0),
        ("stays", 0),
        ("missing", errno.ENOENT),
        ("in/file/x", errno.ENOTDIR),
        ("..", errno.EXDEV),
        ("in/../../in", errno.EXDEV),
        ("/etc", errno.EXDEV),
        ("out", errno.EXDEV),
        ("absolute", errno.EXDEV),
        ("loop", errno.ELOOP),
    ],
)
def test_nothing_is_opened_outside(tmp_path: Path, path: str, code: int) -> None:
    root = tmp_path / "root"
    (root / "in").mkdir(parents=True)
    (root / "in" / "file").touch()
    (root / "stays").symlink_to("in/file")
    (root / "out").symlink_to("../root/in")
    (root / "absolute").symlink_to(root / "in")
    (root / "loop").symlink_to("loop")
    with OwnedFd(os.open(root, os.O_PATH)) as opened:
        if code:
            with pytest.raises(OSError, match="find") as caught:
                native.open_beneath(opened.fileno(), path, os.O_PATH)
            assert caught.value.errno == code
        else:
            with OwnedFd(native.open_beneath(opened.fileno(), path, os.O_PATH)) as found:
                assert not os.get_inheritable(found.fileno())


def test_a_link_of_proc_is_not_followed() -> None:
    with OwnedFd(os.open("/proc/self", os.O_PATH)) as opened, pytest.raises(OSError, match="find") as caught:
        native.open_beneath(opened.fileno(), "root/etc", os.O_PATH)
    assert caught.value.errno in {errno.ELOOP, errno.EXDEV}


def test_a_mount_from_elsewhere_leaves_the_working_directory(tmp_path: Path) -> None:
    before = os.getcwd()
    with OwnedFd(os.open(tmp_path, os.O_PATH)) as directory:
        for target in ("missing", str(tmp_path / "missing")):
            with pytest.raises(OSError, match="mount tmpfs"):
                native.mount_from(directory.fileno(), "x", target, "tmpfs", 0, "size=4k")
    with OwnedFd(os.open("/dev/null", os.O_RDONLY)) as file, pytest.raises(OSError, match="mount") as caught:
        native.mount_from(file.fileno(), "x", ".", "tmpfs", 0, "")
    assert caught.value.errno == errno.ENOTDIR
    assert os.getcwd() == before


@pytest.mark.parametrize("bad", ["", "nonsense\n", "0 0 0\n", "0 1 1\n0 2 1\n"])
def test_a_namespace_with_a_bad_map_is_not_made(bad: str) -> None:
    with pytest.raises(OSError, match="make a user namespace"):
        native.userns_open(bad, "0 0 1\n")
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert mask == set()


def test_a_namespace_of_ones_own_id() -> None:
    """Whoever may do it gets a namespace; the process that carried it is gone, and was no child to wait for."""
    try:
        made = OwnedFd(native.userns_open(f"0 {os.geteuid()} 1\n", f"0 {os.getegid()} 1\n"))
    except PermissionError:
        return  # a machine that leaves no user namespaces to its users; the fixture still looks at what is left
    with made:
        assert os.readlink(f"/proc/self/fd/{made.fileno()}") != os.readlink("/proc/self/ns/user")
        assert not os.get_inheritable(made.fileno())
    with pytest.raises(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)


def test_what_needs_rights_or_sense_says_what_was_tried(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="copy the mount at"):
        native.tree_copy(str(tmp_path / "missing"), recursive=False)
    with pytest.raises(OSError, match="mount no-such-kind"):
        native.context_open("no-such-kind")
    with OwnedFd(os.open(tmp_path, os.O_PATH)) as directory:
        number = directory.fileno()
        with pytest.raises(OSError, match="attach a mount"):
            native.tree_attach(number, number)
        with pytest.raises(OSError, match="change a mount"):
            native.tree_change(number, set_flags=1 << 40)
        with pytest.raises(OSError, match="map the ids of a mount"):
            native.tree_change(number, set_flags=0x100000, userns_fd=number)
        for value in ("x", None, number):
            with pytest.raises(OSError, match="mount option key"):
                native.context_set(number, "key", value)
        with pytest.raises(OSError, match="make a file system"):
            native.context_create(number, 0)
        with pytest.raises(OSError, match="ask a loop device"):
            native.loop_identify(number)
