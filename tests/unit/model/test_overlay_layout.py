"""Overlay options taken apart and put together again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim.errors import InvalidArgument
from shim.model.overlay_layout import OverlayLayout, common_parent, parse_overlay, relative_to


@pytest.mark.parametrize(
    ("options", "layout"),
    [
        (["lowerdir=/a"], OverlayLayout(("/a",))),
        (["index=off", "lowerdir=/a:/b", "upperdir=/u", "workdir=/w", "volatile"],
         OverlayLayout(("/a", "/b"), (), "/u", "/w", ("index=off", "volatile"))),
        (["lowerdir=/a\\:b:/c\\,d:/e\\\\f"], OverlayLayout(("/a:b", "/c,d", "/e\\f"))),
        (["lowerdir=/a,upperdir=/u"], OverlayLayout(("/a",), (), "/u")),
        (["lowerdir=/a:/b::/c::/d"], OverlayLayout(("/a", "/b"), ("/c", "/d"))),
        (["lowerdir=/old", "lowerdir=/a", "lowerdir+=/b:c", "datadir+=/d"], OverlayLayout(("/a", "/b:c"), ("/d",))),
        (["", "volatile"], OverlayLayout((), others=("volatile",))),
    ],
)  # fmt: skip
def test_parts(options: list[str], layout: OverlayLayout) -> None:
    assert parse_overlay(options) == layout


@pytest.mark.parametrize("text", ["", ":", "/a:", ":/a", "/a::", "/a::/b:/c", "/a:::/b", "::/a"])
def test_empty_layers_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="empty layers"):
        parse_overlay([f"lowerdir={text}"])


def test_every_path_can_be_renamed() -> None:
    layout = OverlayLayout(("/a", "/b"), ("/d",), "/u", "/w", ("index=off",))
    assert layout.paths == ("/a", "/b", "/d", "/u", "/w")
    renamed = layout.renamed(lambda path: path[1:])
    assert renamed.text() == "index=off,lowerdir=a:b::d,upperdir=u,workdir=w"
    assert OverlayLayout(("/a",)).renamed(lambda path: "x").text() == "lowerdir=x"


names = st.text(alphabet="abc:,\\ ", min_size=1, max_size=6).map(lambda name: f"/{name}")


@given(st.lists(names, min_size=1, max_size=4), st.lists(names, max_size=2), st.one_of(st.just(""), names))
def test_the_text_says_the_same(lower: list[str], data_only: list[str], upper: str) -> None:
    layout = OverlayLayout(tuple(lower), tuple(data_only), upper, upper and "/w", ("volatile",))
    assert parse_overlay([layout.text()]) == layout


@pytest.mark.parametrize(
    ("paths", "parent"),
    [
        (["/a/b/1", "/a/b/2"], "/a/b"),
        (["/a/b", "/a/b/c"], "/a"),
        (["/a/bb/1", "/a/bc/2"], "/a"),
        (["/a", "/b"], "/"),
        (["/a/b/c"], "/a/b"),
    ],
)
def test_what_layers_share(paths: list[str], parent: str) -> None:
    assert common_parent(paths) == parent


@given(st.lists(st.lists(st.sampled_from("ab"), min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts)),
                min_size=1, max_size=5))  # fmt: skip
def test_a_relative_name_means_the_same(paths: list[str]) -> None:
    parent = common_parent(paths)
    for path in paths:
        relative = relative_to(parent, path)
        assert relative
        assert not relative.startswith("/")
        assert f"{parent.rstrip('/')}/{relative}" == path


def test_what_is_elsewhere_stays_absolute() -> None:
    assert relative_to("/a", "/b/c") == "/b/c"
    assert relative_to("/a", "/a") == "/a"
    assert relative_to("/a", "/ab") == "/ab"
    assert relative_to("/", "/a") == "a"
