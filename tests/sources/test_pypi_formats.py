"""--no-binary and --only-binary have the same meaning as in pip."""

from __future__ import annotations

import pytest

from danlu.sources.pypi.requirements import FormatControl

NO, ONLY = "--no-binary", "--only-binary"


def make_formats(*options: tuple[str, str]) -> FormatControl:
    formats = FormatControl()
    for option, value in options:
        formats = formats.with_option(option, value)
    return formats


def list_allowed_formats(formats: FormatControl, name: str) -> str:
    words = [word for word in ("wheel", "sdist") if formats.allows(name, wheel=word == "wheel")]
    return " ".join(words)


@pytest.mark.parametrize(
    ("options", "a_b", "other"),
    [
        ([], "wheel sdist", "wheel sdist"),
        ([(NO, "A_b,c")], "sdist", "wheel sdist"),
        ([(ONLY, "a.b")], "wheel", "wheel sdist"),
        ([(NO, ":all:")], "sdist", "sdist"),
        ([(ONLY, ":all:")], "wheel", "wheel"),
        ([(ONLY, ":all:"), (NO, "a-b")], "sdist", "wheel"),
        ([(NO, ":all:"), (ONLY, "a-b")], "wheel", "sdist"),
        ([(NO, "a-b"), (ONLY, ":all:")], "wheel", "wheel"),
        ([(NO, "a-b"), (ONLY, "a-b")], "wheel", "wheel sdist"),
        ([(NO, "a-b"), (NO, ":none:")], "wheel sdist", "wheel sdist"),
        ([(NO, "a-b, :none:, c")], "wheel sdist", "wheel sdist"),
    ],
)
def test_the_later_option_and_the_name_win(
    options: list[tuple[str, str]], a_b: str, other: str
) -> None:
    formats = make_formats(*options)
    assert (list_allowed_formats(formats, "a-b"), list_allowed_formats(formats, "other")) == (
        a_b,
        other,
    )


def test_uv_gets_an_option_for_each_name() -> None:
    formats = make_formats((ONLY, ":all:"), (NO, "b,A"))
    assert formats.to_options() == [NO, "a", NO, "b", ONLY, ":all:"]


@pytest.mark.parametrize("value", ["", "a,", "a b", "-r x", "a;b", "a>1"])
def test_invalid_name_is_rejected(value: str) -> None:
    with pytest.raises(ValueError, match=r"^(|a b|-r x|a;b|a>1)$"):
        make_formats((NO, value))
