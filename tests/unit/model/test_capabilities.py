from __future__ import annotations

import pytest

from shim.model.capabilities import MountClaims, claims_from_annotation


@pytest.mark.parametrize(
    ("text", "claims"),
    [
        ("", MountClaims()),
        (",, ,", MountClaims()),
        ("erofs", MountClaims(["erofs"])),
        ("erofs,mkdir/*, loop ,", MountClaims(["erofs", "loop"], ["mkdir"])),
        ("format/mkdir/overlay", MountClaims(["format/mkdir/overlay"])),
        ("/*", MountClaims()),
    ],
)
def test_claims_of_the_deprecated_annotation(text: str, claims: MountClaims) -> None:
    assert claims_from_annotation(text) == claims
