"""Which etcd the tests of watches need."""

from __future__ import annotations

import pytest

from tests.kube.servers import reports_watch_progress


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("3.4.23", False),
        ("3.4.31", True),
        ("3.5.0", False),
        ("3.5.12", False),
        ("3.5.13", True),
        ("3.6.0-rc.1", True),
    ],
)
def test_old_versions_of_etcd_report_no_progress(version: str, expected: bool) -> None:
    assert reports_watch_progress(version) is expected
