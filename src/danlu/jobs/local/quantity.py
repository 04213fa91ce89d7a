"""Quantities of resources as Kubernetes writes them (``500m``, ``1.5Gi``, ``2e3``)."""

from __future__ import annotations

import re
from decimal import Decimal

from danlu.errors import UsageError

__all__ = ["quantity"]

_FORM = re.compile(
    r"([+-]?(?:[0-9]+[.]?[0-9]*|[.][0-9]+)(?:[eE][+-]?[0-9]+)?)(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?"
)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}


def quantity(text: object) -> float:
    """The number a quantity stands for; raises :class:`UsageError` where it is none."""
    match = _FORM.fullmatch(str(text).strip())
    if match is None:
        raise UsageError(f"{text!r} is not a quantity", hint="500m, 2, 1.5Gi …")
    number, suffix = Decimal(match[1]), match[2]
    if suffix in _DECIMAL:
        return float(number.scaleb(_DECIMAL[suffix]))
    return float(number * 1024 ** _BINARY.get(suffix, 0))
