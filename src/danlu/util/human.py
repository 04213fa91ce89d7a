"""Sizes and durations as people write them."""

from __future__ import annotations

import re

__all__ = ["format_duration", "format_size", "parse_duration", "parse_size"]

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)(b?)", re.IGNORECASE)
_POWERS = "kmgtp"
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)", re.IGNORECASE)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def parse_size(text: str) -> int:
    """``"10GB"`` (powers of 1000), ``"512MiB"`` (of 1024), ``"4096"``: in bytes.

    The ``B`` may be left out and case does not count. Raises :class:`ValueError`.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None or (found[3] and not found[2]):
        raise ValueError(f"not a size: {text!r} (write it like 10GB, 512MiB or 4096)")
    power = _POWERS.index(found[2].lower()) + 1 if found[2] else 0
    scale = int((1024 if found[3] else 1000) ** power)
    whole, _, fraction = found[1].partition(".")
    # In integers: 8.1TB is no multiple of a float's steps.
    return int(int(whole + fraction) * scale // 10 ** len(fraction))


def format_size(count: int) -> str:
    """Bytes in powers of 1000 with three digits at most: ``"0 B"``, ``"1.5 MB"``, ``"683 MB"``."""
    if abs(count) < 1000:
        return f"{count} B"
    value = float(count)
    for unit in ("kB", "MB", "GB", "TB", "PB"):
        value /= 1000
        # What would round up to four digits belongs to the next unit.
        if abs(value) < 999.5 or unit == "PB":
            return f"{value:.1f} {unit}" if abs(value) < 9.95 else f"{value:.0f} {unit}"
    raise AssertionError("unreachable")


def parse_duration(text: str) -> float:
    """``"90"``, ``"90s"``, ``"1h30m"``, ``"2d"``, ``"250ms"``: in seconds.

    Raises :class:`ValueError`.
    """
    compact = text.strip().replace(" ", "")
    if re.fullmatch(r"\d+(\.\d+)?", compact):
        return float(compact)
    if not re.fullmatch(f"(?:{_PART.pattern})+", compact, re.IGNORECASE):
        raise ValueError(f"not a duration: {text!r} (write it like 90s, 1h30m or 2d)")
    return sum(float(one[1]) * _SECONDS[one[2].lower()] for one in _PART.finditer(compact))


def format_duration(seconds: float) -> str:
    """``"40 ms"``, ``"1.2 s"``, ``"2 min 5 s"``, ``"3 h 12 min"``, ``"2 d 4 h"``."""
    if seconds < 0.9995:
        return f"{max(0, round(seconds * 1000))} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for (size, unit), (small, small_unit) in (
        ((86400, "d"), (3600, "h")),
        ((3600, "h"), (60, "min")),
        ((60, "min"), (1, "s")),
    ):
        if whole >= size:
            rest = whole % size // small
            return (
                f"{whole // size} {unit} {rest} {small_unit}" if rest else f"{whole // size} {unit}"
            )
    raise AssertionError("unreachable")
