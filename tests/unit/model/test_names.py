"""The identifier rule, by example and by property (field-faults O4)."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim.errors import InvalidArgument
from shim.model.names import MAX_LENGTH, check_identifier


@pytest.mark.parametrize("text", ["a", "0", "a.b", "a_b-c.d", "Z9", "x" * MAX_LENGTH, "a" * 71])
def test_identifiers_are_accepted(text: str) -> None:
    check_identifier(text, "id")


@pytest.mark.parametrize(
    "text",
    ["", "/", "a/b", "..", ".", "a..b", "a--b", "-a", "a-", ".a", "a.", "_", "a\n", "\na", "a b", "é", "a\0b", "٣"],
)
def test_others_are_refused_on_one_line(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_identifier(text, "namespace")
    assert caught.value.message.startswith("namespace ")
    assert "\n" not in caught.value.message


def test_length_is_refused_without_repeating_it_all() -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_identifier("x" * 100_000, "id")
    assert "100000" in caught.value.message
    assert len(caught.value.message) < 200


_RUN = st.text(string.ascii_letters + string.digits, min_size=1, max_size=6)


@given(st.lists(_RUN, min_size=1, max_size=5), st.sampled_from("._-"))
def test_runs_joined_by_one_separator(runs: list[str], separator: str) -> None:
    check_identifier(separator.join(runs), "id")


@given(st.text(max_size=80))
def test_what_is_accepted_is_one_safe_file_name(text: str) -> None:
    try:
        check_identifier(text, "id")
    except InvalidArgument:
        return
    assert text.isascii()
    assert "/" not in text
    assert text[0].isalnum()
    assert text[-1].isalnum()
