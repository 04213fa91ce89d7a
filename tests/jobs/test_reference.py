"""The reference page of jobs matches the types."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.reference.jobs import PAGE, reference
from scripts.reference.pages import write_pages
from tests.conftest import ROOT


def test_the_page_is_current() -> None:
    assert (ROOT / PAGE).read_text(encoding="utf-8") == reference(), "make docs"


def test_every_kind_and_policy_is_documented() -> None:
    page = reference()
    for title in (
        "PyTorchJob",
        "TFJob",
        "MPIJob",
        "MXJob",
        "RunPolicy",
        "JobStatus",
        "ReplicaView",
    ):
        assert f"### {title}\n" in page
    assert "| `backoffLimit` | integer, or absent |" in page
    assert "| `cleanPodPolicy` | `All`, `Running`, `None` |" in page


def test_checking_pages_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert write_pages({"a/b.md": "new"}, ["--check"]) == 1
    assert not (tmp_path / "a").exists()
    assert write_pages({"a/b.md": "new"}, []) == 0
    assert write_pages({"a/b.md": "new"}, ["--check"]) == 0
    assert capsys.readouterr().out == "stale: a/b.md\nwrote: a/b.md\n"
