"""A page of results with the description of the machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write(path: Path, title: str, body: str, machine: Mapping[str, Any]) -> str:
    """Write the page to ``path`` and return its text."""
    rows = "\n".join(f"| {key} | {value} |" for key, value in machine.items())
    text = f"# {title}, {machine['date']}\n\n{body}\n\n| machine | |\n|---|---|\n{rows}\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return text
