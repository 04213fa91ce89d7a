"""Parse and format sizes and durations as people write them."""

from __future__ import annotations

import re

_SIZE_PATTERN = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)(b?)", re.IGNORECASE)
_POWERS = "kmgtp"
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)", re.IGNORECASE)
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def parse_size(text: str) -> int:
    """Return the bytes of ``"10GB"`` (powers of 1000), ``"512MiB"`` (of 1024) or ``"4096"``.

    The ``B`` is optional and case is ignored. Raises :class:`ValueError`.
    """
    match = _SIZE_PATTERN.fullmatch(text.strip())
    if match is None or (match[3] and not match[2]):
        raise ValueError(f"invalid size {text!r} (examples: 10GB, 512MiB, 4096)")
    power = _POWERS.index(match[2].lower()) + 1 if match[2] else 0
    scale = int((1024 if match[3] else 1000) ** power)
    whole, _, fraction = match[1].partition(".")
    # In integers, because a float cannot hold 8.1TB exactly.
    return int(int(whole + fraction) * scale // 10 ** len(fraction))


def format_size(count: int) -> str:
    """Return bytes in powers of 1000, with at most three digits: ``"1.5 MB"``, ``"683 MB"``."""
    if abs(count) < 1000:
        return f"{count} B"
    value = float(count)
    for unit in ("kB", "MB", "GB", "TB", "PB"):
        value /= 1000
        # A value that would round up to four digits is shown in the next unit.
        if abs(value) < 999.5 or unit == "PB":
            return f"{value:.1f} {unit}" if abs(value) < 9.95 else f"{value:.0f} {unit}"
    raise AssertionError("unreachable")


def parse_duration(text: str) -> float:
    """Return the seconds of ``"90"``, ``"90s"``, ``"1h30m"``, ``"2d"`` or ``"250ms"``.

    Raises :class:`ValueError`.
    """
    compact = text.strip().replace(" ", "")
    if re.fullmatch(r"\d+(\.\d+)?", compact):
        return float(compact)
    if not re.fullmatch(f"(?:{_DURATION_PART.pattern})+", compact, re.IGNORECASE):
        raise ValueError(f"invalid duration {text!r} (examples: 90s, 1h30m, 2d)")
    return sum(
        float(part[1]) * _UNIT_SECONDS[part[2].lower()] for part in _DURATION_PART.finditer(compact)
    )


def format_duration(seconds: float) -> str:
    """Return a duration in one or two units: ``"40 ms"``, ``"1.2 s"``, ``"3 h 12 min"``."""
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


def format_age(seconds: float) -> str:
    """Return how long ago something was: ``just now``, ``5 minutes ago``, ``3 days ago``."""
    for length, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= length:
            return f"{pluralize(int(seconds // length), name)} ago"
    return "just now"


def pluralize(count: int, noun: str) -> str:
    """Return ``1 layer`` or ``2 layers``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def shorten_digest(digest: str) -> str:
    """Return the first 12 hexadecimal digits of a digest, without its algorithm."""
    return digest.rpartition(":")[2][:12]
