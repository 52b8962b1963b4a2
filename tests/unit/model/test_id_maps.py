"""Mappings of ids: what is one and what is not."""

from __future__ import annotations

import pytest

from shim.errors import InvalidArgument
from shim.model.id_maps import IdRange, as_namespace_map, parse_id_map


def test_ranges() -> None:
    parsed = parse_id_map("0:1000:1,1:100000:65536", "uidmap")
    assert parsed == (IdRange(0, 1000, 1), IdRange(1, 100000, 65536))
    assert as_namespace_map(parsed) == "0 1000 1\n1 100000 65536\n"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "0:0",
        "0:0:0",
        "0:1:1:1",
        "a:0:1",
        "-1:0:1",
        "+1:0:1",
        "0:0:1,",
        "0:0:4294967296",
        "4294967295:0:1",
        "0:4294967290:10",
        "0:0:99999999999",
        "0:0:10,9:20:1",
        "0:0:10,20:9:1",
        " 0:0:1",
        ",".join(f"{number}:{number}:1" for number in range(341)),
    ],
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(InvalidArgument, match="uidmap"):
        parse_id_map(text, "uidmap")


def test_the_largest() -> None:
    assert parse_id_map("0:0:4294967295", "gidmap") == (IdRange(0, 0, 4294967295),)
    assert len(parse_id_map(",".join(f"{number}:{number}:1" for number in range(340)), "x")) == 340
