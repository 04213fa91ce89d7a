"""Text of programs and clusters never becomes markup."""

from __future__ import annotations

import pytest

from danlu.ui.html import MAX_TEXT_LENGTH, element, join_html


@pytest.mark.parametrize("text", ["<script>x</script>", "&amp;", 'a" onclick="x', "a' b"])
def test_text_and_attributes_are_escaped(text: str) -> None:
    html = element("p", text, title=text)
    assert "<script" not in html
    assert html.count("<") == 2
    assert html.partition(">")[0].count('"') == 2


def test_markup_is_kept_and_absent_children_are_left_out() -> None:
    assert element("p", element("b", 1), None, False, ["a", "&"]) == "<p><b>1</b>a&amp;</p>"
    assert element("input", name="q", checked=True, value=None) == '<input name="q" checked>'


def test_control_sequences_are_stripped_and_long_texts_cut() -> None:
    assert join_html(["\x1b[31mred\x1b[0m\x1b]0;title\x07\u202e"]) == "red"
    assert len(join_html(["x" * 10 * MAX_TEXT_LENGTH])) == MAX_TEXT_LENGTH


def test_other_values_are_refused() -> None:
    with pytest.raises(TypeError):
        element("p", object())
