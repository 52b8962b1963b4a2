"""The template language: its four actions, and that nothing else is one."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim.errors import InvalidArgument
from shim.model.mount_template import MountedAt, evaluate, format_mount
from shim.model.mounts import Mount

EARLIER = [
    MountedAt(Mount("ext4", "/img", "/t0"), "/m/2"),
    MountedAt(Mount("erofs", "/layer", "/t1"), "/m/1"),
    MountedAt(Mount("bind", "{{ mount 0 }}"), "/m/0"),
]


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("", ""),
        ("plain } }} text", "plain } }} text"),
        ("{{ source 0 }}", "/img"),
        ("{{ target 1 }}", "/t1"),
        ("{{ mount 2 }}", "/m/0"),
        ("{{mount 0}}/upper", "/m/2/upper"),
        ("{{\tmount\n +1 }}", "/m/1"),
        ("lowerdir={{ overlay 0 2 }}", "lowerdir=/m/2:/m/1:/m/0"),
        ("lowerdir={{ overlay 2 0 }}:/x", "lowerdir=/m/0:/m/1:/m/2:/x"),
        ("{{ overlay 1 1 }}", "/m/1"),
        ("a {{- mount 0 -}} b", "a/m/2b"),
        ("a {{- /* */ -}} b", None),
        ("{{ mount 0 }}{{ mount 1 }}", "/m/2/m/1"),
        ("{{ source 2 }}", "{{ mount 0 }}"),  # what comes out is no template
    ],
)
def test_actions(text: str, result: str | None) -> None:
    if result is None:
        with pytest.raises(InvalidArgument):
            evaluate(text, EARLIER)
    else:
        assert evaluate(text, EARLIER) == result


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{{ mount 3 }}", r"no mount 3 comes before this one, there are 3"),
        ("{{ mount -1 }}", r"no mount -1 comes"),
        ("{{ overlay 0 3 }}", r"no mount 3 comes"),
        ("{{ overlay 99999999 0 }}", r"no mount 99999999 comes"),
        ("{{ overlay 0 }}", r"takes 2 numbers"),
        ("{{ mount }}", r"takes one number"),
        ("{{ mount 0 1 }}", r"takes one number"),
        ("{{ mount x }}", r"takes one number"),
        ("{{ mount 0x1 }}", r"takes one number"),
        ("{{ mount 1e0 }}", r"takes one number"),
        ("{{ mount 99999999999999999999 }}", r"takes one number"),
        ("{{ }}", r"\{\{ \}\} is none of source, target, mount, overlay"),
        ("{{}}", r"is none of"),
        ("{{-}}", r"is none of"),
        ("{{ index 0 }}", r"is none of"),
        ("{{ mount 0 | printf }}", r"takes one number"),
        ("{{ .Mount }}", r"is none of"),
        ("{{ mount(0) }}", r"is none of"),
        ("{{ mount 0", r"an action is not closed"),
        ("{{ mount 0 } }", r"an action is not closed"),
    ],
)
def test_anything_else_is_a_clear_error(text: str, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        evaluate(text, EARLIER)


def test_an_index_without_any_mount_before() -> None:
    with pytest.raises(InvalidArgument, match="no mount 0 comes before this one, there are 0"):
        evaluate("{{ mount 0 }}", [])
    with pytest.raises(InvalidArgument, match="no mount 1 comes before this one, there is 1"):
        evaluate("{{ mount 1 }}", EARLIER[:1])


@given(st.text(alphabet="{} -mountsrcegalyv0123/\n", max_size=40))
def test_any_text_is_a_text_or_a_clear_error(text: str) -> None:
    with contextlib.suppress(InvalidArgument):
        assert isinstance(evaluate(text, EARLIER), str)


@given(st.lists(st.integers(0, 2), max_size=6), st.text(alphabet="ab/:=", max_size=5))
def test_actions_and_text_keep_their_order(indexes: list[int], between: str) -> None:
    text = between.join(f"{{{{ mount {index} }}}}" for index in indexes)
    assert evaluate(text, EARLIER) == between.join(EARLIER[index].mount_point for index in indexes)


def test_a_mount_is_formatted_in_every_text() -> None:
    mount = Mount("format/overlay", "{{ source 0 }}", "{{ target 1 }}", ("ro", "upperdir={{ mount 0 }}/u"))
    assert format_mount(mount, EARLIER) == Mount("format/overlay", "/img", "/t1", ("ro", "upperdir=/m/2/u"))
