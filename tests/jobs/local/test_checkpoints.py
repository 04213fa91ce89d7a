"""The directory of checkpoints survives restarts and the end of a job, and is found again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from danlu.jobs.local.client import LocalJobs
from danlu.replica_runtime.report import CHECKPOINT_DIRECTORY, checkpoint_dir
from danlu.training.types import RestartPolicy
from tests.jobs.local.support import lines_of, local_jobs, spec, submission, until

EXAMPLE = Path(__file__).parents[3] / "examples" / "checkpoints" / "train.py"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def jobs(tmp_path: Path) -> LocalJobs:
    return local_jobs(tmp_path / "home")


async def run_job(jobs: LocalJobs, work: Path, script: str, *, name: str = "job") -> list[str]:
    workers = spec(script, policy=RestartPolicy.ON_FAILURE)
    await jobs.submit(submission(work, workers, name=name))
    lines = [line.data.decode() for line in await lines_of(jobs, name)]
    assert (await jobs.result(name)).view.state == "Succeeded"
    return lines


@pytest.mark.anyio
async def test_a_training_that_is_killed_five_times_ends_with_the_undisturbed_loss(
    jobs: LocalJobs, work: Path
) -> None:
    command = f"exec '{sys.executable}' '{EXAMPLE}'"
    undisturbed = await run_job(jobs, work, command, name="undisturbed")
    killed = await run_job(jobs, work, f"{command} --die-at 3 9 15 22 30", name="killed")
    assert killed == [*(f"continuing at step {step}" for step in (8, 12, 20, 28)), *undisturbed]
    view = await jobs.view("killed")
    assert view.replicas[0].restarts == 5


@pytest.mark.anyio
async def test_the_next_job_of_the_name_in_the_same_project_finds_the_files(
    jobs: LocalJobs, work: Path, tmp_path: Path
) -> None:
    script = f'ls "${CHECKPOINT_DIRECTORY}"; touch "${CHECKPOINT_DIRECTORY}/saved"'
    assert await run_job(jobs, work, script) == []
    assert await run_job(jobs, work, script, name="other") == []
    await jobs.remove("job")
    assert await run_job(jobs, work, script) == ["saved"]
    (tmp_path / "elsewhere").mkdir()
    await jobs.remove("job")
    assert await run_job(jobs, tmp_path / "elsewhere", script) == []


@pytest.mark.anyio
async def test_a_job_without_checkpoints_leaves_no_directory(
    jobs: LocalJobs, work: Path, tmp_path: Path
) -> None:
    assert await run_job(jobs, work, f'test -d "${CHECKPOINT_DIRECTORY}"') == []
    # The job is finished before its supervisor has cleaned up.
    await until(lambda: not list((tmp_path / "home").glob("checkpoints/*")))


def test_a_program_without_danlu_has_checkpoints_in_its_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(CHECKPOINT_DIRECTORY, raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert checkpoint_dir() == tmp_path / "checkpoints"
    assert (tmp_path / "checkpoints").is_dir()


def test_a_pod_without_a_volume_for_checkpoints_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CHECKPOINT_DIRECTORY, raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(RuntimeError, match="checkpoint_claim"):
        checkpoint_dir()
    monkeypatch.setenv(CHECKPOINT_DIRECTORY, str(tmp_path / "volume" / "job"))
    assert checkpoint_dir() == tmp_path / "volume" / "job"
    assert (tmp_path / "volume" / "job").is_dir()
