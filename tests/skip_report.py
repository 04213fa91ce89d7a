"""Skipped tests at the end of a run: one line per reason, with the number of tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

__all__ = ["pytest_terminal_summary"]

_PREFIX = "Skipped: "


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print why tests were skipped, the most frequent reason first."""
    reasons = Counter(_skip_reasons(terminalreporter.stats.get("skipped", ())))
    if not reasons:
        return
    terminalreporter.write_sep("-", f"{reasons.total()} skipped")
    width = len(str(max(reasons.values())))
    for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
        terminalreporter.write_line(f"{count:{width}} × {reason}")


def _skip_reasons(reports: Iterable[object]) -> Iterable[str]:
    for report in reports:
        if not isinstance(report, pytest.TestReport | pytest.CollectReport):
            continue
        # (file, line, reason); of an expected failure it is a text.
        where = report.longrepr
        text = where[2] if isinstance(where, tuple) else str(where)
        yield " ".join(text.removeprefix(_PREFIX).split()) or "no reason given"
