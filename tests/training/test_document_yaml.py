"""YAML is parsed and written as by kubectl, with bounded expansion."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from danlu.util.yaml_with_lines import YamlError, dump_yaml, read_yaml


def value(text: str) -> object:
    [(result, _)] = read_yaml(text, "f.yaml")
    return result


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("1", 1),
        ("-3", -3),
        ("010", 8),
        ("0x1F", 31),
        ("1.5", 1.5),
        ("1e5", 100000.0),
        ("true", True),
        ("yes", True),
        ("off", False),
        ("~", None),
        ("null", None),
        ("None", "None"),
        ("2020-01-01", "2020-01-01"),
        ("2020-01-01T10:00:00Z", "2020-01-01T10:00:00Z"),
        ("1:30", "1:30"),
        ("10:20:30.5", "10:20:30.5"),
        ("4Gi", "4Gi"),
        ("=", "="),
        ('"1"', "1"),
        ("0x", "0x"),
        ("08", "08"),
    ],
)
def test_scalars_are_parsed_as_in_kubernetes(text: str, means: object) -> None:
    result = value(f"a: {text}\n")
    assert result == {"a": means}
    assert isinstance(result, dict)
    assert type(result["a"]) is type(means)


def test_keys_are_always_strings() -> None:
    assert value("1: a\nyes: b\n2020-01-01: c\n1.5: d\n~: e\n") == {
        "1": "a",
        "yes": "b",
        "2020-01-01": "c",
        "1.5": "d",
        "~": "e",
    }


def test_anchors_and_merge_keys_are_resolved() -> None:
    text = "base: &base {cpu: 1, memory: 2Gi}\nmine:\n  <<: *base\n  cpu: 2\nsame: *base\n"
    assert value(text) == {
        "base": {"cpu": 1, "memory": "2Gi"},
        "mine": {"cpu": 2, "memory": "2Gi"},
        "same": {"cpu": 1, "memory": "2Gi"},
    }


BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 10)}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message", "place", "line"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml has a duplicate key 'a', first on line 1", "3:1", "a: 3"),
        (
            "a:\n  b: 1\n  b: 2\n",
            "f.yaml has a duplicate key 'b', first on line 2",
            "3:3",
            "  b: 2",
        ),
        ("a: &x [*x]\n", "f.yaml has an alias that contains itself", "1:4", "a: &x [*x]"),
        (
            "a: !!binary aGk=\n",
            "f.yaml has a value of unsupported type 'binary'",
            "1:4",
            "a: !!binary aGk=",
        ),
        (
            "a: !Ref b\n",
            "f.yaml has a value of unsupported type '!Ref'",
            "1:4",
            "a: !Ref b",
        ),
        ("? [a, b]\n: c\n", "f.yaml has a key that is not a scalar", "1:3", "? [a, b]"),
        (
            "a: b: c\n",
            "f.yaml is not valid YAML: mapping values are not allowed in this context",
            "1:5",
            "a: b: c",
        ),
        (
            BOMB,
            "f.yaml has more than 200,000 values after expanding its aliases",
            "1:1",
            "a: &a [x,x,x,x,x,x,x,x,x,x]",
        ),
    ],
)
def test_unsupported_yaml_is_an_error_with_line_and_column(
    text: str, message: str, place: str, line: str
) -> None:
    with pytest.raises(YamlError) as caught:
        value(text)
    error = caught.value
    assert (error.message, str(error.span), error.source_line) == (
        message,
        f"f.yaml:{place}",
        line,
    )


def test_tab_is_reported_as_a_tab() -> None:
    with pytest.raises(YamlError) as caught:
        value("a:\n\tb: 1\n")
    assert caught.value.hint == "indent with spaces: YAML does not allow tabs"
    assert str(caught.value.span) == "f.yaml:2:1"


def test_deep_nesting_is_an_error() -> None:
    with pytest.raises(YamlError, match="nested more than 100 levels deep"):
        value("[" * 200_000)


@pytest.mark.parametrize("text", ["a: \x00b", "a: \ud800"])
def test_characters_forbidden_in_yaml_are_an_error(text: str) -> None:
    with pytest.raises(YamlError, match=r"f\.yaml is not valid YAML"):
        value(text)


@pytest.mark.parametrize(
    "text", ["y", "N", "1e5", "0o14", "1:30", "22:22", "2020-01-01", "true", "1", "", "~", "0x1f"]
)
def test_ambiguous_strings_are_quoted(text: str) -> None:
    document = dump_yaml({"a": text})
    assert document.strip() in (f"a: '{text}'", f'a: "{text}"')


def test_multiline_string_is_written_as_a_block_scalar() -> None:
    document = dump_yaml({"data": {"run.sh": "#!/bin/sh\necho hi\n"}})
    assert document == "data:\n  run.sh: |\n    #!/bin/sh\n    echo hi\n"


_TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc"), include_characters="\n\t"))
_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXT
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner) | st.dictionaries(_TEXT, inner), max_leaves=15
)


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(_TEXT, _VALUES, min_size=1))
def test_yaml_round_trips(document: dict[str, object]) -> None:
    data = dump_yaml(document)
    assert value(data) == document
    assert yaml.safe_load(data) is not None
