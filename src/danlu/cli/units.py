"""Numbers as people read them: bytes, seconds, digests."""

from __future__ import annotations

__all__ = ["ago", "duration", "plural", "short_digest", "size"]


def size(count: int) -> str:
    """``count`` bytes in decimal units, as registries and disks count: ``1.2 GB``."""
    if count < 1000:
        return f"{count} B"
    value = float(count)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 999.5:
            return f"{value:.1f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"
    return f"{value / 1000:.1f} TB"


def duration(seconds: float) -> str:
    """``0.3 s``, ``12 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def ago(seconds: float) -> str:
    """How long ago: ``just now``, ``5 minutes ago``, ``3 days ago``."""
    for length, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= length:
            return f"{plural(int(seconds // length), name)} ago"
    return "just now"


def short_digest(digest: str) -> str:
    """The first 12 hexadecimal digits of a digest, without its algorithm."""
    return digest.rpartition(":")[2][:12]


def plural(count: int, noun: str) -> str:
    """``1 layer``, ``2 layers``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
