"""Sums of quantities of resources as Kubernetes writes them (``500m``, ``1.5Gi``, ``2e3``)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal

__all__ = ["added"]

_FORM = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([numkMGTPE]|[KMGTPE]i)?")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}


def added(quantities: Iterable[object]) -> str:
    """The exact sum: in whole units, else in thousandths, rounded up.

    Raises :class:`ValueError` where one is no quantity (k8s.io/apimachinery, resource.Quantity).
    """
    total = sum((_number(one) for one in quantities), Decimal(0))
    if total == total.to_integral_value():
        return str(int(total))
    thousandths = (total * 1000).to_integral_value(rounding="ROUND_CEILING")
    return f"{int(thousandths)}m"


def _number(quantity: object) -> Decimal:
    match = _FORM.fullmatch(str(quantity))
    if match is None:
        raise ValueError(f"{quantity!r} is not a quantity")
    number, suffix = Decimal(match[1]), match[2]
    if suffix in _DECIMAL:
        return number.scaleb(_DECIMAL[suffix])
    return number * Decimal(1024) ** _BINARY.get(suffix, 0)
