"""What was declared, written down as uv reads it."""

from __future__ import annotations

from pathlib import Path

from danlu.resolve.python_wanted import Wanted

__all__ = ["write_requirements"]


def write_requirements(wanted: Wanted, scratch: Path) -> list[str]:
    """uv's input files: one line for each requirement, in order, so that lines can be traced."""
    requirements = scratch / "requirements.txt"
    requirements.write_text("".join(f"{line.text}\n" for line in wanted.lines), encoding="utf-8")
    if not wanted.constraints:
        return [str(requirements)]
    constraints = scratch / "constraints.txt"
    constraints.write_text(
        "".join(f"{line.text}\n" for line in wanted.constraints), encoding="utf-8"
    )
    return [str(requirements), "--constraints", str(constraints)]
