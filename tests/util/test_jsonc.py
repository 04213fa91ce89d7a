"""JSON with comments and trailing commas."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danlu.util.jsonc import parse_jsonc

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def test_comments_and_trailing_commas_are_ignored() -> None:
    text = '\ufeff// a "quote\n{"a": [1, 2, /* , */ ], "b": {"c": 3,}, // }\n}'
    assert parse_jsonc(text) == {"a": [1, 2], "b": {"c": 3}}


@pytest.mark.parametrize("value", ["http://x//y", "/* kept */", ",]", 'a\\"//b', ", }"])
def test_strings_are_kept(value: str) -> None:
    assert parse_jsonc(json.dumps([value])) == [value]


@given(VALUES)
def test_json_is_read_as_json(value: object) -> None:
    assert parse_jsonc(json.dumps(value)) == value
    assert parse_jsonc(json.dumps(value, indent=1, ensure_ascii=False)) == value


@pytest.mark.parametrize(
    "text", ['{"a": 1, "a": 2}', "[" * 200_000, "/* open", "{,,}", '"a\nb"', ""]
)
def test_invalid_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"line|twice|deeply"):
        parse_jsonc(text)


def test_errors_name_the_line_of_the_file() -> None:
    with pytest.raises(ValueError, match="line 3"):
        parse_jsonc("/* one\n two */ {\n ? }")
