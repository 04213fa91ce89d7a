"""Kubernetes resource quantities."""

import pytest

from danlu.errors import UsageError
from danlu.util.quantity import (
    format_memory,
    is_quantity,
    parse_quantity,
    sum_quantities,
    to_quantity,
)


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


@pytest.mark.parametrize("text", ["", "1 Gi", "1GiB", "Gi", "1.2.3", "--1", "1e3Ki", "1e", "１"])
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


def test_sizes_are_written_as_kubernetes_does_and_limits_are_never_negative() -> None:
    texts = ("4GB", "4 GiB", "1.5KB", "512Mi", "lots")
    assert [to_quantity(text) for text in texts] == ["4G", "4Gi", "1.5k", "512Mi", "lots"]
    assert [is_quantity(text) for text in ("1E3", "+2", ".5", "-1", "4 G")] == [
        *(True, True, True),
        *(False, False),
    ]
