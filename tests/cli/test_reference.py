from __future__ import annotations

from pathlib import Path

from danlu.cli.reference import PATH, reference

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_about_the_command_line_is_current() -> None:
    written = (ROOT / PATH).read_text(encoding="utf-8")
    assert written == reference(), "run python -m danlu.cli.reference"
