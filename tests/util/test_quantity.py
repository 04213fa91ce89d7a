"""Kubernetes resource quantities."""

import pytest

from danlu.errors import UsageError
from danlu.util.quantity import format_memory, parse_quantity, sum_quantities


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("500m", "0.5"),
        ("1.5Gi", "1610612736"),
        ("2e3", "2000"),
        (2, "2"),
        (".5", "0.5"),
        ("3k", "3000"),
    ],
)
def test_quantity_has_its_value(text: object, value: str) -> None:
    assert parse_quantity(text) == float(value)


@pytest.mark.parametrize("text", ["", "1 Gi", "1GiB", "Gi", "1.2.3", "--1"])
def test_invalid_quantity_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="invalid quantity"):
        parse_quantity(text)


def test_sum_is_exact_and_rounded_up_to_thousandths() -> None:
    assert sum_quantities(["1Gi", "1Mi"]) == "1074790400"
    assert sum_quantities(["500m", "250m"]) == "750m"
    assert sum_quantities(["0.1m"]) == "1m"


def test_memory_is_formatted_with_an_exact_unit() -> None:
    assert [format_memory(count) for count in (512 << 20, 3 * 10**9, 1000, 1001)] == [
        "512Mi",
        "3G",
        "1k",
        "1001",
    ]
