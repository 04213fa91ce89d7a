"""Strangers' words, made fit for a message."""

from __future__ import annotations

import os

__all__ = ["printable"]

_MOST = 300


def printable(text: str | bytes) -> str:
    """``text`` on one line, not too long, without what would steer a terminal."""
    if isinstance(text, bytes):
        text = os.fsdecode(text)
    short = text if len(text) <= _MOST else f"{text[:_MOST]}…"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in short)
