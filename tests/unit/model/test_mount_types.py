"""Types taken apart, and what is stopped before the kernel (row S1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim.errors import InvalidArgument, ShimError, Unimplemented
from shim.model.mount_types import TRANSFORMS, check_options, check_plain, has_template, split_type
from shim.model.mounts import Mount


@pytest.mark.parametrize(
    ("text", "transforms", "kind"),
    [
        ("overlay", (), "overlay"),
        ("format/overlay", ("format",), "overlay"),
        ("format/mkdir/overlay", ("format", "mkdir"), "overlay"),
        ("mkdir/format/mkdir/bind", ("mkdir", "format", "mkdir"), "bind"),
        ("mkfs/fuse.x", ("mkfs",), "fuse.x"),
        ("other/overlay", (), "other/overlay"),
        ("format/other/mkdir/overlay", ("format",), "other/mkdir/overlay"),
        ("format", (), "format"),
        ("format/", ("format",), ""),
        ("/overlay", (), "/overlay"),
        ("", (), ""),
    ],
)
def test_left_to_right_until_a_name_that_is_no_transform(text: str, transforms: tuple[str, ...], kind: str) -> None:
    parsed = split_type(text)
    assert (parsed.transforms, parsed.kind) == (transforms, kind)
    assert parsed.text() == text
    assert parsed.is_known == (kind in {"overlay", "bind", "fuse.x", "format"})


def test_only_known_transforms_count() -> None:
    assert split_type("format/mkdir/overlay", {"format"}).kind == "mkdir/overlay"


def test_the_rest_after_some_transforms() -> None:
    assert split_type("format/mkdir/overlay").without(1).text() == "mkdir/overlay"
    assert split_type("format/mkdir/overlay").without(2).text() == "overlay"


@given(st.lists(st.sampled_from([*TRANSFORMS, "x", "", "overlay"]), min_size=1).map("/".join))
def test_nothing_of_a_type_is_lost(text: str) -> None:
    parsed = split_type(text)
    assert parsed.text() == text
    assert all(parsed.without(count).transforms == parsed.transforms[count:] for count in range(3))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("lowerdir={{ overlay 1 0 }}", True),
        ("{{mount 0}}", True),
        ("{{- source 0 -}}", True),
        ("/a/{{name}}", False),
        ("/a/{{", False),
        ("/a/{{ mounts 0 }}", False),
        ("{ { mount 0 } }", False),
    ],
)
def test_template_text_is_known_when_seen(text: str, found: bool) -> None:
    assert has_template(text) is found


@pytest.mark.parametrize(
    ("mount", "leaf"),
    [
        (Mount("format/overlay", "overlay"), Unimplemented),
        (Mount("other/overlay", "overlay"), Unimplemented),
        (Mount("", "x"), InvalidArgument),
        (Mount("overlay", "overlay", options=("lowerdir={{ overlay 0 1 }}",)), InvalidArgument),
        (Mount("bind", "{{ mount 0 }}/x", options=("rbind",)), InvalidArgument),
        (Mount("bind", "/a", "{{target 0}}", ("rbind",)), InvalidArgument),
        (Mount("bind", "/a", options=("X-containerd.mkdir.path=/a",)), InvalidArgument),
        (Mount("erofs", "/a", options=("X-containerd.dmverity=/a",)), InvalidArgument),
    ],
)
def test_what_is_not_for_the_kernel_is_refused(mount: Mount, leaf: type[ShimError]) -> None:
    with pytest.raises(leaf):
        check_plain(mount)


@pytest.mark.parametrize("name", ["mkdir.path", "mkfs.size", "dmverity", "mkdir", "mkdirs.path", ""])
def test_an_option_belongs_to_a_transform_of_the_type(name: str) -> None:
    for kind in ("mkdir/overlay", "format/mkfs/ext4", "overlay"):
        mount = Mount(kind, "", options=("ro", f"X-containerd.{name}=1"))
        if name.partition(".")[0] in split_type(kind).transforms:
            check_options(mount, split_type(kind))
        else:
            with pytest.raises(InvalidArgument):
                check_options(mount, split_type(kind))


def test_what_is_plain_passes() -> None:
    check_plain(Mount("bind", "/a/{{name}}", options=("rbind", "x-other=1")))
