"""Suggestions for misspelt names."""

import pytest

from danlu.util.suggest import closest_match, did_you_mean


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("pytorhc", "pytorch"),
        ("PyTorch", "pytorch"),
        ("jxa", "JAX"),
        ("kubernetes", ""),
    ],
)
def test_closest_match_ignores_case_and_rejects_distant_names(name: str, match: str) -> None:
    assert closest_match(name, ["JAX", "pytorch", "tensorflow"]) == match


def test_hint_names_the_closest_match_or_the_alternative() -> None:
    assert did_you_mean("lod", ["load", "save"], template="`{}`") == "did you mean `load`?"
    assert did_you_mean("x", ["load"], otherwise="see --help") == "see --help"
    assert did_you_mean("x", []) == ""
