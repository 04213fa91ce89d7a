"""Files sent with a job reach its replicas; their results and errors come back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from danlu.errors import UsageError
from danlu.jobs.local.client import LocalJobs
from danlu.training.types import RestartPolicy
from tests.jobs.local.support import lines_of, spec, submission

pytestmark = pytest.mark.anyio


@pytest.fixture
def files(tmp_path: Path) -> Path:
    directory = tmp_path / "bundle"
    (directory / "below").mkdir(parents=True)
    (directory / "run.sh").write_text("echo sent $DANLU_FILES; cat $DANLU_FILES/below/more\n")
    (directory / "below/more").write_text("more\n")
    (directory / "below/more").chmod(0o600)
    return directory


async def test_files_are_in_danlu_files_which_a_command_may_refer_to(
    jobs: LocalJobs, work: Path, files: Path, home: Path
) -> None:
    value = spec("", command=["/bin/sh"], args=["$(DANLU_FILES)/run.sh"])
    await jobs.submit(submission(work, value, files=files))
    sent = home / "jobs/job/sent"
    assert [line.data.decode() for line in await lines_of(jobs)] == [f"sent {sent}", "more"]
    assert (sent / "below/more").stat().st_mode & 0o777 == 0o644


async def test_files_are_copied_at_submission(jobs: LocalJobs, work: Path, files: Path) -> None:
    script = "until test -e go; do sleep 0.01; done; cat $DANLU_FILES/below/more"
    await jobs.submit(submission(work, spec(script), files=files))
    (files / "below/more").write_text("changed\n")
    (work / "go").touch()
    assert [line.data for line in await lines_of(jobs)] == [b"more"]


async def test_missing_files_are_rejected_and_leave_no_job(
    jobs: LocalJobs, work: Path, home: Path
) -> None:
    with pytest.raises(UsageError, match="cannot send"):
        await jobs.submit(submission(work, spec("true"), files=work / "nothing"))
    assert os.listdir(home / "jobs") == []


async def test_each_replica_returns_its_own_value(jobs: LocalJobs, work: Path) -> None:
    script = "printf $RANK > $DANLU_VALUE_FILE"
    await jobs.submit(submission(work, spec(script, 3), value="all"))
    result = await jobs.result("job")
    assert result.values == {"worker-0": b"0", "worker-1": b"1", "worker-2": b"2"}
    assert (result.value, result.raised) == (b"0", {})


async def test_exceptions_of_replicas_are_returned(jobs: LocalJobs, work: Path) -> None:
    script = "test $RANK = 0 && exec sleep 60; printf $RANK > $DANLU_RAISED_FILE; exit 1"
    await jobs.submit(submission(work, spec(script, 2), value="leader"))
    result = await jobs.result("job")
    assert result.view.state == "Failed"
    assert (result.values, result.raised) == ({}, {"worker-1": b"1"})


async def test_exceptions_of_earlier_attempts_are_discarded(jobs: LocalJobs, work: Path) -> None:
    script = "test -e again && exit 0; touch again; printf x > $DANLU_RAISED_FILE; exit 1"
    value = spec(script, 1, RestartPolicy.ON_FAILURE)
    await jobs.submit(submission(work, value, value="leader"))
    result = await jobs.result("job")
    assert (result.view.state, result.raised) == ("Succeeded", {})


async def test_a_job_without_results_gets_no_exchange_variables(
    jobs: LocalJobs, work: Path
) -> None:
    script = "env | grep -c -e DANLU_FILES -e DANLU_VALUE -e DANLU_RAISED"
    await jobs.submit(submission(work, spec(script)))
    assert [line.data for line in await lines_of(jobs)] == [b"0"]


async def test_a_nested_job_does_not_inherit_exchange_variables(
    jobs: LocalJobs, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DANLU_VALUE_FILE", str(work / "outer"))
    await jobs.submit(submission(work, spec("echo ${DANLU_VALUE_FILE-none}")))
    assert [line.data for line in await lines_of(jobs)] == [b"none"]
