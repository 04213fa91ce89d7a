"""Untrusted text made safe to print."""

from danlu.util.sanitize import escape_unprintable, strip_control_sequences


def test_unprintable_characters_are_escaped_on_one_line() -> None:
    assert escape_unprintable("a\x1b[31mb\nc\u202e") == "a\\x1b[31mb\\nc\\u202e"
    assert escape_unprintable(b"caf\xc3\xa9 \xff") == "café \\udcff"


def test_long_text_is_cut() -> None:
    assert escape_unprintable("x" * 400) == "x" * 300 + "…"
    assert escape_unprintable("abcdef", limit=3) == "abc…"


def test_control_sequences_are_removed_and_tabs_kept() -> None:
    text = "\x1b[31mred\x1b[0m\tok\x1b]0;title\x07 end\u2066\r\n"
    assert strip_control_sequences(text) == "red\tok end"
