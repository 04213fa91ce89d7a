"""Retention of finished jobs: earlier runs of a name, limits of age and size."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from danlu.engine.settings import Settings
from danlu.errors import OutsideError, UsageError
from danlu.jobs.local.client import LocalJobs
from danlu.jobs.local.retention import JobRun, RetentionPolicy, expired_runs, size_of
from danlu.jobs.prune import prune_if_due, prune_jobs
from danlu.util.config import Configuration
from danlu.util.paths import Paths
from tests.jobs.local.support import lines_of, runs, spec, submission, wait_for_view

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 3, 1, tzinfo=UTC)
DAY = 86400.0


def run(name: str, days: float | None, size: int = 100) -> JobRun:
    result = None if days is None else NOW - timedelta(days=days)
    return JobRun(name, "Running" if days is None else "Succeeded", result, size)


RUNS = (run("a", 1), run("a@1", 40), run("a@2", 2), run("b", 35), run("c", None, 10_000))


def names(policy: RetentionPolicy) -> list[str]:
    return [run.name for run in expired_runs(RUNS, policy, now=NOW)]


def test_without_limits_no_run_expires() -> None:
    assert names(RetentionPolicy()) == []


def test_old_finished_runs_expire() -> None:
    assert names(RetentionPolicy(max_age=30 * DAY)) == ["a@1", "b"]


def test_the_newest_runs_are_kept() -> None:
    assert names(RetentionPolicy(keep=1)) == ["a@1", "b", "a@2"]
    assert names(RetentionPolicy(keep=0)) == ["a@1", "b", "a@2", "a"]


def test_the_size_limit_removes_earlier_runs_first_and_never_running_jobs() -> None:
    assert names(RetentionPolicy(max_bytes=10_300)) == ["a@1"]
    assert names(RetentionPolicy(max_bytes=10_200)) == ["a@1", "a@2"]
    assert names(RetentionPolicy(max_bytes=10_100)) == ["a@1", "b", "a@2"]
    assert names(RetentionPolicy(max_bytes=0)) == ["a@1", "b", "a@2", "a"]


def test_the_size_of_a_directory_is_its_disk_usage(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "file").write_bytes(b"x" * 100_000)
    assert 100_000 <= size_of(tmp_path) <= 110_000
    assert size_of(tmp_path / "absent") == 0


# -- real jobs ------------------------------------------------------------------------------------


async def finish(jobs: LocalJobs, work: Path, script: str, name: str = "job") -> None:
    await jobs.submit(submission(work, spec(script), name=name))
    await jobs.result(name)


async def test_a_finished_job_of_the_same_name_is_kept_as_an_earlier_run(
    jobs: LocalJobs, work: Path
) -> None:
    for number in range(3):
        await finish(jobs, work, f"echo run {number}")
    assert await jobs.names() == ["job"]
    assert await jobs.runs("job") == ["job@2", "job@1"]
    assert [line.data for line in await lines_of(jobs)] == [b"run 2"]
    assert [line.data for line in await lines_of(jobs, "job@1")] == [b"run 0"]
    view = await jobs.view("job@2")
    assert (view.name, view.state) == ("job@2", "Succeeded")


async def test_a_running_job_is_not_replaced(jobs: LocalJobs, work: Path) -> None:
    await jobs.submit(submission(work, spec("sleep 60")))
    await wait_for_view(jobs, runs(1))
    with pytest.raises(UsageError, match="already exists and is still running") as caught:
        await jobs.submit(submission(work, spec("true")))
    assert "danlu jobs stop job" in caught.value.hint
    assert await jobs.runs("job") == []


async def test_removing_a_job_removes_its_earlier_runs(
    jobs: LocalJobs, work: Path, home: Path
) -> None:
    for _ in range(3):
        await finish(jobs, work, "true")
    await jobs.remove("job@2")
    assert await jobs.runs("job") == ["job@1"]
    await jobs.remove("job")
    assert await jobs.names() == []
    assert [name for name in os.listdir(home / "jobs") if not name.startswith(".")] == []


async def test_a_failed_start_restores_the_previous_run(
    jobs: LocalJobs, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await finish(jobs, work, "echo kept")

    def refuse_to_start(*given: object) -> None:
        raise OutsideError("no")

    monkeypatch.setattr("danlu.jobs.local.client._start_supervisor", refuse_to_start)
    with pytest.raises(OutsideError, match="no"):
        await jobs.submit(submission(work, spec("true")))
    assert await jobs.runs("job") == []
    assert [line.data for line in await lines_of(jobs)] == [b"kept"]


async def test_pruning_follows_the_configuration_and_keeps_running_jobs(
    jobs: LocalJobs, work: Path, home: Path
) -> None:
    settings = Settings(Paths.of({"DANLU_HOME": str(home)}), Configuration(jobs_max_age="0s"))
    await finish(jobs, work, "true", "old")
    await jobs.submit(submission(work, spec("sleep 60"), name="new"))
    await wait_for_view(jobs, runs(1), name="new")
    listing = await prune_jobs(settings, RetentionPolicy(max_age=0.0), dry_run=True)
    assert [run.name for run in listing] == ["old"]
    assert set(await jobs.names()) == {"old", "new"}
    assert [run.name for run in await prune_if_due(settings)] == ["old"]
    assert await jobs.names() == ["new"]
    # Not again within the hour.
    await jobs.stop("new", grace=0)
    assert await prune_if_due(settings) == ()
