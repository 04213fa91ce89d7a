"""Golden files: updated on request, never compared in the run that wrote them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

__all__ = ["write_on_request"]


def write_on_request(path: Path, text: str) -> None:
    """With ``DANLU_GOLDEN=write`` write ``text`` to ``path`` if it differs, and fail the test.

    A run that writes proves nothing: read the difference, commit it, run the tests again.
    """
    if os.environ.get("DANLU_GOLDEN") != "write":
        return
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    path.write_text(text, encoding="utf-8")
    pytest.fail(f"{path.name} was rewritten: read the difference, then run again without writing")
