"""Write generated pages, or check that they are current."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path


def write_pages(pages: Mapping[str, str], arguments: Sequence[str]) -> int:
    """Write ``pages``, text by path below the working directory, and return the exit code.

    With ``--check`` nothing is written, and the exit code is 1 if a page is out of date.
    """
    stale = []
    for name, text in pages.items():
        path = Path(name)
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in arguments:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for name in stale:
        print(f"{'stale' if '--check' in arguments else 'wrote'}: {name}")
    return 1 if stale and "--check" in arguments else 0
