"""Training jobs whose service cannot always be reached."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from danlu.engine.contexts import SageMakerAccount
from danlu.errors import TemporaryError, UsageError
from danlu.jobs.sagemaker import client
from danlu.jobs.sagemaker.client import SageMakerJobs
from danlu.util.aws import AwsError
from danlu.util.backoff import ExponentialBackoff
from tests.fakes.sagemaker import BUCKET, ROLE

JOB = {
    "TrainingJobName": "demo",
    "SecondaryStatus": "Training",
    "CreationTime": datetime(2026, 1, 2, tzinfo=UTC),
    "OutputDataConfig": {"S3OutputPath": f"s3://{BUCKET}/danlu/jobs/"},
}


class UnsteadyJobs(SageMakerJobs):
    """Answers with these statuses; None is a lost connection."""

    def __init__(self, *statuses: str | None) -> None:
        super().__init__(SageMakerAccount(ROLE, BUCKET), "us-east-1", where="aws")
        self.statuses = list(statuses)

    async def _send_request(self, service: str, operation: str, **parameters: Any) -> Any:
        status = self.statuses.pop(0)
        if status is None:
            raise TemporaryError("AWS cannot answer now: Rate exceeded")
        return {**JOB, "TrainingJobStatus": status}


@pytest.fixture(autouse=True)
def _without_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "POLL_SECONDS", 0)
    monkeypatch.setattr(ExponentialBackoff, "next_delay", lambda self: 0)


async def watch(jobs: SageMakerJobs) -> list[str]:
    return [view.state async for view in jobs.watch("demo")]


def test_lost_connections_and_throttling_do_not_end_a_wait() -> None:
    jobs = UnsteadyJobs(None, None, "InProgress", None, "InProgress", None, "Completed")
    assert anyio.run(watch, jobs) == ["Running", "Succeeded"]


def test_a_service_that_does_not_come_back_ends_it() -> None:
    jobs = UnsteadyJobs("InProgress", *[None] * 100)
    with pytest.raises(TemporaryError, match="Rate exceeded"):
        anyio.run(watch, jobs)


@pytest.mark.parametrize(
    "output", ["s3://other/danlu/jobs/", f"s3://{BUCKET}/danlu/jobs/demo", f"s3://{BUCKET}/", ""]
)
def test_a_job_with_another_output_is_not_ours(output: str) -> None:
    class OtherJobs(UnsteadyJobs):
        async def _send_request(self, service: str, operation: str, **parameters: Any) -> Any:
            if service == "s3":
                return {}
            return {
                **JOB,
                "TrainingJobStatus": "Completed",
                "OutputDataConfig": {"S3OutputPath": output},
            }

    for call in ("view", "stop", "remove"):
        with pytest.raises(UsageError, match="not found in aws"):
            anyio.run(getattr(OtherJobs(), call), "demo")


def test_objects_that_may_not_be_deleted_end_the_removal() -> None:
    class LockedJobs(UnsteadyJobs):
        async def _send_request(self, service: str, operation: str, **parameters: Any) -> Any:
            if operation == "list_objects_v2":
                return {"Contents": [{"Key": f"{parameters['Prefix']}a"}]}
            if operation == "delete_objects":
                return {"Errors": [{"Code": "AccessDenied", "Message": "not\x1b[31m allowed"}]}
            if service == "logs":
                return {"logStreams": []}
            return {**JOB, "TrainingJobStatus": "Completed"}

    with pytest.raises(AwsError, match=r"s3:DeleteObject \(AccessDenied\): not allowed") as caught:
        anyio.run(LockedJobs().remove, "demo")
    assert "s3:DeleteObject" in caught.value.hint
