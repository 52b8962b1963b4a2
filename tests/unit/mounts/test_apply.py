"""All or nothing, and what can be refused is refused before the first mount."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from shim.errors import InvalidArgument, Unimplemented, Unknown
from shim.kernel import mounts as kernel
from shim.kernel.mounts import Unmounted
from shim.model.mounts import Mount
from shim.mounts import handlers
from shim.mounts.apply import mount_all
from shim.mounts.handlers import Made
from shim.mounts.room import room_threads

if TYPE_CHECKING:
    from shim.model.mount_options import MountOptions


class Recorder:
    """What is mounted, in order; sources named `bad` are refused."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mounted: list[str] = []
        self.log: list[str] = []
        monkeypatch.setattr(handlers, "make", self.make)
        monkeypatch.setattr(kernel, "unmount", self.unmount)

    def make(self, mount: Mount, options: MountOptions, rootfs: str, *, hold: bool = False) -> Made:
        assert not hold
        if mount.source == "bad":
            raise OSError(19, "mount it: No such device")
        point = f"{rootfs}{mount.target}"
        self.mounted.append(point)
        return Made(point)

    def unmount(self, target: str, *, sync: bool = False, detach: bool = False) -> Unmounted:
        self.log.append(target)
        self.mounted.remove(target)
        return Unmounted(target, 0, 0, 0, 0)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(monkeypatch)


async def test_in_order(recorder: Recorder) -> None:
    await mount_all([Mount("tmpfs", "a"), Mount("bind", "b", "/x", ("bind",))], "/r")
    assert recorder.mounted == ["/r", "/r/x"]


async def test_a_failure_undoes_the_others_last_first(recorder: Recorder) -> None:
    with pytest.raises(Unknown, match="failed to mount rootfs component: mount it: No such device"):
        await mount_all([Mount("tmpfs", "a"), Mount("tmpfs", "b", "/x"), Mount("tmpfs", "bad")], "/r")
    assert recorder.mounted == []
    assert recorder.log == ["/r/x", "/r"]


@pytest.mark.parametrize(
    ("mount", "leaf"),
    [
        (Mount("other/overlay", ""), Unimplemented),
        (Mount("format/other/overlay", ""), Unimplemented),
        (Mount("format/", ""), Unimplemented),
        (Mount("mkdir/fuse.x", ""), Unimplemented),
        (Mount("", ""), Unimplemented),
        (Mount("fuse3.x", ""), Unimplemented),
        (Mount("bind", "", options=("uidmap=0:1:1",)), InvalidArgument),
        (Mount("bind", "", options=("uidmap=0:1:1", "gidmap=0:1")), InvalidArgument),
        (Mount("bind", "", options=("remount", "uidmap=0:1:1", "gidmap=0:1:1")), InvalidArgument),
        (Mount("overlay", "", options=("lowerdir={{ mount 0 }}",)), InvalidArgument),
        (Mount("overlay", "", options=("lowerdir=/a", "volatile" * 600)), InvalidArgument),
        (Mount("bind", "", options=("X-containerd.mkdir.path=/a",)), InvalidArgument),
    ],
)
async def test_refused_before_anything_is_mounted(recorder: Recorder, mount: Mount, leaf: type[Exception]) -> None:
    with pytest.raises(leaf):
        await mount_all([Mount("tmpfs", "a"), mount], "/r")
    assert recorder.log == recorder.mounted == []


async def test_one_set_of_threads_for_a_run(recorder: Recorder) -> None:
    assert room_threads() is room_threads()
    with trio.CancelScope() as scope:
        scope.cancel()
        await mount_all([Mount("tmpfs", "a")], "/r")
    assert recorder.mounted == []
