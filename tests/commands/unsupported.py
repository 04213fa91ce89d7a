"""Build functions that this version does not build. All are built, so a test forgets some."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from danlu.commands.project import Project
from danlu.environment.types import Environment


def forget_functions(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Make calls of functions that act at start look like those of functions nobody wrote yet."""
    evaluate = Project.environment

    def environment(self: Project, *arguments: Any, **options: Any) -> Environment:
        found = evaluate(self, *arguments, **options)
        calls = [
            replace(call, at_start=call.at_start and call.function not in names)
            for call in found.planned_calls
        ]
        return replace(found, planned_calls=tuple(calls))

    monkeypatch.setattr(Project, "environment", environment)
