"""Resource quantities as Kubernetes writes them (``500m``, ``1.5Gi``, ``2e3``).

The syntax is that of k8s.io/apimachinery, resource.Quantity.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal

from danlu.errors import UsageError

_QUANTITY = re.compile(
    r"([+-]?(?:[0-9]+[.]?[0-9]*|[.][0-9]+))(?:([KMGTPE]i|[numkMGTPE])|([eE][+-]?[0-9]+))?"
)
#: ``4GB`` and ``4 GiB``, which Kubernetes writes as ``4G`` and ``4Gi``.
_BYTES = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kKMGTP]i?)[bB]")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}


def parse_quantity(text: object) -> float:
    """Return the value of a quantity; raises :class:`UsageError` if it is invalid."""
    return float(_parse_exact(text))


def _parse_exact(text: object) -> Decimal:
    match = _QUANTITY.fullmatch(str(text).strip())
    if match is None:
        raise UsageError(f"invalid quantity {text!r}", hint="write 500m, 2 or 1.5Gi")
    number, suffix = Decimal(match[1] + (match[3] or "")), match[2]
    if suffix in _DECIMAL:
        return number.scaleb(_DECIMAL[suffix])
    return number * Decimal(1024) ** _BINARY.get(suffix, 0)


def is_quantity(text: str) -> bool:
    """Return whether ``text`` is a quantity that is not negative, as requests and limits are."""
    return not text.startswith("-") and _QUANTITY.fullmatch(text) is not None


def to_quantity(text: str) -> str:
    """Return ``4GB`` and ``4 GiB`` as Kubernetes writes them, and other text unchanged."""
    match = _BYTES.fullmatch(text.strip())
    if match is None:
        return text
    return match[1] + ("k" if match[2] == "K" else match[2])


def sum_quantities(quantities: Iterable[object]) -> str:
    """Return the exact sum: in whole units if possible, else in thousandths, rounded up.

    Raises :class:`UsageError` if a quantity is invalid.
    """
    total = sum((_parse_exact(quantity) for quantity in quantities), Decimal(0))
    if total == total.to_integral_value():
        return str(int(total))
    thousandths = (total * 1000).to_integral_value(rounding="ROUND_CEILING")
    return f"{int(thousandths)}m"


def format_memory(count: int) -> str:
    """Return a number of bytes as manifests write it: ``512Mi``, ``4G``, ``1000``."""
    for scale, suffixes in ((1024, ("Ti", "Gi", "Mi", "Ki")), (1000, ("T", "G", "M", "k"))):
        for power, suffix in zip((4, 3, 2, 1), suffixes, strict=True):
            if count and count % scale**power == 0:
                return f"{count // scale**power}{suffix}"
    return str(count)
