"""All or nothing, and what can be refused is refused before the first mount."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from shim.errors import InvalidArgument, ShimError, Unimplemented, Unknown
from shim.kernel import mounts as kernel
from shim.kernel.mounts import Unmounted
from shim.model.mount_types import check_plain, has_template, split_type
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


some_texts = st.sampled_from(
    ["/s", "{{ mount 0 }}", "{{ overlay 0 1 }}/x", "{{ source 7 }}", "{{", "{{ no }}", "/a/{{b}}"]
)
some_options = st.lists(
    st.one_of(
        some_texts.map(lambda text: f"lowerdir={text}"),
        st.sampled_from(["ro", "X-containerd.mkdir.path=/a", "X-containerd.mkfs.size=1m", "X-containerd.dmverity=/a"]),
    ),
    max_size=3,
)
some_types = st.lists(
    st.sampled_from(["format", "mkdir", "mkfs", "other", "overlay", "tmpfs", ""]), min_size=1, max_size=4
)


@given(st.lists(st.builds(Mount, some_types.map("/".join), some_texts, st.just(""), some_options), max_size=4))
async def test_only_plain_mounts_are_made(mounts: list[Mount]) -> None:
    """No transform, no template and no option of the manager reaches a handler, and a refusal leaves nothing."""
    made: list[Mount] = []
    with pytest.MonkeyPatch.context() as patched:
        recorder = Recorder(patched)

        def make(mount: Mount, options: MountOptions, rootfs: str, *, hold: bool = False) -> Made:
            made.append(mount)
            recorder.mounted.append("/r")
            return Made("/r")

        patched.setattr(handlers, "make", make)
        try:
            await mount_all(mounts, "/r")
        except ShimError:
            assert recorder.mounted == []
        else:
            assert [split_type(mount.type).kind for mount in mounts] == [mount.type for mount in made]
    for mount in made:
        check_plain(mount)
        assert not any(has_template(text) for text in (mount.source, *mount.options))
