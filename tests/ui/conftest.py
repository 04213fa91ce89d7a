"""A danlu home for the jobs of a test."""

from __future__ import annotations

from tests.jobs.local.conftest import home, jobs, work

__all__ = ["home", "jobs", "work"]
