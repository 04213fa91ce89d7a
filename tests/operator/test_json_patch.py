"""JSON Patch, by the examples of RFC 6902 (appendix A) and what its section 4 forbids."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from danlu.operator.pod_decorators import PatchError, apply_json_patch

RIGHT: dict[str, tuple[Any, list[dict[str, Any]], Any]] = {
    "A.1": ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": 1}], {"foo": "bar", "baz": 1}),
    "A.2": ({"f": ["a", "c"]}, [{"op": "add", "path": "/f/1", "value": "b"}], {"f": [*"abc"]}),
    "A.3": ({"a": 1, "b": 2}, [{"op": "remove", "path": "/a"}], {"b": 2}),
    "A.4": ({"f": [*"abc"]}, [{"op": "remove", "path": "/f/1"}], {"f": ["a", "c"]}),
    "A.5": ({"a": 1}, [{"op": "replace", "path": "/a", "value": 2}], {"a": 2}),
    "A.6": ({"a": {"b": 1}}, [{"op": "move", "from": "/a/b", "path": "/c"}], {"a": {}, "c": 1}),
    "A.7": (
        {"f": ["a", "b", "c"]},
        [{"op": "move", "from": "/f/0", "path": "/f/2"}],
        {"f": ["b", "c", "a"]},
    ),
    "A.8": ({"a": "b"}, [{"op": "test", "path": "/a", "value": "b"}], {"a": "b"}),
    "A.14": ({"/": 9}, [{"op": "test", "path": "/~1", "value": 9}], {"/": 9}),
    "A.16": ({"f": [1]}, [{"op": "add", "path": "/f/-", "value": [2]}], {"f": [1, [2]]}),
    "null": ({}, [{"op": "add", "path": "/a", "value": None}], {"a": None}),
    "whole": ({"a": 1}, [{"op": "replace", "path": "", "value": {"b": 2}}], {"b": 2}),
    "copy": ({"a": [1]}, [{"op": "copy", "from": "/a", "path": "/b"}], {"a": [1], "b": [1]}),
}
WRONG: dict[str, tuple[Any, list[dict[str, Any]]]] = {
    "A.9": ({"a": "b"}, [{"op": "test", "path": "/a", "value": "c"}]),
    "A.12": ({"foo": 1}, [{"op": "add", "path": "/baz/bat", "value": 1}]),
    "A.15": ({"a": 10}, [{"op": "test", "path": "/a", "value": "10"}]),
    "true is not 1": ({"a": True}, [{"op": "test", "path": "/a", "value": 1}]),
    "no value": ({}, [{"op": "add", "path": "/a"}]),
    "no from": ({}, [{"op": "move", "path": "/a"}]),
    "absent": ({}, [{"op": "remove", "path": "/a"}]),
    "beyond the end": ({"f": []}, [{"op": "add", "path": "/f/1", "value": 1}]),
    "into itself": ({"a": {}}, [{"op": "move", "from": "/a", "path": "/a/b"}]),
    "leading zero": ({"f": [1, 2]}, [{"op": "remove", "path": "/f/01"}]),
    "no slash": ({"a": 1}, [{"op": "remove", "path": "a"}]),
    "a text has no members": ({"a": "b"}, [{"op": "add", "path": "/a/0", "value": 1}]),
    "nothing left": ({"a": 1}, [{"op": "remove", "path": ""}]),
}


@pytest.mark.parametrize("case", RIGHT)
def test_a_json_patch_is_applied_to_a_copy(case: str) -> None:
    document, patch, expected = RIGHT[case]
    before = msgspec.json.encode(document)
    assert apply_json_patch(document, patch) == expected
    assert msgspec.json.encode(document) == before


@pytest.mark.parametrize("case", WRONG)
def test_a_json_patch_that_fails_changes_nothing(case: str) -> None:
    document, patch = WRONG[case]
    before = msgspec.json.encode(document)
    with pytest.raises(PatchError, match=r"operation 0 \("):
        apply_json_patch(document, patch)
    assert msgspec.json.encode(document) == before


def test_an_error_does_not_quote_the_pod() -> None:
    patch = [{"op": "test", "path": "/token", "value": "guess"}]
    with pytest.raises(PatchError) as caught:
        apply_json_patch({"token": "s3cret"}, patch)
    assert "s3cret" not in str(caught.value)


def test_a_patch_cannot_replace_the_pod_by_another_type() -> None:
    with pytest.raises(PatchError, match="removes the pod"):
        apply_json_patch({"a": 1}, [{"op": "replace", "path": "", "value": [1]}])
