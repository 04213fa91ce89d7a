"""Credentials in URLs are masked when shown and stripped when stored."""

from __future__ import annotations

import pytest

from danlu.util.urls import mask_credentials, mask_values, strip_credentials


@pytest.mark.parametrize(
    ("text", "masked", "stripped"),
    [
        ("https://u:p@h/x", "https://***@h/x", "https://h/x"),
        ("https://token@h", "https://***@h", "https://h"),
        ("a https://u:p@h b http://v:q@i/", "a https://***@h b http://***@i/", None),
        (
            "pkg @ git+https://u:p@h/r@v1",
            "pkg @ git+https://***@h/r@v1",
            "pkg @ git+https://h/r@v1",
        ),
        ("https://u:p@ss@h/x", "https://***@h/x", "https://h/x"),
        ("'https://u:p%40ss@h:8080/x'", "'https://***@h:8080/x'", "'https://h:8080/x'"),
        ("ssh://git@h/r", "ssh://git@h/r", "ssh://git@h/r"),
        ("git+ssh://git:pw@h/r", "git+ssh://git:***@h/r", "git+ssh://git@h/r"),
        ("git@h:team/r", "git@h:team/r", "git@h:team/r"),
        ("https://h/a@b?c=d@e", "https://h/a@b?c=d@e", "https://h/a@b?c=d@e"),
        ("https://h?u@v", "https://h?u@v", "https://h?u@v"),
        ("numpy @ file:///x@y.whl", "numpy @ file:///x@y.whl", "numpy @ file:///x@y.whl"),
    ],
)
def test_credentials_are_found_in_addresses_only(
    text: str, masked: str, stripped: str | None
) -> None:
    assert mask_credentials(text) == masked
    if stripped is not None:
        assert strip_credentials(text) == stripped


def test_plain_data_is_masked_throughout() -> None:
    value = {"a": ["https://u:p@h", 1, None], "https://u:p@h": ("x", {"b": "ftp://u:p@h"})}
    masked = {"a": ["https://***@h", 1, None], "https://***@h": ("x", {"b": "ftp://***@h"})}
    assert mask_values(value) == masked
