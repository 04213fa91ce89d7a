"""Build functions that this version does not build. All are built, so a test forgets some."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from danlu.commands.project import Project
from danlu.environment.types import Environment, PlannedCall


def forget_functions(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Make calls of functions that act at start look like those of functions nobody wrote yet."""
    evaluate = Project.environment

    def environment(self: Project, *arguments: Any, **options: Any) -> Environment:
        found = evaluate(self, *arguments, **options)
        forgotten = [item for item in found.declarations if item.start_function in names]
        return replace(
            found,
            declarations=tuple(item for item in found.declarations if item not in forgotten),
            planned_calls=tuple(
                PlannedCall(item.start_function, span=item.span) for item in forgotten
            ),
        )

    monkeypatch.setattr(Project, "environment", environment)
